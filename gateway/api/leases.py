"""Leases, as their holders use them: acquire, renew, release. The state of locks, and breaking them.

No answer about the state of a lock has the id of a lease.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.authorisation import ApiAuthorisation
from gateway.api.fences import Barrier
from gateway.api.requests import MAX_PAGE, Authenticate, HolderName, ResourceName, TokenText, attempt, storable
from gateway.auth.grants import Action
from gateway.auth.principal import Principal
from gateway.errors import Forbidden, LeaseLost, RequestMalformed
from gateway.fencing.decision import Presented
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import Lease, LockMode, LockRequest, Renewal
from gateway.fencing.lease import LockState as Lock
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.http.problems import Problem
from gateway.http.raw_routes import RawRoute, body_of, read_body, while_connected
from gateway.leases.service import LeaseService
from gateway.observe.events import Observe, StepReached
from gateway.observe.stages import staged
from gateway.record.refusals import Audit

MAX_RENEWALS = 1000

Wait: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Ttl: TypeAlias = Annotated[
    float, Field(strict=True, allow_inf_nan=False, ge=0.1, description="Seconds that the lease lasts without renewal.")
]


class AcquireRequest(BaseModel):
    """A request for a lock."""

    model_config = ConfigDict(extra="forbid")

    holder: HolderName = Field(description="Unique to one process. The same holder gets the same lease again.")
    ttl: Ttl = 30.0
    wait: Wait = Field(default=0.0, description="Seconds to wait in the queue while another holder has the lock.")
    mode: LockMode = LockMode.EXCLUSIVE
    request: HolderName | None = Field(
        default=None,
        description="Unique to this request. With it, a client can retry, keep its place in the queue, and withdraw.",
    )
    barrier: bool = Field(
        default=False, strict=True, description="Raise the fence to the new token before answering, as a barrier does."
    )


class RenewRequest(BaseModel):
    """How long the lease lasts from now on. Without ``ttl``, it lasts as long as last time."""

    model_config = ConfigDict(extra="forbid")

    ttl: Ttl | None = None


class RenewalEntry(BaseModel):
    """A lease to renew."""

    model_config = ConfigDict(extra="forbid")

    resource: Annotated[str, Field(max_length=512)]
    lease: UUID
    ttl: Ttl | None = None


class RenewManyRequest(BaseModel):
    """Leases to renew in one request, independently of each other."""

    model_config = ConfigDict(extra="forbid")

    leases: list[RenewalEntry] = Field(max_length=MAX_RENEWALS)


class WithdrawRequest(BaseModel):
    """The request for a lock that is withdrawn."""

    model_config = ConfigDict(extra="forbid")

    holder: HolderName
    request: HolderName


class LeaseView(BaseModel):
    """A lease, as its holder sees it."""

    resource: str
    lease: UUID = Field(
        description="Identifies the lease when the holder renews or releases it. The holder keeps it secret."
    )
    holder: str
    mode: LockMode
    token: str
    sequencer: str | None = Field(description="The token with a proof of its issue; null without a signing key.")
    acquired_at: datetime = Field(description="By the database's clock.")
    expires_at: datetime = Field(description="By the database's clock. Do not compare it with your own.")
    expires_in: float = Field(
        description="Seconds that were left when the database answered. Count them from before you sent the request."
    )


class RenewedView(BaseModel):
    """The result of one renewal."""

    resource: str
    lease: UUID
    expires_in: float | None = Field(description="Seconds, as for one lease; null: the lease is lost.")


class RenewedList(BaseModel):
    """The results, in the order of the request."""

    leases: list[RenewedView]


ACQUIRE_BEFORE, ACQUIRE_AFTER = StepReached("leases.acquire.before"), StepReached("leases.acquire.after")
RENEW_BEFORE, RENEW_AFTER = StepReached("leases.renew.before"), StepReached("leases.renew.after")
RELEASE_BEFORE, RELEASE_AFTER = StepReached("leases.release.before"), StepReached("leases.release.after")


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The lock service with its limits. ``sign`` makes the sequencer of a resource, mode and token, if it has a key.

    ``lock_delay`` returns the delay of a resource. It, ``max_ttl`` and ``max_wait`` are in seconds. ``issuer`` is the
    origin of the gateway that issues the tokens; None if this gateway does.
    """

    service: LeaseService
    sign: Callable[[str, str, Token], str | None]
    lock_delay: Callable[[str], float]
    max_ttl: float
    max_wait: float
    issuer: str | None
    observe: Observe

    def acquisition(self, resource: str, wish: AcquireRequest, caller: str) -> LockRequest:
        """Return the request in the service's terms.

        Raises ``Forbidden``, ``RequestMalformed`` and ``ResourceMalformed``.
        """
        if self.issuer is not None:
            # Two issuers of tokens for one resource would each overtake the other's holders.
            raise Forbidden(f"This gateway issues no tokens. {self.issuer} does.", advice="Acquire the lock there.")
        if wish.wait > self.max_wait:
            raise RequestMalformed(
                f"body.wait: one request waits at most {self.max_wait:g} seconds here.",
                advice='Wait for less, then repeat with the same "request": it keeps its place in the queue.',
            )
        ttl, name = self.ttl(wish.ttl), canonical(resource)
        return LockRequest(name, wish.holder, caller, ttl, wish.mode, wish.wait, wish.request, self.lock_delay(name))

    def ttl(self, wanted: float) -> float:
        """Return ``wanted``. Raises ``RequestMalformed`` if it is longer than allowed."""
        if wanted > self.max_ttl:
            raise RequestMalformed(
                f"body.ttl: a lease lasts at most {self.max_ttl:g} seconds here.",
                advice="Ask for a shorter lease, and renew it while you need it.",
            )
        return wanted

    def renewal(self, resource: str, lease: UUID, caller: str, ttl: float | None) -> Renewal:
        """Return a renewal in the service's terms. Raises ``RequestMalformed`` and ``ResourceMalformed``."""
        return Renewal(canonical(resource), lease, caller, None if ttl is None else self.ttl(ttl))

    def answer(self, lease: Lease, status: int) -> Response:
        """Return a lease as the answer to its holder."""
        view = LeaseView(
            resource=lease.resource,
            lease=lease.id,
            holder=lease.holder,
            mode=lease.mode,
            token=str(lease.token),
            sequencer=self.sign(lease.resource, lease.mode, lease.token),
            acquired_at=lease.acquired_at,
            expires_at=lease.expires_at,
            expires_in=lease.expires_in,
        )
        return _answer(view, status)


@dataclass(frozen=True, slots=True)
class LeaseEndpoints:
    """The endpoints behind the routes."""

    locks: LeaseTerms
    barrier: Barrier
    audit: Audit
    authorisation: ApiAuthorisation
    caller: Authenticate

    async def acquire(self, request: Request, resource: ResourceName) -> Response:
        principal = self.caller(request)
        wish = await read_body(request, AcquireRequest)
        wanted = self.locks.acquisition(resource, wish, principal.name)
        self.locks.observe(ACQUIRE_BEFORE)
        acquiring = self.locks.service.acquire(wanted)
        granted = await (while_connected(request, acquiring) if wanted.wait else acquiring)
        self.locks.observe(ACQUIRE_AFTER)
        lease = granted.lease
        if wish.barrier:
            lease = await self._raised(lease, principal, request)
        return self.locks.answer(lease, 201 if granted.fresh else 200)

    async def _raised(self, lease: Lease, principal: Principal, request: Request) -> Lease:
        """Raise the barrier for a new lease, and return the renewed lease.

        Once this returns, no older write takes effect. If the barrier fails for now, the lease stays.
        """
        # Holders of a shared lock share its token. With their names they would be two holders of one token.
        holder = lease.holder if lease.mode is LockMode.EXCLUSIVE else None
        with staged(self.locks.observe, "leases", "barrier"):
            decision, fence = await self.barrier(lease.resource, Presented(lease.token, holder), principal.name)
        if not decision.passes:
            with suppress(LeaseLost):
                await self.locks.service.release(lease.resource, lease.id, lease.caller)
            refused = FencingHeaders(lease.token, lease.resource, holder)
            raise await self.audit.refused([(decision, fence)], attempt(request, principal, refused))
        # The barrier may have taken long. The holder starts with a full lease, or learns that it was lost.
        return await self.locks.service.renew(lease.resource, lease.id, lease.caller)

    async def renew(self, request: Request, resource: ResourceName, lease: str) -> Response:
        principal = self.caller(request)
        wish = await read_body(request, RenewRequest)
        one = self.locks.renewal(resource, _lease_id(lease), principal.name, wish.ttl)
        self.locks.observe(RENEW_BEFORE)
        renewed = await self.locks.service.renew(one.resource, one.lease, one.caller, one.ttl)
        self.locks.observe(RENEW_AFTER)
        return self.locks.answer(renewed, 200)

    async def renew_many(self, request: Request) -> Response:
        principal = self.caller(request)
        wish = await read_body(request, RenewManyRequest)
        wanted = [self.locks.renewal(one.resource, one.lease, principal.name, one.ttl) for one in wish.leases]
        resources = {one.resource for one in wanted}
        denied = {resource for resource in resources if not principal.rights.on(Action.LOCK, resource)}
        granted = [one for one in wanted if one.resource not in denied]
        self.authorisation.owns(one.resource for one in granted)
        if denied:
            # Together, so that they share batches: the granted leases go on running out meanwhile.
            await asyncio.gather(*(self._deny(request, principal, resource) for resource in sorted(denied)))
        self.locks.observe(RENEW_BEFORE)
        kept = zip(granted, await self.locks.service.renew_many(granted), strict=True)
        by_lease = {(one.resource, one.lease): lease for one, lease in kept}
        renewed = [by_lease.get((one.resource, one.lease)) for one in wanted]
        self.locks.observe(RENEW_AFTER)
        views = [
            RenewedView(resource=one.resource, lease=one.lease, expires_in=None if kept is None else kept.expires_in)
            for one, kept in zip(wanted, renewed, strict=True)
        ]
        return _answer(RenewedList(leases=views), 200)

    async def _deny(self, request: Request, principal: Principal, resource: str) -> None:
        """Put on record that a caller may not renew a lock. It loses this lock alone."""
        await self.authorisation.denied(request, principal, (Action.LOCK,), f"resource {resource}", resource)

    async def release(self, request: Request, resource: ResourceName, lease: str) -> Response:
        principal = self.caller(request)
        name, one = canonical(resource), _lease_id(lease)
        self.locks.observe(RELEASE_BEFORE)
        await self.locks.service.release(name, one, principal.name)
        self.locks.observe(RELEASE_AFTER)
        return Response(status_code=204)

    async def withdraw(self, request: Request, resource: ResourceName) -> Response:
        principal = self.caller(request)
        wish = await read_body(request, WithdrawRequest)
        name = canonical(resource)
        self.locks.observe(RELEASE_BEFORE)
        await self.locks.service.withdraw(name, wish.holder, principal.name, wish.request)
        self.locks.observe(RELEASE_AFTER)
        return Response(status_code=204)


_ACQUIRE = """
Gives the holder the lock if it is free, with a token higher than all before. The same holder of the same caller
gets the lease that it already has, and so does the same `request`. A client whose answer was lost simply retries.
With `wait` the request waits in the queue, in the order of arrival. A client that hangs up leaves the queue.
"""
_WITHDRAW = """
For a client that does not know whether it got the lock, and does not want it any more. The request leaves the queue,
or the lease is released.
"""
_LEASE = {"model": LeaseView}
_PROBLEM = {"model": Problem}
_LOST = {"model": Problem, "description": "The lease has expired, was released, or was broken."}
_ELSEWHERE = {"model": Problem, "description": "Another gateway issues the tokens."}
_FOREIGN = {"model": Problem, "description": "The lease belongs to another caller."}


def routes(
    locks: LeaseTerms, barrier: Barrier, audit: Audit, authorisation: ApiAuthorisation, caller: Authenticate
) -> APIRouter:
    """Build the routes of holders: ``/v1/leases`` and ``/v1/withdrawals``."""
    router = APIRouter(route_class=RawRoute, default_response_class=Response)
    endpoints = LeaseEndpoints(locks, barrier, audit, authorisation, caller)
    again = {"model": LeaseView, "description": "The holder already has the lock: the same lease with the same token."}
    router.post(
        "/v1/leases/{resource:path}",
        summary="Acquire a lock",
        description=_ACQUIRE,
        status_code=201,
        responses={201: _LEASE, 200: again, 403: _ELSEWHERE, **dict.fromkeys((409, 410, 412, 413), _PROBLEM)},
        openapi_extra=body_of(AcquireRequest),
    )(endpoints.acquire)
    router.put(
        "/v1/leases/{resource:path}/{lease}",
        summary="Renew a lease",
        description="A lost lease cannot be renewed, even if no other holder has taken the lock meanwhile.",
        responses={200: _LEASE, 403: _FOREIGN, 410: _LOST, 413: _PROBLEM},
        openapi_extra=body_of(RenewRequest),
    )(endpoints.renew)
    router.delete(
        "/v1/leases/{resource:path}/{lease}",
        summary="Release a lease",
        status_code=204,
        responses={403: _FOREIGN, 410: _LOST},
    )(endpoints.release)
    router.put(
        "/v1/leases",
        summary="Renew many leases",
        description=f"Up to {MAX_RENEWALS:,}, independently of each other. A lease of another caller counts as lost.",
        responses={200: {"model": RenewedList}, 413: _PROBLEM},
        openapi_extra=body_of(RenewManyRequest),
    )(endpoints.renew_many)
    router.post(
        "/v1/withdrawals/{resource:path}",
        summary="Withdraw a request for a lock",
        description=_WITHDRAW,
        status_code=204,
        responses={413: _PROBLEM},
        openapi_extra=body_of(WithdrawRequest),
    )(endpoints.withdraw)
    return router


def _answer(view: BaseModel, status: int) -> Response:
    """Return an answer that no cache may keep, because the id of a lease is enough to end it."""
    return Response(view.model_dump_json(), status, {"Cache-Control": "no-store"}, "application/json")


def _lease_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RequestMalformed(
            "The last part of the path is not the id of a lease.",
            advice='Use the path /v1/leases/{resource}/{lease}, with the "lease" from the answer to acquiring it.',
        ) from None


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


def administration_routes(locks: LeaseTerms, caller: Authenticate) -> APIRouter:
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
