"""The record of refused writes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.errors import NotFound
from gateway.fencing.record import Attempt, Rejection
from gateway.fencing.rules import Decision, Fence
from gateway.fencing.token import Token
from gateway.store.database import Database, Record, Transaction
from gateway.store.queries import load

_SQL = load("rejections")


@dataclass(frozen=True, slots=True)
class Filters:
    """Which rejections to list. None means any; ``before`` is the id of the last rejection of the page before."""

    resource: str | None = None
    holder: str | None = None
    caller: str | None = None
    reason: str | None = None
    since: datetime | None = None
    before: UUID | None = None


async def record(
    executor: Database | Transaction,
    *,
    resource: str,
    reason: str,
    enforced: bool,
    attempt: Attempt,
    fence: Fence | None,
) -> Rejection:
    """Put one refusal on record; it gets its id and its time from the database.

    With a ``Database`` it is durable when this returns; with a ``Transaction`` it becomes so with its commit. Raises
    ``Unavailable`` or ``OutcomeUnknown`` where it is not: then the refusal must not be answered as one.
    """
    token = attempt.token
    execute = executor.fetchrow_write if isinstance(executor, Database) else executor.fetchrow
    row = await execute(
        _SQL["record"],
        resource,
        reason,
        enforced,
        token.epoch if token else None,
        token.value if token else None,
        *_attempted(attempt),
        fence.token.epoch if fence else None,
        fence.token.value if fence else None,
        fence.holder if fence else None,
        fence.caller if fence else None,
        fence.raised_at if fence else None,
    )
    assert row is not None
    return Rejection(row["id"], row["at"], resource, reason, enforced, attempt, fence)


async def record_overtaken(database: Database, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
    """Put those of many writes on record, in one trip and one commit, whose fence carries a higher token already.

    ``attempts``: resource and write, each with a token. In the same order, each its rejection, or None where the fence
    says otherwise by now. Raises what ``record`` raises.
    """
    rows = await database.fetchmany_write(
        _SQL["record_overtaken"], [_overtaken(resource, attempt) for resource, attempt in attempts]
    )
    return [
        None
        if row["id"] is None
        else Rejection(row["id"], row["at"], resource, Decision.STALE, True, attempt, _fence(resource, row))  # noqa: FBT003
        for row, (resource, attempt) in zip(rows, attempts, strict=True)
    ]


async def listed(database: Database, filters: Filters, limit: int) -> list[Rejection]:
    """At most ``limit`` rejections, the newest first. Raises ``NotFound`` where ``before`` is no rejection."""
    position = None
    if filters.before is not None:
        position = await database.fetchrow(_SQL["position"], filters.before)
        if position is None:
            raise NotFound(f"There is no rejection {filters.before}.", advice="Start again from the first page.")
    rows = await database.fetch(
        _SQL["list"],
        filters.resource,
        filters.holder,
        filters.caller,
        filters.reason,
        filters.since,
        position["at"] if position else None,
        position["id"] if position else None,
        limit,
    )
    return [_from_row(row) for row in rows]


def _attempted(attempt: Attempt) -> tuple[object, ...]:
    """What is recorded of a write whatever refused it, from its holder on."""
    return (
        attempt.holder,
        attempt.caller,
        attempt.method,
        attempt.target,
        attempt.client,
        attempt.request_id,
        attempt.payload_size,
        attempt.payload_sha256,
    )


def _overtaken(resource: str, attempt: Attempt) -> tuple[object, ...]:
    """The arguments of ``record_overtaken``."""
    assert attempt.token is not None
    return (
        resource,
        attempt.token.epoch,
        attempt.token.value,
        *_attempted(attempt),
    )


def _fence(resource: str, row: Record) -> Fence:
    token = Token(row["fence_epoch"], row["fence_value"])
    return Fence(resource, token, row["fence_holder"], row["fence_caller"], row["fence_raised_at"])


def _from_row(row: Record) -> Rejection:
    fence = None if row["fence_value"] is None else _fence(row["resource"], row)
    attempt = Attempt(
        token=None if row["value"] is None else Token(row["epoch"], row["value"]),
        holder=row["holder"],
        caller=row["caller"],
        method=row["method"],
        target=row["target"],
        client=row["client"],
        request_id=row["request_id"],
        payload_size=row["payload_size"],
        payload_sha256=row["payload_sha256"],
    )
    return Rejection(row["id"], row["at"], row["resource"], row["reason"], row["enforced"], attempt, fence)
