"""Fences: read them, raise them by a barrier, start a new epoch, and check a sequencer against them."""

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.authorisation import LIST, LOOK, About, Rule
from gateway.api.description import Subject
from gateway.api.requests import HolderName, NamesQuery, NextName, ResourceName, TokenText, pattern_of, storable
from gateway.api.routes import Call, Routes
from gateway.auth.grants import Action
from gateway.db import fences
from gateway.db.fences import BumpOutcome, BumpResult
from gateway.errors import ExpectedMismatch, OutcomeUnknown, TokensExhausted, Unavailable
from gateway.fencing import headers, sequencer
from gateway.fencing.decision import Fence, Presented
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import LockMode
from gateway.fencing.ownership import Ownership
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token

SequencerText = Annotated[
    str,
    Field(
        max_length=sequencer.MAX_CHARACTERS,
        examples=["order/5:exclusive:34:kP0uZ3mY8QkkP0uZ3mY8QkkP0uZ3mY8QkkP0uZ3mY8Q"],
        json_schema_extra=pattern_of(sequencer.GRAMMAR),
        description="Exactly as the lease service returned it. It is as powerful as the token: keep it secret.",
    ),
]


routes = Routes(Subject.FENCES)


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


def _owners(ownership: Ownership, body: SequencerRequest) -> list[str]:
    return [ownership.of_resource(body.sequencer.rsplit(":", 3)[0])]


@routes.add(
    "POST /v1/sequencers/check",
    Rule(About.BODY, LOOK),
    "Check a sequencer",
    owners=_owners,
    description="For a server that is shown a sequencer, because it takes tokens of this gateway itself. "
    "The state of the lease may change a moment later. A sequencer that was overtaken stays overtaken.",
    answers={400: "The sequencer cannot be read."},
)
async def check_sequencer(call: Call, body: SequencerRequest) -> SequencerView:
    sequencer = Sequencer.parse(body.sequencer)
    await call.services.authorisation.on(call.request, call.principal, LOOK, sequencer.resource)
    # Its caller decides about a write by this answer, so a failover must not undo what it says.
    (found,) = await fences.read_token_states(
        call.services.database, [(sequencer.resource, sequencer.token)], sequencer.mode, confirmed=True
    )
    fence = found.fence.token if found.fence else None
    return SequencerView(
        resource=sequencer.resource,
        mode=sequencer.mode,
        token=str(sequencer.token),
        authentic=call.services.signer.is_authentic(sequencer),
        held=found.held,
        fence=None if fence is None else str(fence),
        overtaken=fence is not None and sequencer.token < fence,
    )


class FenceView(BaseModel):
    """A fence. Tokens are strings, because a JSON number cannot hold the larger ones exactly."""

    resource: str
    token: str | None = Field(description="The highest token seen; null if none has been seen yet.")
    raised_by: str | None = Field(description="The name that the holder gave itself; null if it gave none.")
    caller: str | None = Field(description="The caller whose request raised the fence.")
    raised_at: datetime | None = Field(description="By the database's clock.")


class FenceList(BaseModel):
    fences: list[FenceView]
    after: NextName


class TokenRequest(BaseModel):
    """A token, as a body presents it."""

    model_config = ConfigDict(extra="forbid")

    token: TokenText
    holder: HolderName | None = None
    sequencer: SequencerText | None = None

    def presented(self) -> Presented:
        """Return the token. Raises ``SequencerMalformed`` and ``TokenMalformed``."""
        sequencer = None if self.sequencer is None else Sequencer.parse(self.sequencer)
        return Presented(Token.parse(self.token), self.holder, sequencer=sequencer)


class BarrierRequest(TokenRequest):
    """The new holder's token. The new holder calls the barrier before it reads."""


@routes.add("GET /v1/fences", LIST, "List fences by name")
async def list_fences(call: Call, query: NamesQuery) -> FenceList:
    found = await fences.list_fences(call.services.database, query.prefix, query.after, query.limit)
    return FenceList(
        fences=[fence_view(one.resource, one) for one in found],
        after=query.following([one.resource for one in found]),
    )


@routes.add("GET /v1/fences/{resource:path}", Rule(About.RESOURCE, LOOK), "Read a fence")
async def read_fence(call: Call, resource: ResourceName) -> FenceView:
    return fence_view(resource, await fences.read(call.services.database, resource))


@routes.add(
    "POST /v1/fences/{resource:path}/barrier",
    Rule(About.RESOURCE, (Action.BARRIER,)),
    "Raise the fence before reading",
    description="Once this has returned, no write with a lower token takes effect, on tables or objects.",
    answers={
        403: "The policy of the resource refuses the token. The refusal is on record.",
        412: "The token has been overtaken itself. The refusal is on record.",
    },
)
async def raise_barrier(call: Call, resource: ResourceName, body: BarrierRequest) -> FenceView:
    presented = body.presented()
    sent = FencingHeaders(presented.token, resource, presented.holder)
    if presented.sequencer is not None:
        sent = headers.add_sequencers(sent, (presented.sequencer,))
    if refused := await call.services.admission.admit([(resource, presented)]):
        raise await call.services.audit.implausible(refused, call.attempt(sent))
    decision, fence = await call.services.barrier(resource, presented, call.principal.name)
    if not decision.passes:
        raise await call.services.audit.refused([(decision, fence)], call.attempt(sent))
    return fence_view(resource, fence)


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
    reason: Annotated[
        str,
        Field(
            min_length=1,
            max_length=1000,
            pattern=r"\S",
            examples=["etcd was restored"],
            json_schema_extra=pattern_of(r"[^\x00]*[^\s\x00][^\x00]*"),
        ),
    ] = Field(description="It goes on record.")


@routes.add(
    "POST /v1/fences/{resource:path}/epoch",
    Rule(About.RESOURCE, (Action.EPOCH,)),
    "Start a new epoch",
    description="Needs the grant `epoch`. For an issuer that has lost its counter, or a fence beyond all tokens. "
    "If the fence carries the expected token, it moves to the beginning of its next epoch, on record. "
    "From then on every earlier token is refused, and the leases with such a token end.",
    answers={409: "The fence carries another token, or it is in its last epoch."},
)
async def start_epoch(call: Call, resource: ResourceName, body: EpochRequest) -> FenceView:
    barrier, caller, expected = call.services.barrier, call.principal.name, Token.parse(body.expected)
    bumped = await fences.bump_epoch(call.services.database, resource, expected, caller, storable(body.reason) or "")
    if bumped.outcome is not BumpOutcome.DONE or bumped.fence is None:
        raise _not_bumped(resource, expected, bumped)
    # As with every takeover, pending writes with an earlier token must not take effect any more.
    token = bumped.fence.token
    try:
        decision, fence = await barrier(resource, Presented(token), caller)
        while not decision.passes:
            # A holder of the new epoch was quicker. It may still be settling the pending writes.
            decision, fence = await barrier(resource, Presented(fence.token), caller)
    except (Unavailable, OutcomeUnknown) as error:
        raise OutcomeUnknown(
            f"The fence of {resource} is at {token}, but earlier writes are not settled yet. {error.message}",
            advice="The epoch has begun: do not start another. Before a client reads, the first holder of the new "
            "epoch must repeat the barrier until it succeeds. If the policy takes any token, you may call the "
            f"barrier with {token}.",
        ) from error
    return fence_view(resource, bumped.fence)


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
