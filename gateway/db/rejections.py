"""Stores refused writes in the record. ``gateway.db.search`` reads them there."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from uuid import UUID, uuid4

from gateway.db.database import Database, Transaction
from gateway.db.pool import load
from gateway.db.record import fence_from_row
from gateway.fencing.decision import Decision
from gateway.fencing.record import Attempt, CapturedPayload, Refusal, Rejection

_SQL = load("rejections")


async def record_rejections(
    executor: Database | Transaction, refusals: Sequence[Refusal], traces: Mapping[str, str]
) -> list[Rejection]:
    """Put refusals on record, in one statement; each gets its time from the database.

    With a ``Database`` they are durable when this returns; with a ``Transaction`` they become so with its commit.
    ``traces`` has the ids of traces, by those of requests.
    Raises ``Unavailable``, ``OutcomeUnknown`` or ``SqlError`` where they are not: then none may be answered as one.
    """
    ids = [uuid4() for _ in refusals]
    attempts = [(one.resource, one.attempt) for one in refusals]
    attempted = _attempted(ids, attempts, [_details(one.attempt, traces, one) for one in refusals])
    execute = executor.fetch_write if isinstance(executor, Database) else executor.fetch
    rows = await execute(_SQL["record"], *attempted, *_columns(map(_met, refusals), 7), *_payloads(ids, attempts))
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
    ids = [uuid4() for _ in attempts]
    details = [_details(attempt, traces) for _, attempt in attempts]
    arguments = (*_attempted(ids, attempts, details), *_payloads(ids, attempts))
    rows = {row["id"]: row for row in await database.fetch_write(_SQL["record_overtaken"], *arguments)}
    return [
        Rejection(entry, row["at"], resource, Decision.STALE, True, attempt, fence_from_row(resource, row))  # noqa: FBT003
        if (row := rows.get(entry))
        else None
        for entry, (resource, attempt) in zip(ids, attempts, strict=True)
    ]


def _attempted(
    ids: Sequence[UUID], attempts: Sequence[tuple[str, Attempt]], details: Iterable[str | None]
) -> list[Sequence[object]]:
    """Return the columns that do not depend on the fence, as one sequence for each column."""
    rows = (
        (
            entry,
            resource,
            attempt.token.epoch if attempt.token else None,
            attempt.token.value if attempt.token else None,
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
    return _columns(rows, 15)


def _met(refusal: Refusal) -> tuple[object, ...]:
    """Return the column values of the fence that refused the write."""
    fence = refusal.fence
    if fence is None:
        return refusal.reason, refusal.enforced, None, None, None, None, None
    token = fence.token
    return refusal.reason, refusal.enforced, token.epoch, token.value, fence.holder, fence.caller, fence.raised_at


def _details(attempt: Attempt, traces: Mapping[str, str], refusal: Refusal | None = None) -> str | None:
    """Return the details: the program, the trace, the missing grant of a denial, and the payload.

    A payload can be erased; its hash still proves its content.
    """
    details: dict[str, object] = {}
    if refusal is not None and refusal.missing is not None:
        details["missing"] = asdict(refusal.missing)
    if refusal is not None and refusal.also_denied:
        details["also_denied"] = refusal.also_denied
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
    return _columns(rows, 4)


def _columns(rows: Iterable[Sequence[object]], number: int) -> list[Sequence[object]]:
    """Return the rows as columns, of which there are so many even without rows."""
    return list(zip(*rows, strict=True)) or [()] * number


@dataclass(frozen=True, slots=True)
class RejectedPayload:
    """A kept payload. ``truncated``: the body had more."""

    media_type: str
    body: bytes
    truncated: bool


async def read_payload(database: Database, entry: UUID) -> RejectedPayload | None:
    """Return the kept payload of an entry, by its id; None if there is none. Only for callers that may audit."""
    row = await database.fetchrow(_SQL["read"], entry)
    return None if row is None else RejectedPayload(row["media_type"], row["body"], row["truncated"])


async def drop_payloads(database: Database, days: int, limit: int) -> int:
    """Drop at most ``limit`` that are older than so many days (never younger than a week); how many are gone."""
    row = await database.fetchrow_write(_SQL["drop"], days, limit)
    assert row is not None
    return int(row["gone"])
