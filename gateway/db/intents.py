"""Intents, forbidden ETags and known objects: the part of the object protocol that lives in Postgres."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db.database import Claims, Database, Record, Transaction
from gateway.db.fences import fence_or_none
from gateway.db.pool import load
from gateway.fencing.decision import Decision, Enforcement, Equal, Presented
from gateway.fencing.intent import (
    ABSENCE,
    Announcement,
    Begin,
    Begun,
    Finish,
    ForbiddenETag,
    ForbiddenETags,
    Intent,
    KnownObject,
    MutationKind,
    Raised,
    Spent,
)
from gateway.fencing.token import Token, pair

_SQL = load("intents")
_RAISE = load("fences")["raise"]


def statement(asked: Begin) -> str:
    """Return the statement of a begin. Begins with one statement may share a round trip."""
    return _SQL["begin" if asked.looked is None else "begin_looked"]


def size(asked: Begin | Finish) -> int:
    """Return the bytes of the values, about."""
    write = asked.write
    named = len(write.resource) + len(write.bucket) + 4 * len(write.key)
    if isinstance(asked, Finish):
        return 128 + named + sum(map(len, asked.spent))
    return 256 + named + len(write.caller) + sum(map(len, asked.outcomes or ())) + 32 * len(asked.over)


async def begin(database: Database, asked: Sequence[Begin], *, patient: bool = False) -> list[Begun]:
    """Claim and announce writes with the same statement, in one transaction and round trip.

    If one of them fails, none is announced. Raise ``SqlError`` FN503 if the naming of a bucket is not the one to prove.
    ``patient``: on a session that waits longer.
    """

    def claims(rows: list[Record]) -> Claims:
        return [claim for one, row in zip(asked, rows, strict=True) for claim in _begin_claims(one, row)]

    values = list(map(_begin_values, asked))
    rows = await database.fetchmany_claim(statement(asked[0]), values, claims, objects=True, patient=patient)
    return list(map(_begun, asked, rows))


def _begin_values(asked: Begin) -> tuple[object, ...]:
    write, looked = asked.write, asked.looked
    presented = write.presented
    return (
        write.resource,
        *pair(presented.token if presented else None),
        presented.holder if presented else None,
        write.caller,
        write.equal is Equal.STRICT,
        write.mode is Enforcement.OBSERVE,
        write.bucket,
        write.key,
        write.write_id,
        write.attempt,
        looked is not None,
        looked.etag if looked else None,
        looked.tombstone if looked else None,
        write.kind,
        write.upload_id,
        asked.dead_after,
        write.entombs,
        write.removes,
        None if asked.outcomes is None else list(asked.outcomes),
        write.housekeeping,
        asked.calm,
        [intent.write_id for intent in asked.over],
        [intent.attempt for intent in asked.over],
        asked.signed_at,
        asked.store_time,
        asked.naming,
    )


def _begin_claims(asked: Begin, row: Record) -> Claims:
    presented = asked.write.presented
    return _claims(asked.write.resource, presented.token if presented else None, row)


def _begun(asked: Begin, row: Record) -> Begun:
    return Begun(
        decision=None if row["decision"] is None else Decision(row["decision"]),
        fence=fence_or_none(row["fence"]),
        pending=_intents(row["pending"]),
        signed_at=row["signed_at"],
        waited=tuple(ForbiddenETag(one["etag"], one["dead_at"]) for one in row["forbidden"] or ()),
        key=KnownObject(row["etag"], bool(row["tombstone"])),
        differs=asked.looked is not None and bool(row["differs"]),
        spent=tuple(
            Spent(one["etag"], Token(one["epoch"], one["value"]), one["dead_at"]) for one in row["spent"] or ()
        ),
        over=() if row["signed_at"] is None else asked.over,
        term=row["term"],
    )


async def finish(database: Database, asked: Sequence[Finish], *, patient: bool = False) -> list[bool]:
    """Forget intents, in one transaction and round trip. False: it is being settled, or was settled and is gone.

    ``patient``: as of ``begin``.
    """
    rows = await database.fetchmany_write(_SQL["finish"], list(map(_finish_values, asked)), patient=patient)
    return [bool(row["undisturbed"]) for row in rows]


def _finish_values(asked: Finish) -> tuple[object, ...]:
    return *_which(asked.write), asked.etag, asked.tombstone, asked.certain, list(asked.spent)


async def abandon(database: Database, write: Announcement, spent: Sequence[str] = ()) -> None:
    """One's own mutation can have no effect any more: forget it. ``spent``: as of ``finish``."""
    await database.fetchrow_write(_SQL["abandon"], *_which(write), list(spent))


async def forget_spent(database: Database, store_time: datetime, limit: int) -> int:
    """Forget conditions of requests that the store refuses by now, by its own clock; how many there were."""

    async def forget(transaction: Transaction) -> int:
        return len(await transaction.fetch(_SQL["forget_spent"], store_time, limit))

    return await database.run(forget)


async def settle(database: Database, intent: Intent, *, seen: bool, spent: Sequence[str] = ()) -> None:
    """Forget a mutation that can have no further effect. An older holder's goes on record.

    ``seen``: it was seen to have taken effect. ``spent``: as of ``finish``.
    """
    await database.fetchrow_write(_SQL["settle"], *_which(intent), seen, list(spent))


async def forbid(database: Database, intent: Intent, store_time: datetime | None = None) -> ForbiddenETags:
    """Forbid the ETag the intent is conditioned on until the intent is dead, and mark it as being settled.

    Durable when this returns. ``store_time``: as of ``begin``.
    """
    (row,) = await database.fetch_write(
        _SQL["forbid"],
        intent.resource,
        intent.bucket,
        intent.key,
        ABSENCE if intent.expected is None else intent.expected,
        intent.write_id,
        intent.attempt,
        intent.dead_at,
        store_time,
    )
    return ForbiddenETags(frozenset(row["etags"]), frozenset(row["spent"]))


async def forbid_longer(
    database: Database, resource: str, bucket: str, key: str, expected: str | None, until: datetime, *, entombs: bool
) -> None:
    """Forbid an ETag that a request is conditioned on which nothing announces. Durable when this returns.

    ``until``: the last moment, by the store's clock, at which the request can take effect. ``entombs``: it leaves a
    tombstone.
    """
    etag = ABSENCE if expected is None else expected
    await database.fetchrow_write(_SQL["forbid_longer"], resource, bucket, key, etag, until, entombs)


async def raise_fence(database: Database, resource: str, presented: Presented, caller: str) -> Raised:
    """Raise without writing, in one transaction, and say which older mutations are still under way."""
    token = presented.token
    asked = (resource, *pair(token), presented.holder, caller)
    (row,) = await database.fetchmany_claim(
        _RAISE, [asked], lambda rows: _claims(resource, token, rows[0]), patient=True
    )
    fence = fence_or_none(row["fence"])
    assert fence is not None
    return Raised(Decision(row["decision"]), fence, _intents(row["pending"]))


async def is_pending(database: Database, intent: Intent) -> bool:
    row = await database.fetchrow(_SQL["pending"], *_which(intent))
    return row is not None and bool(row["pending"])


async def list_pending(database: Database, limit: int) -> list[Intent]:
    """Every mutation that may be under way, the oldest first."""
    return [intent_from_row(row["intent"]) for row in await database.fetch(_SQL["all_pending"], limit)]


def _which(one: Announcement | Intent) -> tuple[object, ...]:
    return one.resource, one.bucket, one.key, one.write_id, one.attempt


def _claims(resource: str, token: Token | None, row: Record) -> Claims:
    passes = token is not None and row["decision"] is not None and Decision(row["decision"]).passes
    return [(resource, token)] if token is not None and passes else []


def _intents(rows: list[Record] | None) -> tuple[Intent, ...]:
    return tuple(intent_from_row(row) for row in rows or ())


def intent_from_row(row: Record) -> Intent:
    return Intent(
        row["resource"],
        row["bucket"],
        row["key"],
        row["write_id"],
        Token(row["epoch"], row["value"]),
        row["expected"],
        row["signed_at"],
        row["attempt"],
        MutationKind(row["kind"]),
        row["upload_id"],
        row["dead_after"],
    )


@dataclass(frozen=True, slots=True)
class Tombstone:
    resource: str
    bucket: str
    key: str


async def tombstones_among(database: Database, bucket: str, keys: Sequence[str]) -> frozenset[str]:
    """Which of these keys may be tombstones; all the others are none."""
    return frozenset(row["key"] for row in await database.fetch(_SQL["among"], bucket, list(keys)))


async def tombstones_below(database: Database, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
    """Which of these prefixes have keys that may be tombstones."""
    return frozenset(row["prefix"] for row in await database.fetch(_SQL["below"], bucket, list(prefixes)))


async def any_tombstone_in(database: Database, bucket: str) -> bool:
    row = await database.fetchrow(_SQL["any"], bucket)
    return row is not None and bool(row["any"])


async def take_tombstones(
    database: Database,
    limit: int,
    store_time: datetime | None,
    before: datetime,
    bucket: str | None = None,
    *,
    waits: bool = False,
) -> list[Tombstone]:
    """Take up keys whose tombstones may be swept, the longest untouched first.

    Skip keys that were taken up since ``before``, by the database's clock: so each comes up once in a round.
    ``store_time`` is the store's own clock; without it no forbidden ETag is forgotten. ``waits``: skip keys for whose
    absence a finished request may be waiting. Without it, only older holders' requests of that kind count.
    """

    async def claim(transaction: Transaction) -> list[Record]:
        return await transaction.fetch(_SQL["claimed"], bucket, store_time, limit, before, waits)

    return [Tombstone(row["resource"], row["bucket"], row["key"]) for row in await database.run(claim)]


async def count_tombstones(database: Database, store_time: datetime) -> tuple[int, int]:
    """How many keys may be tombstones, and how many of those may not be swept yet."""
    row = await database.fetchrow(_SQL["count"], store_time)
    return (0, 0) if row is None else (int(row["count"]), int(row["waiting"]))
