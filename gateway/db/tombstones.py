"""The keys at which a tombstone may stand. Each is listed before its tombstone is put there; see store/intents.sql."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db.database import Database, Record, Transaction
from gateway.db.queries import load

_SQL = load("tombstones")


@dataclass(frozen=True, slots=True)
class Grave:
    """A key at which a tombstone may stand."""

    resource: str
    bucket: str
    key: str


async def among(database: Database, bucket: str, keys: Sequence[str]) -> frozenset[str]:
    """Which of these keys may be tombstones; all the others are none."""
    return frozenset(row["key"] for row in await database.fetch(_SQL["among"], bucket, list(keys)))


async def below(database: Database, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
    """Which of these prefixes have keys that may be tombstones."""
    return frozenset(row["prefix"] for row in await database.fetch(_SQL["below"], bucket, list(prefixes)))


async def any_in(database: Database, bucket: str) -> bool:
    """Whether any key of the bucket may be a tombstone."""
    row = await database.fetchrow(_SQL["any"], bucket)
    return row is not None and bool(row["any"])


async def claimed(
    database: Database,
    limit: int,
    store_time: datetime | None,
    before: datetime,
    bucket: str | None = None,
    *,
    waits: bool = False,
) -> list[Grave]:
    """Take up keys whose tombstone may be swept, those first that nobody has taken up for longest.

    None that was taken up since ``before``, by the database's clock: so each comes up once in a round. ``store_time``
    is the store's own clock; without it nothing that was ever forbidden is forgotten. ``waits``: none for whose
    absence a request may be waiting that is over; without, only older holders' requests of that kind count.
    """

    async def claim(transaction: Transaction) -> list[Record]:
        return await transaction.fetch(_SQL["claimed"], bucket, store_time, limit, before, waits)

    return [Grave(row["resource"], row["bucket"], row["key"]) for row in await database.run(claim)]


async def count(database: Database, store_time: datetime) -> tuple[int, int]:
    """How many keys may be tombstones, and how many of those may not be swept yet."""
    row = await database.fetchrow(_SQL["count"], store_time)
    return (0, 0) if row is None else (int(row["count"]), int(row["waiting"]))
