"""The state of locks, for every caller, and breaking them, for administrators. No id of a lease is shown here."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.leases import LeaseTerms
from gateway.api.requests import MAX_PAGE, Authenticate, ResourceName, TokenText, storable
from gateway.auth.principal import Principal
from gateway.fencing.lease import LockMode
from gateway.fencing.lease import LockState as Lock
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.observe.events import StepReached

BREAK_BEFORE, BREAK_AFTER = StepReached("leases.break.before"), StepReached("leases.break.after")


class HoldView(BaseModel):
    """A holder of the lock."""

    holder: str
    caller: str
    mode: LockMode
    token: str
    acquired_at: datetime = Field(description="By the database's clock.")
    expires_at: datetime = Field(description="By the database's clock.")
    expires_in: float = Field(description="Seconds.")


class WaiterView(BaseModel):
    """A request in the queue."""

    holder: str
    caller: str
    mode: LockMode
    since: datetime


class LockView(BaseModel):
    """The state of a lock."""

    resource: str
    mode: LockMode | None = Field(description="How the lock is held; null if it is free.")
    token: str | None = Field(description="The last token issued; null if there was none.")
    holders: list[HoldView]
    waiters: int
    queue: list[WaiterView] = Field(description="The first waiting requests, in their order.")
    delayed_for: float | None = Field(
        description="Seconds until the lock opens after its holder was lost; null without a delay."
    )


class LockList(BaseModel):
    locks: list[LockView]
    after: str | None = Field(description="Pass as ``after`` for the next page; null on the last one.")


class BreakRequest(BaseModel):
    """The token whose leases are ended, and the reason."""

    model_config = ConfigDict(extra="forbid")

    expected: TokenText = Field(
        description="The token of the lease or leases. If it is another one by now, nothing happens."
    )
    reason: Annotated[str, Field(min_length=1, max_length=500)]


def routes(locks: LeaseTerms, caller: Authenticate) -> APIRouter:
    """Build the read-only routes of ``/v1/leases``, and ``/v1/breaks``."""
    router = APIRouter()
    service = locks.service

    @router.get("/v1/leases", summary="List the locks that are held, by name", dependencies=[Depends(caller)])
    async def list_locks(
        prefix: Annotated[str, Query(max_length=512)] = "",
        after: Annotated[str, Query(max_length=512)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> LockList:
        found = await service.listed(storable(prefix) or "", storable(after) or "", limit)
        return LockList(
            locks=[_lock_view(one) for one in found], after=found[-1].resource if len(found) == limit else None
        )

    @router.get("/v1/leases/{resource:path}", summary="Read the state of a lock", dependencies=[Depends(caller)])
    async def read_lock(resource: ResourceName) -> LockView:
        return _lock_view(await service.inspect(canonical(resource)))

    @router.post(
        "/v1/breaks/{resource:path}",
        summary="End another holder's lease",
        description="Needs the grant `break`. Every lease with exactly this token ends as if it had expired, "
        "on record.",
        responses={
            403: {"model": Problem, "description": "The caller lacks the grant."},
            409: {"model": Problem, "description": "No holder has the lock with this token."},
        },
    )
    async def break_lock(
        resource: ResourceName, body: BreakRequest, principal: Annotated[Principal, Depends(caller)]
    ) -> LockView:
        name, expected = canonical(resource), Token.parse(body.expected)
        reason = storable(body.reason) or ""
        locks.observe(BREAK_BEFORE)
        lock = await service.break_lock(name, expected, principal.name, reason)
        locks.observe(BREAK_AFTER)
        return _lock_view(lock)

    return router


def _lock_view(lock: Lock) -> LockView:
    holders = [
        HoldView(
            holder=hold.holder,
            caller=hold.caller,
            mode=hold.mode,
            token=str(hold.token),
            acquired_at=hold.acquired_at,
            expires_at=hold.expires_at,
            expires_in=hold.expires_in,
        )
        for hold in lock.holders
    ]
    queue = [WaiterView(holder=one.holder, caller=one.caller, mode=one.mode, since=one.since) for one in lock.queue]
    return LockView(
        resource=lock.resource,
        mode=lock.mode,
        token=None if lock.token is None else str(lock.token),
        holders=holders,
        waiters=lock.waiters,
        queue=queue,
        delayed_for=lock.delayed_for,
    )
