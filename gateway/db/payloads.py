"""What was kept of the payloads of refused writes. They are put there with their entries, by ``rejections``."""

from dataclasses import dataclass
from uuid import UUID

from gateway.db.database import Database
from gateway.db.queries import load

_SQL = load("payloads")


@dataclass(frozen=True, slots=True)
class Payload:
    """What is kept. ``truncated``: there was more of it."""

    media_type: str
    body: bytes
    truncated: bool


async def read(database: Database, entry: UUID) -> Payload | None:
    """What is kept with an entry, by its id. Only for callers who may audit. None: nothing, or not any more."""
    row = await database.fetchrow(_SQL["read"], entry)
    return None if row is None else Payload(row["media_type"], row["body"], row["truncated"])


async def drop(database: Database, days: int, limit: int) -> int:
    """Drop at most ``limit`` that are older than so many days (never younger than a week); how many are gone."""
    row = await database.fetchrow_write(_SQL["drop"], days, limit)
    assert row is not None
    return int(row["gone"])
