"""How things stand at the moment: what is under way, and where the record ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db import record
from gateway.db.database import Database
from gateway.db.pool import load
from gateway.db.record import RecordPosition
from gateway.fencing.record import Entry
from gateway.findings import LEFT_BEHIND, MOST_COUNTED, Standing

_SQL = load("overview")


@dataclass(frozen=True, slots=True)
class ActiveAlarm:
    """An alarm that is on: since when, and how many refused writes it has counted since."""

    name: str
    since: datetime
    total: int


async def list_alarms(database: Database) -> list[ActiveAlarm]:
    """Return the alarms that are on."""
    return [ActiveAlarm(**row) for row in await database.fetch(_SQL["alarms"])]


async def read_standing(database: Database) -> Standing:
    """Return the work under way, and the end of the record. Raises ``Unavailable``."""
    (row,) = await database.fetch(_SQL["standing"], MOST_COUNTED, LEFT_BEHIND.total_seconds())
    return Standing(**row)


async def read_record_end(database: Database) -> RecordPosition:
    """Return the end of the record."""
    (row,) = await database.fetch(_SQL["head"])
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
    return [RefusedResource(**row) for row in rows]


async def list_takeovers(database: Database, since: datetime, limit: int) -> Sequence[Entry]:
    """Return the newest takeovers since a moment, one of each resource, among the newest ``LOOKED_AT`` takeovers."""
    return [record.entry_from_row(row) for row in await database.search(_SQL["taken_over"], since, LOOKED_AT, limit)]
