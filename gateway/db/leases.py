"""Locks, leases and queues: the functions that decide about them, and how they stand.

Statements of several askers share a trip, and rather fail than wait. ``patient``: they wait as long as the look at the
lock takes, as for an asker whose shared trip has failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.db.database import Database, Record
from gateway.db.pool import columns, load
from gateway.fencing.lease import Hold, Lease, LockMode, LockRequest, LockState, Renewal, Waiter
from gateway.fencing.token import Token

_SQL = load("leases")


class LockOutcome(StrEnum):
    GRANTED = "granted"
    WAITING = "waiting"
    HELD = "held"
    UPGRADE = "upgrade"
    """The holder shares the lock already, and wants it alone."""
    EXHAUSTED = "exhausted"


class ReleaseOutcome(StrEnum):
    RELEASED = "released"
    LOST = "lost"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """The progress of a lock's queue. All tickets up to ``handed`` have been served or are dead; None if none was
    served. There may be more to hand over in ``look_in`` seconds; None without waiters.
    """

    resource: str
    handed: int | None
    look_in: float | None


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The answer to a wish. ``lease``: the one granted, or one that is in the way. ``place``: in the queue, from 1."""

    outcome: LockOutcome
    lease: Lease | None
    turn: QueueTurn
    fresh: bool
    ticket: int | None = None
    place: int | None = None
    delayed_for: float | None = None


async def acquire(database: Database, wishes: Sequence[LockRequest], *, patient: bool = False) -> list[LockAnswer]:
    """Ask for locks, in one transaction. They are in the order of their names.

    To ask twice is to ask once: ``OutcomeUnknown`` is cleared up by asking again.
    """
    rows = await database.fetchmany_write(_SQL["acquire"], [_wish(one) for one in wishes], patient=patient)
    return [_asked(wanted, row) for wanted, row in zip(wishes, rows, strict=True)]


async def acquire_free(database: Database, wishes: Sequence[LockRequest]) -> list[LockAnswer | None]:
    """Ask for locks that are free, in one statement. None for each that is not: ``acquire`` gives its answer."""
    columns_of = ((one.resource, one.holder, one.caller, one.mode, one.request, one.ttl, one.delay) for one in wishes)
    rows = await database.fetchmany_write(_SQL["acquire_free"], [columns(columns_of, 7)])
    granted = {lease.resource: lease for lease in map(_lease, rows)}  # the first wish for a lock has it
    return [_granted(granted.pop(one.resource, None)) for one in wishes]


async def renew(database: Database, renewals: Sequence[Renewal], *, patient: bool = False) -> list[Lease | bool]:
    """Renew leases in one statement, in the order of names and ids. Return each lease, or whether it is another
    caller's.
    """
    arguments = columns(((one.resource, one.lease, one.caller, one.ttl) for one in renewals), 4)
    rows = await database.fetchmany_write(_SQL["renew"], [arguments], patient=patient)
    return [bool(row["forbidden"]) if row["expires_in"] is None else _lease(row) for row in rows]


async def release(
    database: Database, leases: Sequence[tuple[str, UUID, str]], *, patient: bool = False
) -> list[tuple[ReleaseOutcome, QueueTurn]]:
    """End leases (resource, id, caller), in one transaction. They are in the order of their names."""
    rows = await database.fetchmany_write(_SQL["release"], leases, patient=patient)
    return [(ReleaseOutcome(row["outcome"]), _turn(lease[0], row)) for lease, row in zip(leases, rows, strict=True)]


async def release_free(
    database: Database, leases: Sequence[tuple[str, UUID, str]]
) -> list[tuple[ReleaseOutcome, QueueTurn] | None]:
    """End leases (resource, id, caller) of locks without waiters, in one statement. None for each other one."""
    rows = await database.fetchmany_write(_SQL["release_free"], [columns(leases, 3)])
    ended = {tuple(row): (ReleaseOutcome.RELEASED, _still(row["resource"])) for row in rows}
    return [ended.pop(lease, None) for lease in leases]  # a lease ends for the first of those that ask


async def withdraw(database: Database, resource: str, holder: str, caller: str, request: str) -> QueueTurn:
    (row,) = await database.fetch_write(_SQL["withdraw"], resource, holder, caller, request)
    return _turn(resource, row)


async def leave(
    database: Database, attendant: UUID, places: Sequence[tuple[str, int]], linger: float
) -> list[QueueTurn]:
    """Waiters (resource, ticket) wait no longer; those that have named a request stay in the queue for ``linger``."""
    rows = await database.fetch_write(_SQL["leave"], attendant, *columns(places, 2), linger)
    return [_turn(row["resource"], row) for row in rows]


async def break_lock(
    database: Database, resource: str, expected: Token, caller: str, reason: str
) -> tuple[int, QueueTurn]:
    """End every lease with exactly this token, on record; how many there were."""
    (row,) = await database.fetch_write(_SQL["break"], resource, expected.epoch, expected.value, caller, reason)
    return row["broken"], _turn(resource, row)


async def advance(database: Database, resources: Sequence[str], *, patient: bool = False) -> list[QueueTurn]:
    """Look at locks, in one transaction and in the order of their names: end what has lapsed, and hand over."""
    rows = await database.fetchmany_write(_SQL["advance"], [(one,) for one in resources], patient=patient)
    return [_turn(resource, row) for resource, row in zip(resources, rows, strict=True)]


async def send_heartbeat(database: Database, attendant: UUID, attended: float) -> tuple[frozenset[int], Sequence[str]]:
    """Let a gateway be heard of for another ``attended`` seconds.

    Return the tickets of its waiters that are in queues, and locks that need a look.
    """
    (row,) = await database.fetch_write(_SQL["attend"], attendant, attended)
    return frozenset(row["waiting"]), row["due"]


async def read_places(database: Database, attendant: UUID, tickets: Sequence[int]) -> list[tuple[str, int]]:
    """Places of a gateway (resource, ticket) by their tickets, as far as they are there."""
    return [(row["resource"], row["ticket"]) for row in await database.fetch(_SQL["places"], attendant, tickets)]


async def list_lapsed(database: Database, limit: int) -> list[str]:
    """Return at most ``limit`` names of locks with lapsed leases that were not looked at since."""
    return [row["resource"] for row in await database.fetch(_SQL["lapsed"], limit)]


async def forget(database: Database) -> None:
    """Delete places in queues that have long had no waiter."""
    await database.fetch_write(_SQL["forget_waiters"])
    await database.fetch_write(_SQL["forget_attendants"])


async def read_locks(database: Database, resources: Sequence[str], queue: int) -> list[LockState]:
    """How locks stand, in the order of their names; each with the first ``queue`` of its waiters."""
    return [_view(row) for row in await database.fetch(_SQL["views"], resources, queue)]


async def list_held(database: Database, prefix: str, after: str, limit: int) -> list[str]:
    """At most ``limit`` names of locks that are held, that start with ``prefix`` and sort after ``after``."""
    return [row["resource"] for row in await database.fetch(_SQL["held"], prefix, after, limit)]


def _wish(wanted: LockRequest) -> tuple[object, ...]:
    who, place = (wanted.resource, wanted.holder, wanted.caller), wanted.place
    where = (None, None, None) if place is None else (place.attendant, place.attended, place.collect)
    return (*who, wanted.mode, wanted.request, wanted.ttl, wanted.delay, *where)


def _asked(wanted: LockRequest, row: Record) -> LockAnswer:
    return LockAnswer(
        LockOutcome(row["outcome"]),
        None if row["expires_in"] is None else _lease(row),
        _turn(wanted.resource, row),
        bool(row["fresh"]),
        row["ticket"],
        row["place"],
        row["delayed_for"],
    )


def _granted(lease: Lease | None) -> LockAnswer | None:
    return None if lease is None else LockAnswer(LockOutcome.GRANTED, lease, _still(lease.resource), fresh=True)


def _still(resource: str) -> QueueTurn:
    return QueueTurn(resource, None, None)


def _turn(resource: str, row: Record) -> QueueTurn:
    return QueueTurn(resource, row["handed"], row["look_in"])


def _lease(row: Record) -> Lease:
    lease = row["lease"]
    return Lease(*_held(lease), row["expires_in"], lease["resource"], lease["id"])


def _view(row: Record) -> LockState:
    issued = row["value"] is not None and (row["epoch"], row["value"]) != (0, 0)
    return LockState(
        row["resource"],
        Token(row["epoch"], row["value"]) if issued else None,
        tuple(
            Hold(*_held(lease), max(0.0, (lease["expires_at"] - row["now"]).total_seconds())) for lease in row["leases"]
        ),
        row["waiters"],
        tuple(
            Waiter(waiter["holder"], waiter["caller"], LockMode(waiter["mode"]), waiter["since"])
            for waiter in row["queue"]
        ),
        row["delayed_for"],
    )


def _held(lease: Record) -> tuple[str, str, LockMode, Token, datetime, datetime]:
    mode, token = LockMode(lease["mode"]), Token(lease["epoch"], lease["value"])
    return lease["holder"], lease["caller"], mode, token, lease["acquired_at"], lease["expires_at"]
