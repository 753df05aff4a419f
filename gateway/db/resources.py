"""Which resources are worth a look: those with refused writes, those that were taken over."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db import record
from gateway.db.database import Database
from gateway.db.queries import load
from gateway.fencing.record import Entry

_SQL = load("resources")

LOOKED_AT = 20_000
"""So many of the newest entries are looked at, however many there are: a page must not wait for a storm."""


@dataclass(frozen=True, slots=True)
class Troubled:
    """A resource with refused writes. ``noted`` of them passed, since their rule observes."""

    resource: str
    refused: int
    noted: int
    last: datetime


async def troubled(database: Database, since: datetime, limit: int) -> list[Troubled]:
    """Those with the most refused writes since a moment, among the newest ``LOOKED_AT`` of those writes."""
    rows = await database.search(_SQL["troubled"], since, LOOKED_AT, limit)
    return [Troubled(row["resource"], row["refused"], row["noted"], row["last"]) for row in rows]


async def taken_over(database: Database, since: datetime, limit: int) -> Sequence[Entry]:
    """The newest takeovers since a moment, one of each resource, among the newest ``LOOKED_AT`` takeovers."""
    return [record.entry_from_row(row) for row in await database.search(_SQL["taken_over"], since, LOOKED_AT, limit)]
