"""Fences: read them, and raise them before reading what they protect."""

from datetime import datetime
from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.admission import Admission
from gateway.api.requests import (
    MAX_PAGE,
    Authenticate,
    HolderName,
    ResourceName,
    TokenText,
    attempt,
    storable,
)
from gateway.api.sequencers import SequencerText
from gateway.auth.principal import Principal
from gateway.db import fences
from gateway.db.database import Database
from gateway.fencing import headers
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.resource import canonical
from gateway.fencing.rules import Decision, Fence, Presented
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.record.audit import Audit


class Barrier(Protocol):
    """Raises a fence and settles what older holders have under way; returns what the fence says."""

    async def __call__(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]: ...


class FenceView(BaseModel):
    """A fence. Tokens are strings: they may be larger than a JSON number can hold exactly."""

    resource: str
    token: str | None = Field(description="The highest token seen; null where none has been seen yet.")
    raised_by: str | None = Field(description="The name the holder gave itself, if it did.")
    caller: str | None = Field(description="The caller whose request raised the fence.")
    raised_at: datetime | None = Field(description="When, by the database's clock.")


class FenceList(BaseModel):
    fences: list[FenceView]
    after: str | None = Field(description="Pass as ``after`` for the next page; null on the last one.")


class BarrierRequest(BaseModel):
    """The new holder's token. A barrier is called before the new holder reads."""

    model_config = ConfigDict(extra="forbid")

    token: TokenText
    holder: HolderName | None = None
    sequencer: SequencerText | None = None


def routes(database: Database, barrier: Barrier, admission: Admission, audit: Audit, caller: Authenticate) -> APIRouter:
    """``/v1/fences``."""
    router = APIRouter()

    @router.get("/v1/fences", summary="List fences by name", dependencies=[Depends(caller)])
    async def list_fences(
        prefix: Annotated[str, Query(max_length=512)] = "",
        after: Annotated[str, Query(max_length=512)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> FenceList:
        found = await fences.listed(database, storable(prefix) or "", storable(after) or "", limit)
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
        description="Once this has returned, no write with a lower token takes effect any more, on tables or objects.",
        responses={
            403: {
                "model": Problem,
                "description": "The token is not taken: see the policy of its resource. On record.",
            },
            412: {"model": Problem, "description": "The token has been overtaken itself. On record."},
        },
    )
    async def raise_barrier(
        resource: ResourceName,
        wanted: BarrierRequest,
        request: Request,
        principal: Annotated[Principal, Depends(caller)],
    ) -> FenceView:
        name = canonical(resource)
        sequencer = None if wanted.sequencer is None else Sequencer.parse(wanted.sequencer)
        said = FencingHeaders(Token.parse(wanted.token), name, wanted.holder)
        shown = said if sequencer is None else headers.proven(said, (sequencer,))
        presented = Presented(Token.parse(wanted.token), wanted.holder, sequencer=sequencer)
        if refused := await admission.admit([(name, presented)]):
            raise await audit.implausible(refused, attempt(request, principal, shown))
        decision, fence = await barrier(name, presented, principal.name)
        if not decision.passes:
            raise await audit.refused([(decision, fence)], attempt(request, principal, shown))
        return fence_view(name, fence)

    return router


def fence_view(resource: str, fence: Fence | None) -> FenceView:
    """A fence as it is shown; None: no token of the resource has been seen yet."""
    if fence is None:
        return FenceView(resource=resource, token=None, raised_by=None, caller=None, raised_at=None)
    return FenceView(
        resource=resource,
        token=str(fence.token),
        raised_by=fence.holder,
        caller=fence.caller,
        raised_at=fence.raised_at,
    )
