"""Locks, as anybody may see them, and as an administrator may break them. No id of a lease is shown here."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.leases import LeaseTerms
from gateway.api.requests import MAX_PAGE, Authenticate, ResourceName, TokenText, check_administrator, storable
from gateway.auth.principal import Principal
from gateway.fencing.lease import LockView as Lock
from gateway.fencing.lease import Mode
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.observe.events import StepReached

BREAK_BEFORE, BREAK_AFTER = StepReached("leases.break.before"), StepReached("leases.break.after")


class HoldView(BaseModel):
    """Somebody who has the lock."""

    holder: str
    caller: str
    mode: Mode
    token: str
    acquired_at: datetime = Field(description="By the database's clock.")
    expires_at: datetime = Field(description="By the database's clock.")
    expires_in: float = Field(description="Seconds.")


class WaiterView(BaseModel):
    """Somebody in the queue."""

    holder: str
    caller: str
    mode: Mode
    since: datetime


class LockView(BaseModel):
    """How a lock stands."""

    resource: str
    mode: Mode | None = Field(description="How it is held; null where it is not.")
    token: str | None = Field(description="The last one issued; null where none ever was.")
    holders: list[HoldView]
    waiters: int
    queue: list[WaiterView] = Field(description="The first of those who wait, in their order.")
    delayed_for: float | None = Field(
        description="Seconds for which nobody gets the lock, because its holder was lost; null where nothing delays it."
    )


class LockList(BaseModel):
    locks: list[LockView]
    after: str | None = Field(description="Pass as ``after`` for the next page; null on the last one.")


class BreakRequest(BaseModel):
    """Whose hold is to be ended, and why."""

    model_config = ConfigDict(extra="forbid")

    expected: TokenText = Field(
        description="The token of the lease or leases. Nothing happens if it is another by now."
    )
    reason: Annotated[str, Field(min_length=1, max_length=500)]


def routes(locks: LeaseTerms, caller: Authenticate) -> APIRouter:
    """``/v1/leases`` for those who look, and ``/v1/breaks``."""
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

    @router.get("/v1/leases/{resource:path}", summary="Read how a lock stands", dependencies=[Depends(caller)])
    async def read_lock(resource: ResourceName) -> LockView:
        return _lock_view(await service.inspect(canonical(resource)))

    @router.post(
        "/v1/breaks/{resource:path}",
        summary="End somebody else's lease",
        description="For administrators. It ends every lease with exactly this token, on record, as if it had lapsed.",
        responses={
            403: {"model": Problem, "description": "The caller is no administrator."},
            409: {"model": Problem, "description": "Nobody has the lock with this token."},
        },
    )
    async def break_lock(
        resource: ResourceName, wanted: BreakRequest, principal: Annotated[Principal, Depends(caller)]
    ) -> LockView:
        check_administrator(principal, "Ask an administrator, or wait until the lease has lapsed.")
        name, expected = canonical(resource), Token.parse(wanted.expected)
        reason = storable(wanted.reason) or ""
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
