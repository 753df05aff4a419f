"""How things stand at the moment: what is under way, and where the record ends."""

from dataclasses import dataclass
from datetime import date, datetime

from gateway.db.database import Database
from gateway.db.queries import load

_SQL = load("overview")


@dataclass(frozen=True, slots=True)
class Standing:
    """``pending``: object writes whose outcome is not known yet, the oldest since ``pending_since``.

    ``position``, ``hash`` (hex) and ``day`` are the end of the record's chain; ``sealed_at`` is when its last entry
    happened, None where there is none. ``unsealed``: entries not chained yet, counted up to 10,001.
    """

    now: datetime
    pending: int
    pending_since: datetime | None
    unsealed: int
    position: int
    hash: str
    day: date
    sealed_at: datetime | None


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that is on: since when, and how many zombies it has counted since."""

    name: str
    since: datetime
    total: int


async def alarms(database: Database) -> list[Alarm]:
    """The alarms that are on."""
    return [Alarm(**row) for row in await database.fetch(_SQL["alarms"])]


async def standing(database: Database) -> Standing:
    row = await database.fetchrow(_SQL["standing"])
    assert row is not None
    return Standing(**row)
