"""Counts and notes of gateway processes: writes by the minute, in rows of each process, and last uses of keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from gateway.db.database import Database, Record
from gateway.db.pool import columns, load

_SQL, _KEY_USES = load("traffic"), load("key_uses")
_KINDS = ("accepted", "refused", "observed")


@dataclass(frozen=True, slots=True)
class TrafficKey:
    """The key of a count: a minute (by the database's clock), a plane, a table or pattern of keys."""

    minute: datetime
    plane: str
    rule: str


@dataclass(slots=True)
class WriteCounts:
    """Writes. ``observed``: passed, and would have been refused if the rule were enforced; not among ``accepted``."""

    accepted: int = 0
    refused: int = 0
    observed: int = 0

    def add(self, outcome: Literal["accepted", "refused", "observed"], number: int) -> None:
        setattr(self, outcome, getattr(self, outcome) + number)


@dataclass(frozen=True, slots=True)
class TrafficBucket:
    """One step of a series: the writes from ``at`` until the next bucket begins."""

    at: datetime
    counts: WriteCounts


@dataclass(frozen=True, slots=True)
class RuleTraffic:
    """The writes under one rule, and the last minute that had any of a kind; None: it had none in the span."""

    plane: str
    rule: str
    counts: WriteCounts
    last_accepted: datetime | None
    last_refused: datetime | None
    last_observed: datetime | None


async def write(database: Database, gateway: str, rows: Mapping[TrafficKey, WriteCounts]) -> None:
    """Write rows of one process down, whole: each replaces the one that is there.

    Raises ``Unavailable``, or ``OutcomeUnknown``, after which it can be done again.
    """
    counted = (
        (place.minute, place.plane, place.rule, counts.accepted, counts.refused, counts.observed)
        for place, counts in rows.items()
    )
    await database.fetch_write(_SQL["write"], gateway, *columns(counted, 6))


async def read_series(
    database: Database,
    since: datetime,
    until: datetime,
    buckets: int,
    plane: str | None = None,
    rule: str | None = None,
) -> list[TrafficBucket]:
    """Return the writes from ``since`` until ``until`` in so many steps of equal length, empty ones included.

    ``plane`` and ``rule`` restrict them.
    """
    found = await database.fetch(_SQL["series"], since, until, buckets, plane, rule)
    return [TrafficBucket(row["at"], _counts(row)) for row in found]


async def read_rules(database: Database, since: datetime, until: datetime) -> list[RuleTraffic]:
    """Return the writes of each rule that had any from ``since`` until ``until``, most refusals first."""
    return [
        RuleTraffic(row["plane"], row["rule"], _counts(row), *(row[f"last_{kind}"] for kind in _KINDS))
        for row in await database.fetch(_SQL["of_rules"], since, until)
    ]


def _counts(row: Record) -> WriteCounts:
    return WriteCounts(*(row[kind] for kind in _KINDS))


async def forget(database: Database, days: int, limit: int) -> int:
    """Remove at most ``limit`` rows that are older than so many days; how many are gone."""
    (row,) = await database.fetch_write(_SQL["forget"], days, limit)
    return int(row["gone"])


@dataclass(frozen=True, slots=True)
class LastUse:
    """The last use of a key. ``kind``: api or s3. ``key``: its fingerprint, or its access key id."""

    caller: str
    kind: str
    key: str
    last_used: datetime


async def note_key_uses(database: Database, uses: Sequence[tuple[str, str, str, float]]) -> None:
    """Note uses, each as caller, kind, key and how many seconds ago. An earlier use changes nothing.

    Raises ``GatewayError``, after which it can be done again.
    """
    await database.fetch_write(_KEY_USES["note"], *columns(uses, 4))


async def read_key_uses(database: Database) -> list[LastUse]:
    """Return the last uses of all keys that ever were used, those that are no longer configured included."""
    return [LastUse(**row) for row in await database.fetch(_KEY_USES["read"])]
