"""The record: adding entries and refused writes, sealing them into one chain, its end, its partitions, and cursors.

A reader of the record seals first (``seal``): then it contains everything that has been answered to any caller.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime
from uuid import UUID

from asyncpg.pgproto import pgproto

from gateway.db.database import Database, Record, Transaction
from gateway.db.pool import columns, load
from gateway.errors import OutcomeUnknown, Unavailable
from gateway.fencing.decision import Decision, Fence
from gateway.fencing.record import Attempt, CapturedPayload, Entry, RecordedEvent, Refusal, Rejection, kind_of
from gateway.fencing.token import Token, pair

_SQL = load("record")
_REFUSALS = load("rejections")

BATCH = 10_000
"""Entries that are sealed in one transaction, in well under a second."""


@dataclass(frozen=True, slots=True)
class RecordHead:
    """The end of the record: the position of its last entry, 0 if there is none, and its hash (hex).

    Noted down outside the database, it is a witness: a change of any entry up to it can be detected.
    """

    position: int
    hash: str


async def seal(database: Database, limit: int = BATCH) -> int:
    """Bring into the record whatever has been committed by now, in transactions of about ``limit`` entries.

    Waits for others who are at it, but not for what is written meanwhile: in a storm there is no end of that. Returns
    the position of the last entry.
    """
    newest = None
    while True:
        (row,) = await database.fetch_write(_SQL["seal"], limit, True)  # noqa: FBT003 - an argument of SQL
        if row["sealed"] < limit:
            return int(row["position"])
        (left,) = await database.fetch(_SQL["left"])
        newest = left["newest"] if newest is None else newest
        if newest is None or left["oldest"] is None or left["oldest"] > newest:
            return int(row["position"])


async def seal_some(database: Database, limit: int = BATCH) -> int | None:
    """Seal about ``limit`` entries; return how many. None if another gateway is sealing."""
    (row,) = await database.fetch_write(_SQL["seal"], limit, False)  # noqa: FBT003 - an argument of SQL
    sealed: int | None = row["sealed"]
    return sealed


async def read_head(database: Database) -> RecordHead:
    """Return the end of the record as it is, without sealing."""
    (row,) = await database.fetch(_SQL["head"])
    return RecordHead(row["position"], row["hash"])


async def record_event(executor: Database | Transaction, happening: RecordedEvent) -> tuple[UUID, datetime]:
    """Write down one thing that is no refusal; its id, and when. It is in the record once sealed.

    With a ``Database`` it is durable when this returns; with a ``Transaction`` it becomes so with its commit.
    """
    execute = executor.fetch_write if isinstance(executor, Database) else executor.fetch
    one, details = happening, None if happening.details is None else json.dumps(happening.details)
    about = (one.kind, one.plane, one.rule, one.resource, one.reason, *pair(one.token))
    (row,) = await execute(_SQL["put"], *about, one.holder, one.caller, one.request_id, *_met(one.fence), details)
    return row["id"], row["at"]


async def prepare_partitions(database: Database, ahead: int, most: int) -> int:
    """Make partitions, for weeks as a rule, until today and ``ahead`` days more have one; at most ``most``. How many.

    Raises ``SqlError`` where the record is in use in a way that others would have to wait.
    """
    (row,) = await database.fetch_write(_SQL["prepare_partitions"], ahead, most)
    return int(row["made"])


async def drop_partition(database: Database, keep: int) -> date | None:
    """Drop the oldest partition whose days are all more than ``keep`` days ago, on record; return its last day.

    Return None if there is none. Raise ``SqlError`` if the record is in use in a way that would make others wait, or if
    fewer than seven days would be kept.
    """
    (row,) = await database.fetch_write(_SQL["drop_partition"], keep)
    last_day: date | None = row["last_day"]
    return last_day


_AS_THEY_ARE = tuple(name for name in Entry.__slots__ if name not in ("hash", "kind", "token", "fence", "details"))


def entry_from_row(row: Record) -> Entry:
    return Entry(
        **{name: row[name] for name in _AS_THEY_ARE},
        hash=row["hash"].hex(),
        kind=kind_of(row["kind"]),
        token=token_from_row(row),
        fence=fence_from_row(row["resource"], row),
        details=None if row["details"] is None else json.loads(row["details"]),
    )


def token_from_row(row: Record, prefix: str = "") -> Token | None:
    """Return the token of an entry, or that of another thing in it, whose columns begin with the ``prefix``."""
    value = row[f"{prefix}value"]
    return None if value is None else Token(row[f"{prefix}epoch"] or 0, value)


def fence_from_row(resource: str, row: Record) -> Fence | None:
    """Return the fence that an entry met, from the columns that begin with ``fence_``, of ``fencing.entry`` or the
    intake.
    """
    token = token_from_row(row, "fence_")
    if token is None:
        return None
    return Fence(resource, token, row["fence_holder"], row["fence_caller"], row["fence_raised_at"])


async def record_administration(
    database: Database, attempt: Attempt, operation: str, resource: str | None = None, **details: object
) -> None:
    """Put on record, durably, what a caller is about to do. ``details`` are JSON, and no secrets.

    Raises ``Unavailable`` or ``SqlError``: then it must not be done, though it may be on record.
    """
    told = json.dumps({"operation": operation, **details})
    sent = (attempt.method, attempt.target, attempt.client, attempt.request_id, told)
    actor = (*pair(attempt.token), attempt.holder, attempt.caller)
    try:
        await database.fetchrow_write(_SQL["record"], attempt.plane, resource, *actor, *sent)
    except OutcomeUnknown as error:
        raise Unavailable(error.message) from error


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """A place in the record: a position, and the day it was sealed on, by which older partitions are left out."""

    position: int
    day: date


@dataclass(frozen=True, slots=True)
class RecordSpan:
    """A stretch of the record: where it ends; how many entries before its first one are not there any more.

    ``whole``: it goes to the end of the record.
    """

    end: RecordPosition
    dropped: int
    whole: bool


async def read_span(executor: Database | Transaction, after: RecordPosition, most: int) -> RecordSpan:
    """Return the record after a place, at most so many entries. It may be empty, and ends where it begins then."""
    (row,) = await executor.fetch(_SQL["span"], after.day, after.position, most)
    if row["first"] is None:
        return RecordSpan(RecordPosition(row["head"], row["head_day"]), row["head"] - after.position, whole=True)
    end = RecordPosition(row["last"], row["day"])
    return RecordSpan(end, row["first"] - after.position - 1, whole=end.position == row["head"])


# Refused writes ------------------------------------------------------------------------------------------------------


async def record_rejections(
    executor: Database | Transaction, refusals: Sequence[Refusal], traces: Mapping[str, str]
) -> list[Rejection]:
    """Put refusals on record, in one statement; each gets its time from the database.

    With a ``Database`` they are durable when this returns; with a ``Transaction`` they become so with its commit.
    ``traces`` has the ids of traces, by those of requests.
    Raises ``Unavailable``, ``OutcomeUnknown`` or ``SqlError`` where they are not: then none may be answered as one.
    """
    ids = _new_ids(len(refusals))
    attempts = [(one.resource, one.attempt) for one in refusals]
    met = ((one.reason, one.enforced, *_met(one.fence)) for one in refusals)
    attempted = _attempted(ids, attempts, [_details(one.attempt, traces, one) for one in refusals])
    execute = executor.fetch_write if isinstance(executor, Database) else executor.fetch
    rows = await execute(_REFUSALS["record"], *attempted, *columns(met, 7), *_payloads(ids, attempts))
    at = {row["id"]: row["at"] for row in rows}
    return [
        Rejection(entry, at[entry], one.resource, one.reason, one.enforced, one.attempt, one.fence, one.missing)
        for entry, one in zip(ids, refusals, strict=True)
    ]


async def record_overtaken(
    database: Database, attempts: Sequence[tuple[str, Attempt]], traces: Mapping[str, str]
) -> list[Rejection | None]:
    """Put those of many writes on record, in one statement, whose fence carries a higher token already.

    ``attempts``: resource and write, each with a token. In the same order, each its rejection, or None where the fence
    says otherwise by now. Raises what ``record`` raises.
    """
    ids = _new_ids(len(attempts))
    details = [_details(attempt, traces) for _, attempt in attempts]
    arguments = (*_attempted(ids, attempts, details), *_payloads(ids, attempts))
    rows = {row["id"]: row for row in await database.fetch_write(_REFUSALS["record_overtaken"], *arguments)}
    # One statement sees one version of each fence, and a storm is about few.
    fences: dict[str, Fence | None] = {}
    recorded: list[Rejection | None] = []
    for entry, (resource, attempt) in zip(ids, attempts, strict=True):
        row = rows.get(entry)
        if row is None:
            recorded.append(None)
            continue
        if resource not in fences:
            fences[resource] = fence_from_row(resource, row)
        recorded.append(Rejection(entry, row["at"], resource, Decision.STALE, True, attempt, fences[resource]))  # noqa: FBT003
    return recorded


def _new_ids(number: int) -> list[UUID]:
    """Return random ids, of version 4. The driver makes one, and writes it as text, in a tenth of the time."""
    random = bytearray(os.urandom(16 * number))
    random[6::16] = bytes(byte & 0x0F | 0x40 for byte in random[6::16])
    random[8::16] = bytes(byte & 0x3F | 0x80 for byte in random[8::16])
    return [pgproto.UUID(bytes(random[at : at + 16])) for at in range(0, len(random), 16)]


def _attempted(
    ids: Sequence[UUID], attempts: Sequence[tuple[str, Attempt]], details: Iterable[str | None]
) -> list[Sequence[object]]:
    """Return the columns that do not depend on the fence, as one sequence for each column."""
    rows = (
        (
            entry,
            resource,
            *pair(attempt.token),
            attempt.holder,
            attempt.caller,
            attempt.method,
            attempt.target,
            attempt.client,
            attempt.request_id,
            attempt.payload_size,
            attempt.payload_sha256,
            attempt.plane,
            attempt.rule,
            detail,
        )
        for entry, (resource, attempt), detail in zip(ids, attempts, details, strict=True)
    )
    return columns(rows, 15)


def _met(fence: Fence | None) -> tuple[object, ...]:
    """Return the column values of the fence that an entry met."""
    if fence is None:
        return (None,) * 5
    return *pair(fence.token), fence.holder, fence.caller, fence.raised_at


def _details(attempt: Attempt, traces: Mapping[str, str], refusal: Refusal | None = None) -> str | None:
    """Return the details: key, program and trace, the missing grant of a denial, and the payload.

    A payload can be erased; its hash still proves its content.
    """
    details: dict[str, object] = {}
    if refusal is not None and refusal.missing is not None:
        details["missing"] = asdict(refusal.missing)
    if refusal is not None and refusal.also_denied:
        details["also_denied"] = refusal.also_denied
    if attempt.key is not None:
        details["key"] = attempt.key
    if attempt.program is not None:
        details["program"] = attempt.program
    if (trace := traces.get(attempt.request_id)) is not None:
        details["trace_id"] = trace
    if attempt.captured is not None:
        details["payload"] = _payload(attempt.captured)
    return json.dumps(details) if details else None


def _payload(captured: CapturedPayload) -> dict[str, object]:
    payload: dict[str, object] = {"media_type": captured.media_type, "kept": len(captured.body)}
    if captured.left_out is not None:
        payload["left_out"] = captured.left_out
    else:
        payload["sha256"] = hashlib.sha256(captured.body).hexdigest()
        payload["truncated"], payload["redacted"] = captured.truncated, captured.redacted
    return payload


def _payloads(ids: Sequence[UUID], attempts: Sequence[tuple[str, Attempt]]) -> list[Sequence[object]]:
    rows = (
        (entry, captured.media_type, captured.body, captured.truncated)
        for entry, (_, attempt) in zip(ids, attempts, strict=True)
        if (captured := attempt.captured) and captured.left_out is None
    )
    return columns(rows, 4)


@dataclass(frozen=True, slots=True)
class RejectedPayload:
    """A kept payload. ``truncated``: the body had more."""

    media_type: str
    body: bytes
    truncated: bool


async def read_payload(database: Database, entry: UUID) -> RejectedPayload | None:
    """Return the kept payload of an entry, by its id; None if there is none. Only for callers that may audit."""
    row = await database.fetchrow(_REFUSALS["read"], entry)
    return None if row is None else RejectedPayload(row["media_type"], row["body"], row["truncated"])


async def drop_payloads(database: Database, days: int, limit: int) -> int:
    """Drop at most ``limit`` that are older than so many days (never younger than a week); how many are gone."""
    (row,) = await database.fetch_write(_REFUSALS["drop"], days, limit)
    return int(row["gone"])
