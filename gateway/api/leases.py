"""Leases, as their holders use them: acquire, renew, release. The state of locks, and breaking them.

No answer about the state of a lock has the id of a lease.
"""

import asyncio
from asyncio import Future
from collections.abc import Coroutine
from contextlib import suppress
from datetime import datetime
from time import perf_counter
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.authorisation import LIST, LOCK, LOOK, About, Rule
from gateway.api.description import Subject
from gateway.api.requests import (
    STORABLE,
    HolderName,
    NamesQuery,
    NextName,
    ResourceName,
    ShownToken,
    TokenText,
    storable,
)
from gateway.api.routes import Begun, Call, Routes, json
from gateway.api.services import Services
from gateway.auth.grants import Action
from gateway.db.leases import LockAnswer
from gateway.errors import LeaseLost, RequestMalformed, Unavailable
from gateway.fencing.decision import Presented
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.lease import LONGEST, LONGEST_WAIT, SHORTEST, Granted, Lease, LockMode, LockRequest, Renewal
from gateway.fencing.ownership import Ownership
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token
from gateway.http.streaming import while_connected
from gateway.leases import terms
from gateway.leases.service import Ended
from gateway.observe.stages import staged

routes = Routes(Subject.LOCKS)

MAX_RENEWALS = 1000

# A gateway's own limits may be lower. Its errors say them, and the next step.
Wait: TypeAlias = Annotated[
    float, Field(strict=True, allow_inf_nan=False, ge=0, json_schema_extra={"maximum": LONGEST_WAIT})
]
LeaseId: TypeAlias = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
Ttl: TypeAlias = Annotated[
    float,
    Field(
        strict=True,
        allow_inf_nan=False,
        ge=SHORTEST,
        description="Seconds that the lease lasts without renewal.",
        json_schema_extra={"maximum": LONGEST},
    ),
]


class AcquireRequest(BaseModel):
    """A request for a lock."""

    model_config = ConfigDict(extra="forbid")

    holder: HolderName = Field(description="Unique to one process. The same holder gets the same lease again.")
    ttl: Ttl = terms.USUAL
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

    resource: Annotated[ResourceName, Field(max_length=512)]
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


def _answer(services: Services, lease: Lease, status: int) -> Response:
    """Return a lease as the answer to its holder. No cache keeps it, because the id of a lease is enough to end it."""
    view = LeaseView(
        resource=lease.resource,
        lease=lease.id,
        holder=lease.holder,
        mode=lease.mode,
        token=str(lease.token),
        sequencer=services.signer.sign(lease.resource, lease.mode, lease.token),
        acquired_at=lease.acquired_at,
        expires_at=lease.expires_at,
        expires_in=lease.expires_in,
    )
    return json(view, status, private=True)


_LEASE = Rule(About.RESOURCE, (Action.LOCK,), held=True)
_ACQUIRE = """
Gives the holder the lock if it is free, with a token higher than all before. The same holder of the same caller
gets the lease that it already has, and so does the same `request`. A client whose answer was lost simply retries.
With `wait` the request waits in the queue, in the order of arrival. A client that hangs up leaves the queue.
"""
_WITHDRAW = """
For a client that does not know whether it got the lock, and does not want it any more. The request leaves the queue,
or the lease is released.
"""
_LOST = "The lease has expired, was released, or was broken."
_ELSEWHERE = "Another gateway issues the tokens."
_FOREIGN = "The lease belongs to another caller."
_AGAIN = "The holder already has the lock: the same lease with the same token."


def _owners(ownership: Ownership, body: RenewManyRequest) -> list[str]:
    return [ownership.of_resource(one.resource) for one in body.leases]


def _wish(caller: str, resource: str, body: AcquireRequest) -> LockRequest:
    return LockRequest(resource, body.holder, caller, body.ttl, body.mode, body.wait, body.request)


def _begin_acquire(services: Services, caller: str, /, resource: str, body: AcquireRequest) -> Begun | None:
    began, wish = perf_counter(), _wish(caller, resource, body)
    asked = None if body.barrier else services.leases.ask(wish)

    def answer(asked: "Future[LockAnswer | None]") -> Response | None:
        granted = services.leases.granted_now(wish, asked, began)
        return None if granted is None else _answer(services, granted, 201)

    return None if asked is None else Begun(asked, answer)


@routes.add(
    "POST /v1/leases/{resource:path}",
    LOCK,
    "Acquire a lock",
    description=_ACQUIRE,
    direct=_begin_acquire,
    status=201,
    answer=LeaseView,
    answers={200: (LeaseView, _AGAIN), 403: _ELSEWHERE, **dict.fromkeys((409, 410, 412), "")},
)
async def acquire(call: Call, resource: ResourceName, body: AcquireRequest) -> Response:
    wish = _wish(call.principal.name, resource, body)
    acquiring = call.services.leases.acquire(wish, call.asked)
    granted = await (_while_connected(call.request, acquiring) if wish.wait else acquiring)
    lease = await _raised(call, granted.lease) if body.barrier else granted.lease
    return _answer(call.services, lease, 201 if granted.fresh else 200)


async def _while_connected(request: Request, acquiring: Coroutine[Any, Any, Granted]) -> Granted:
    """Return what is granted. Raises ``RequestMalformed`` if the client has hung up, ``Unavailable`` at the end."""
    async with while_connected(acquiring, request.scope["state"], request.receive) as (working, leaving):
        if working.done():
            return working.result()
        if leaving.done():
            raise RequestMalformed("The client has hung up.")
        raise Unavailable(
            "This gateway is being stopped.",
            advice='Repeat the request: another gateway answers it. With a "request" it keeps its place for now.',
        )


async def _raised(call: Call, lease: Lease) -> Lease:
    """Raise the barrier for a new lease, and return the renewed lease.

    Once this returns, no older write takes effect. If the barrier fails for now, the lease stays.
    """
    # Holders of a shared lock share its token. With their names they would be two holders of one token.
    holder = lease.holder if lease.mode is LockMode.EXCLUSIVE else None
    services = call.services
    with staged(services.observe, "leases", "barrier"):
        decision, fence = await services.barrier(lease.resource, Presented(lease.token, holder), call.principal.name)
    if not decision.passes:
        with suppress(LeaseLost):
            await services.leases.release(lease.resource, lease.id, lease.caller)
        refused = FencingHeaders(lease.token, lease.resource, holder)
        raise await services.audit.refused([(decision, fence)], call.attempt(refused))
    # The barrier may have taken long. The holder starts with a full lease, or learns that it was lost.
    return await services.leases.renew(Renewal(lease.resource, lease.id, lease.caller))


def _begin_renewal(services: Services, caller: str, /, resource: str, lease: str, body: RenewRequest) -> Begun:
    began = perf_counter()

    def answer(asked: "Future[Lease | bool]") -> Response | None:
        renewed = services.leases.renewed_now(asked, began)
        return None if renewed is None else _answer(services, renewed, 200)

    return Begun(services.leases.ask_to_renew(Renewal(resource, _lease_id(lease), caller, body.ttl)), answer)


@routes.add(
    "PUT /v1/leases/{resource:path}/{lease}",
    _LEASE,
    "Renew a lease",
    direct=_begin_renewal,
    description="A lost lease cannot be renewed, even if no other holder has taken the lock meanwhile.",
    answer=LeaseView,
    answers={403: _FOREIGN, 410: _LOST},
)
async def renew(call: Call, resource: ResourceName, lease: LeaseId, body: RenewRequest) -> Response:
    renewal = Renewal(resource, _lease_id(lease), call.principal.name, body.ttl)
    return _answer(call.services, await call.services.leases.renew(renewal, call.asked), 200)


def _begin_release(services: Services, caller: str, /, resource: str, lease: str) -> Begun | None:
    began, asked = perf_counter(), services.leases.ask_to_release(resource, _lease_id(lease), caller)

    def answer(asked: "Future[Ended | None]") -> Response | None:
        return Response(status_code=204) if services.leases.released_now(asked, began) else None

    return None if asked is None else Begun(asked, answer)


@routes.add(
    "DELETE /v1/leases/{resource:path}/{lease}",
    _LEASE,
    "Release a lease",
    direct=_begin_release,
    status=204,
    answers={403: _FOREIGN, 410: _LOST},
)
async def release(call: Call, resource: ResourceName, lease: LeaseId) -> None:
    await call.services.leases.release(resource, _lease_id(lease), call.principal.name, call.asked)


@routes.add(
    "PUT /v1/leases",
    Rule(About.BODY, (Action.LOCK,)),
    "Renew many leases",
    description=f"Up to {MAX_RENEWALS:,}, independently of each other. A lease of another caller counts as lost.",
    limit=1024 * 1024,  # a program renews all its leases in one request
    owners=_owners,
    answers={422: "The resources are of several databases."},
)
async def renew_many(call: Call, body: RenewManyRequest) -> RenewedList:
    principal, authorisation = call.principal, call.services.authorisation
    wanted = [Renewal(canonical(one.resource), one.lease, principal.name, one.ttl) for one in body.leases]
    resources = {one.resource for one in wanted}
    denied = {resource for resource in resources if not principal.rights.on(Action.LOCK, resource)}
    granted = [one for one in wanted if one.resource not in denied]
    authorisation.owns([one.resource for one in granted])
    if denied:
        # Together, so that they share batches: the granted leases go on running out meanwhile. Each caller that
        # may not renew a lock loses this lock alone, on record.
        await asyncio.gather(
            *(
                authorisation.denied(call.request, principal, (Action.LOCK,), f"resource {resource}", resource)
                for resource in sorted(denied)
            )
        )
    kept = zip(granted, await call.services.leases.renew_many(granted), strict=True)
    by_lease = {(one.resource, one.lease): lease for one, lease in kept}
    renewed = [by_lease.get((one.resource, one.lease)) for one in wanted]
    return RenewedList(
        leases=[
            RenewedView(resource=one.resource, lease=one.lease, expires_in=None if kept is None else kept.expires_in)
            for one, kept in zip(wanted, renewed, strict=True)
        ]
    )


@routes.add(
    "POST /v1/withdrawals/{resource:path}",
    LOCK,
    "Withdraw a request for a lock",
    description=_WITHDRAW,
    status=204,
)
async def withdraw(call: Call, resource: ResourceName, body: WithdrawRequest) -> None:
    await call.services.leases.withdraw(resource, body.holder, call.principal.name, body.request)


def _lease_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RequestMalformed(
            "The last part of the path is not the id of a lease.",
            advice='Use the path /v1/leases/{resource}/{lease}, with the "lease" from the answer to acquiring it.',
        ) from None


class HoldView(BaseModel):
    """A holder of the lock."""

    model_config = ConfigDict(from_attributes=True)

    holder: str
    caller: str
    mode: LockMode
    token: ShownToken
    acquired_at: datetime = Field(description="By the database's clock.")
    expires_at: datetime = Field(description="By the database's clock.")
    expires_in: float = Field(description="Seconds.")


class WaiterView(BaseModel):
    """A request in the queue."""

    model_config = ConfigDict(from_attributes=True)

    holder: str
    caller: str
    mode: LockMode
    since: datetime


class LockView(BaseModel):
    """The state of a lock."""

    model_config = ConfigDict(from_attributes=True)

    resource: str
    mode: LockMode | None = Field(description="How the lock is held; null if it is free.")
    token: ShownToken | None = Field(description="The last token issued; null if there was none.")
    holders: list[HoldView]
    waiters: int
    queue: list[WaiterView] = Field(description="The first waiting requests, in their order.")
    delayed_for: float | None = Field(
        description="Seconds until the lock opens after its holder was lost; null without a delay."
    )


class LockList(BaseModel):
    locks: list[LockView]
    after: NextName


class BreakRequest(BaseModel):
    """The token whose leases are ended, and the reason."""

    model_config = ConfigDict(extra="forbid")

    expected: TokenText = Field(
        description="The token of the lease or leases. If it is another one by now, nothing happens."
    )
    reason: Annotated[str, Field(min_length=1, max_length=500, json_schema_extra=STORABLE)]


@routes.add("GET /v1/leases", LIST, "List the locks that are held, by name")
async def list_locks(call: Call, query: NamesQuery) -> LockList:
    found = await call.services.leases.listed(query.prefix, query.after, query.limit)
    return LockList(
        locks=[LockView.model_validate(one) for one in found],
        after=query.following([one.resource for one in found]),
    )


@routes.add("GET /v1/leases/{resource:path}", Rule(About.RESOURCE, LOOK), "Read the state of a lock")
async def read_lock(call: Call, resource: ResourceName) -> LockView:
    return LockView.model_validate(await call.services.leases.inspect(resource))


@routes.add(
    "POST /v1/breaks/{resource:path}",
    Rule(About.RESOURCE, (Action.BREAK,), held=True),
    "End another holder's lease",
    description="Needs the grant `break`. Every lease with exactly this token ends as if it had expired, on record.",
    answers={409: "No holder has the lock with this token."},
)
async def break_lock(call: Call, resource: ResourceName, body: BreakRequest) -> LockView:
    expected, reason = Token.parse(body.expected), storable(body.reason) or ""
    lock = await call.services.leases.break_lock(resource, expected, call.principal.name, reason)
    return LockView.model_validate(lock)
