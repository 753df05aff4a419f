"""Objects that are not what the last write through the gateway has left: put on record, and looked for in buckets."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db.database import Database
from gateway.db.pool import columns, load
from gateway.fencing.intent import Announcement

_SQL = load("bypasses")


@dataclass(frozen=True, slots=True)
class RememberedObject:
    """The remembered state of a key: its ETag after the last write through the gateway (None: absent).

    ``witnessed``: only a write through the gateway can have changed it since. ``version`` tells this state of the row
    from every other one.
    """

    resource: str
    key: str
    etag: str | None
    tombstone: bool
    witnessed: bool
    version: str


@dataclass(frozen=True, slots=True)
class FoundObject:
    """The object seen at a key: its ETag (None: absent), and the facts for the record."""

    bucket: str
    key: str
    etag: str | None
    rule: str | None
    target: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ScanPosition:
    """The position of a bucket's scan: behind the key ``after``."""

    bucket: str
    after: str


async def record_by_write(database: Database, write: Announcement, seen: FoundObject) -> str | None:
    """Record what a write has seen at its key while it was announced itself; the reason, None where there is none."""
    return await _record(database, write.resource, seen, None, write)


async def record_by_sweep(database: Database, remembered: RememberedObject, seen: FoundObject) -> str | None:
    """Record what was seen after ``remembered`` was read, if that still holds; the reason, None where there is none."""
    return await _record(database, remembered.resource, seen, remembered.version, None)


async def _record(
    database: Database, resource: str, seen: FoundObject, version: str | None, write: Announcement | None
) -> str | None:
    row = await database.fetchrow_write(
        _SQL["record"],
        resource,
        seen.bucket,
        seen.key,
        version,
        write.write_id if write else None,
        write.attempt if write else None,
        seen.etag,
        seen.rule,
        seen.target,
        json.dumps({name: value for name, value in seen.details.items() if value is not None}),
    )
    return None if row is None else str(row["reason"])


async def enlist_buckets(database: Database) -> None:
    """Have the buckets patrolled that something is remembered of."""
    await database.fetch_write(_SQL["buckets"])


async def take_bucket(database: Database, before: datetime) -> ScanPosition | None:
    """Return the bucket that was scanned longest ago; None if all were scanned since ``before``, by the database's
    clock.
    """
    row = await database.fetchrow_write(_SQL["take_up"], before)
    return None if row is None else ScanPosition(row["bucket"], row["after"])


async def save_position(database: Database, beat: ScanPosition, after: str) -> None:
    """Store the key that the scan has reached; '' starts it again."""
    await database.fetchrow_write(_SQL["go_on"], beat.bucket, beat.after, after)


async def read_remembered(database: Database, beat: ScanPosition, limit: int) -> list[RememberedObject]:
    """Return the remembered state of the next keys of a bucket, in their order."""
    rows = await database.fetch(_SQL["remembered"], beat.bucket, beat.after, limit)
    return [RememberedObject(**row) for row in rows]


async def forget_objects(database: Database, bucket: str, rows: Sequence[RememberedObject]) -> None:
    """Forget what is remembered of keys under another resource than they belong to by now."""
    if rows:
        await database.fetch_write(_SQL["forget"], bucket, *_columns(rows))


async def record_vanished_bucket(database: Database, bucket: str, target: str, rows: Sequence[RememberedObject]) -> int:
    """Forget a bucket that is gone. Record how many remembered objects went with it, and return their number.

    ``rows`` are some of the remembered rows from before the look. Return 0 and do nothing if none of them is still an
    object, or if writes are under way in the bucket.
    """
    row = await database.fetchrow_write(_SQL["bucket_vanished"], bucket, target, *_columns(rows))
    return 0 if row is None else int(row["objects"])


async def forget_bucket(database: Database, bucket: str) -> None:
    """Forget a bucket that was deleted through the gateway."""
    await database.fetch_write(_SQL["forget_bucket"], bucket)


def _columns(rows: Sequence[RememberedObject]) -> list[Sequence[str]]:
    return columns(((row.resource, row.key, row.version) for row in rows), 3)
