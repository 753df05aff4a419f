"""Fences: read them, raise them by a barrier, start a new epoch, and check a sequencer against them."""

from datetime import datetime
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.authorisation import LOOK, ApiAuthorisation
from gateway.api.requests import (
    MAX_PAGE,
    Authenticate,
    HolderName,
    ResourceName,
    TokenText,
    attempt,
    storable,
)
from gateway.auth.principal import Principal
from gateway.db import fences
from gateway.db.database import Database
from gateway.db.fences import BumpOutcome, BumpResult
from gateway.errors import ExpectedMismatch, OutcomeUnknown, TokensExhausted, Unavailable
from gateway.fencing import headers
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import LockMode, Sequencer, Signer
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.record.refusals import Audit
from gateway.token_admission import Admission

SequencerText = Annotated[
    str,
    Field(
        max_length=4096,
        examples=["order/5:exclusive:34:kP0u…"],
        description="Exactly as the lease service returned it. It is as powerful as the token: keep it secret.",
    ),
]


class SequencerRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequencer: SequencerText


class SequencerView(BaseModel):
    """The state of a sequencer. A write is safe only if it is ``authentic`` and not ``overtaken``."""

    resource: str
    mode: LockMode
    token: str
    authentic: bool = Field(description="Whether it was signed with one of this gateway's keys.")
    held: bool = Field(description="Whether a lease with this token is running, by the database's clock.")
    fence: str | None = Field(description="The highest token seen for the resource; null if none has been seen yet.")
    overtaken: bool = Field(description="Whether the fence is higher. Then no write with this token can succeed.")


def sequencer_routes(
    database: Database, signer: Signer, authorisation: ApiAuthorisation, caller: Authenticate
) -> APIRouter:
    """Build the route ``/v1/sequencers/check``."""
    router = APIRouter()

    @router.post(
        "/v1/sequencers/check",
        summary="Check a sequencer",
        description="For a server that is shown a sequencer, because it takes tokens of this gateway itself. "
        "The state of the lease may change a moment later. A sequencer that was overtaken stays overtaken.",
        responses={400: {"model": Problem, "description": "The sequencer cannot be read."}},
    )
    async def check_sequencer(
        body: SequencerRequest, request: Request, principal: Annotated[Principal, Depends(caller)]
    ) -> SequencerView:
        sequencer = Sequencer.parse(body.sequencer)
        await authorisation.on(request, principal, LOOK, sequencer.resource)
        # Its caller decides about a write by this answer, so a failover must not undo what it says.
        (found,) = await fences.read_token_states(
            database, [(sequencer.resource, sequencer.token)], sequencer.mode, confirmed=True
        )
        fence = found.fence.token if found.fence else None
        return SequencerView(
            resource=sequencer.resource,
            mode=sequencer.mode,
            token=str(sequencer.token),
            authentic=signer.is_authentic(sequencer),
            held=found.held,
            fence=None if fence is None else str(fence),
            overtaken=fence is not None and sequencer.token < fence,
        )

    return router


class Barrier(Protocol):
    """Raise a fence, settle the pending writes of older holders, and return the decision of the fence."""

    async def __call__(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]: ...


class FenceView(BaseModel):
    """A fence. Tokens are strings, because a JSON number cannot hold the larger ones exactly."""

    resource: str
    token: str | None = Field(description="The highest token seen; null if none has been seen yet.")
    raised_by: str | None = Field(description="The name that the holder gave itself; null if it gave none.")
    caller: str | None = Field(description="The caller whose request raised the fence.")
    raised_at: datetime | None = Field(description="By the database's clock.")


class FenceList(BaseModel):
    fences: list[FenceView]
    after: str | None = Field(description="Pass as ``after`` for the next page; null on the last one.")


class BarrierRequest(BaseModel):
    """The new holder's token. The new holder calls the barrier before it reads."""

    model_config = ConfigDict(extra="forbid")

    token: TokenText
    holder: HolderName | None = None
    sequencer: SequencerText | None = None


def routes(database: Database, barrier: Barrier, admission: Admission, audit: Audit, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/fences``."""
    router = APIRouter()

    @router.get("/v1/fences", summary="List fences by name", dependencies=[Depends(caller)])
    async def list_fences(
        prefix: Annotated[str, Query(max_length=512)] = "",
        after: Annotated[str, Query(max_length=512)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> FenceList:
        found = await fences.list_fences(database, storable(prefix) or "", storable(after) or "", limit)
        return FenceList(
            fences=[fence_view(one.resource, one) for one in found],
            after=found[-1].resource if len(found) == limit else None,
        )

    @router.get("/v1/fences/{resource:path}", summary="Read a fence", dependencies=[Depends(caller)])
    async def read_fence(resource: ResourceName) -> FenceView:
        name = canonical(resource)
        return fence_view(name, await fences.read(database, name))

    @router.post(
        "/v1/fences/{resource:path}/barrier",
        summary="Raise the fence before reading",
        description="Once this has returned, no write with a lower token takes effect, on tables or objects.",
        responses={
            403: {
                "model": Problem,
                "description": "The policy of the resource refuses the token. The refusal is on record.",
            },
            412: {"model": Problem, "description": "The token has been overtaken itself. The refusal is on record."},
        },
    )
    async def raise_barrier(
        resource: ResourceName,
        body: BarrierRequest,
        request: Request,
        principal: Annotated[Principal, Depends(caller)],
    ) -> FenceView:
        name = canonical(resource)
        sequencer = None if body.sequencer is None else Sequencer.parse(body.sequencer)
        unproven = FencingHeaders(Token.parse(body.token), name, body.holder)
        sent = unproven if sequencer is None else headers.add_sequencers(unproven, (sequencer,))
        presented = Presented(Token.parse(body.token), body.holder, sequencer=sequencer)
        if refused := await admission.admit([(name, presented)]):
            raise await audit.implausible(refused, attempt(request, principal, sent))
        decision, fence = await barrier(name, presented, principal.name)
        if not decision.passes:
            raise await audit.refused([(decision, fence)], attempt(request, principal, sent))
        return fence_view(name, fence)

    return router


def fence_view(resource: str, fence: Fence | None) -> FenceView:
    """Return the view of a fence. ``None`` means that no token of the resource has been seen yet."""
    if fence is None:
        return FenceView(resource=resource, token=None, raised_by=None, caller=None, raised_at=None)
    return FenceView(
        resource=resource,
        token=str(fence.token),
        raised_by=fence.holder,
        caller=fence.caller,
        raised_at=fence.raised_at,
    )


class EpochRequest(BaseModel):
    """A new epoch, for a fence that is above all tokens because their issuer has lost its counter."""

    model_config = ConfigDict(extra="forbid")

    expected: TokenText = Field(
        description="The token that the fence carries. If the fence carries another one, nothing happens."
    )
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S", examples=["etcd was restored"])] = Field(
        description="It goes on record."
    )


def epoch_routes(database: Database, barrier: Barrier, caller: Authenticate) -> APIRouter:
    """Build the route ``/v1/fences/{resource}/epoch``."""
    router = APIRouter()

    @router.post(
        "/v1/fences/{resource:path}/epoch",
        summary="Start a new epoch",
        description="Needs the grant `epoch`. For an issuer that has lost its counter, or a fence beyond all tokens. "
        "If the fence carries the expected token, it moves to the beginning of its next epoch, on record. "
        "From then on every earlier token is refused, and the leases with such a token end.",
        responses={
            403: {"model": Problem, "description": "The caller lacks the grant."},
            409: {"model": Problem, "description": "The fence carries another token, or it is in its last epoch."},
        },
    )
    async def start_epoch(
        resource: ResourceName, body: EpochRequest, principal: Annotated[Principal, Depends(caller)]
    ) -> FenceView:
        name, expected = canonical(resource), Token.parse(body.expected)
        bumped = await fences.bump_epoch(database, name, expected, principal.name, storable(body.reason) or "")
        if bumped.outcome is not BumpOutcome.DONE or bumped.fence is None:
            raise _not_bumped(name, expected, bumped)
        # As with every takeover, pending writes with an earlier token must not take effect any more.
        token = bumped.fence.token
        try:
            decision, fence = await barrier(name, Presented(token), principal.name)
            while not decision.passes:
                # A holder of the new epoch was quicker. It may still be settling the pending writes.
                decision, fence = await barrier(name, Presented(fence.token), principal.name)
        except (Unavailable, OutcomeUnknown) as error:
            raise OutcomeUnknown(
                f"The fence of {name} is at {token}, but earlier writes are not settled yet. {error.message}",
                advice="The epoch has begun: do not start another. Before a client reads, the first holder of the new "
                "epoch must repeat the barrier until it succeeds. If the policy takes any token, you may call the "
                f"barrier with {token}.",
            ) from error
        return fence_view(name, bumped.fence)

    return router


def _not_bumped(resource: str, expected: Token, bumped: BumpResult) -> ExpectedMismatch | TokensExhausted:
    fence = bumped.fence
    if bumped.outcome is BumpOutcome.EXHAUSTED:
        return TokensExhausted(
            f"The fence of {resource} is in its last epoch.",
            advice="Stop all writers of the resource, then remove the fence in the database (docs/policies.md).",
            facts={"resource": resource, "fence": str(expected)},
        )
    return ExpectedMismatch(
        f"The fence of {resource} carries {fence.token if fence else 'no token yet'}, not {expected}.",
        facts={"resource": resource, "expected": str(expected), "fence": str(fence.token) if fence else None},
    )
