"""How things stand at the moment: what is under way, and where the record ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime

from gateway.db import record
from gateway.db.database import Database
from gateway.db.pool import load
from gateway.db.record import RecordPosition
from gateway.fencing.record import Entry

_SQL = load("overview")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """``pending``: object writes whose outcome is not known yet, the oldest since ``pending_since``.

    ``position``, ``hash`` (hex) and ``day`` are the end of the record's chain; ``sealed_at`` is when its last entry
    happened, None where there is none. ``unsealed``: entries not chained yet, counted up to 10,001, the oldest since
    ``unsealed_since``.
    """

    now: datetime
    pending: int
    pending_since: datetime | None
    unsealed: int
    unsealed_since: datetime | None
    position: int
    hash: str
    day: date
    sealed_at: datetime | None


@dataclass(frozen=True, slots=True)
class ActiveAlarm:
    """An alarm that is on: since when, and how many refused writes it has counted since."""

    name: str
    since: datetime
    total: int


async def list_alarms(database: Database) -> list[ActiveAlarm]:
    """Return the alarms that are on."""
    return [ActiveAlarm(**row) for row in await database.fetch(_SQL["alarms"])]


async def read_status(database: Database) -> StoreStatus:
    row = await database.fetchrow(_SQL["standing"])
    assert row is not None
    return StoreStatus(**row)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of rows, up to the limit that was asked for; ages in seconds, 0 where there are none.

    ``webhooks``: entries not looked at for it, and for how long it has been failing, by name. ``alarms`` are those that
    are known, and whether each is on.
    """

    intents: int
    oldest_intent: float
    tombstones: int
    uploads: int
    position: int
    unsealed: int
    oldest_unsealed: float
    held: int
    waiters: int
    webhooks: Mapping[str, tuple[int, float]]
    alarms: Mapping[str, bool]


async def read_record_end(database: Database) -> RecordPosition:
    """Return the end of the record."""
    row = await database.fetchrow(_SQL["head"])
    assert row is not None
    return RecordPosition(row["position"], row["day"])


async def count_entries_after(
    database: Database, after: RecordPosition, limit: int
) -> tuple[Mapping[str, int], RecordPosition]:
    """How many entries of which kind come after a place, at most ``limit`` in all; and where these end."""
    rows = await database.fetch(_SQL["entries"], after.day, after.position, limit)
    last = max(
        (RecordPosition(row["position"], row["day"]) for row in rows), key=lambda place: place.position, default=after
    )
    return {row["kind"]: row["number"] for row in rows}, last


async def read_backlog(database: Database, limit: int, webhooks: Sequence[str], alarms: Sequence[str]) -> Backlog:
    """How things stand. Raises ``Unavailable``."""
    counted: dict[str, float] = {}
    for query in ("objects", "record", "leases"):
        row = await database.fetchrow(_SQL[query], limit)
        assert row is not None
        counted.update(row)
    behind = await database.fetch(_SQL["webhooks"], list(webhooks)) if webhooks else []
    active = await database.fetch(_SQL["backlog_alarms"], list(alarms)) if alarms else []
    return Backlog(
        **counted,  # type: ignore[arg-type]  # each query has the names and types of its fields
        webhooks={row["name"]: (row["behind"], row["failing"]) for row in behind},
        alarms={row["name"]: row["active"] for row in active},
    )


LOOKED_AT = 20_000
"""So many of the newest entries are looked at, however many there are: a page must not wait for a storm."""


@dataclass(frozen=True, slots=True)
class RefusedResource:
    """A resource with refused writes. ``noted`` of them passed, since their rule observes."""

    resource: str
    refused: int
    noted: int
    last: datetime


async def list_refused_resources(database: Database, since: datetime, limit: int) -> list[RefusedResource]:
    """Return the resources with the most refused writes since a moment, among the newest ``LOOKED_AT``."""
    rows = await database.search(_SQL["troubled"], since, LOOKED_AT, limit)
    return [RefusedResource(row["resource"], row["refused"], row["noted"], row["last"]) for row in rows]


async def list_takeovers(database: Database, since: datetime, limit: int) -> Sequence[Entry]:
    """Return the newest takeovers since a moment, one of each resource, among the newest ``LOOKED_AT`` takeovers."""
    return [record.entry_from_row(row) for row in await database.search(_SQL["taken_over"], since, LOOKED_AT, limit)]
