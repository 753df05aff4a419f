"""Multipart uploads that were opened through the gateway: whose they are, and which of them were left behind."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from gateway.db.database import Database, Record
from gateway.db.fences import fence_or_none
from gateway.db.pool import load
from gateway.db.record import token_from_row
from gateway.fencing.decision import Fence
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token, pair

_SQL = load("uploads")


@dataclass(frozen=True, slots=True)
class UploadKey:
    resource: str
    bucket: str
    key: str
    upload_id: str


@dataclass(frozen=True, slots=True)
class RecordedUpload:
    """An upload, and what was presented when it was opened. ``token`` is None where the rule only observes, and the
    sequencer where none was shown with it.

    ``write_id`` stands in the metadata of the object it will be. ``staged``: the gateway opened it for itself.
    """

    place: UploadKey
    write_id: UUID
    token: Token | None
    holder: str | None
    caller: str
    staged: bool = False
    completed: bool = False
    sequencer: Sequencer | None = None


async def record_opened(database: Database, upload: RecordedUpload) -> None:
    """Remember an upload; durable when this returns."""
    place, token = upload.place, upload.token
    await database.fetchrow_write(
        _SQL["opened"],
        *_key(place),
        upload.write_id,
        *pair(token),
        upload.holder,
        upload.caller,
        upload.staged,
        upload.sequencer.text if upload.sequencer else None,
    )


async def peek(database: Database, place: UploadKey) -> tuple[Fence | None, RecordedUpload | None]:
    """Read the fence of the resource and the upload without a lock; None for an upload of another client."""
    (row,) = await database.fetch(_SQL["peek"], *_key(place))
    fence, upload = row["fence"], row["upload"]
    return (
        fence_or_none(fence),
        None if upload is None or upload["resource"] is None else _upload(upload),
    )


async def touch(database: Database, place: UploadKey) -> None:
    await database.fetchrow_write(_SQL["touched"], *_key(place))


async def mark_completed(database: Database, place: UploadKey) -> None:
    await database.fetchrow_write(_SQL["completed"], *_key(place))


async def remove(database: Database, place: UploadKey) -> None:
    """Forget an upload that the store does not have any more."""
    await database.fetchrow_write(_SQL["closed"], *_key(place))


async def forget_completed(database: Database) -> None:
    """Drop the uploads that were completed more than a day ago."""
    await database.fetchrow_write(_SQL["forgotten"])


async def list_left_behind(database: Database, seconds: float, limit: int) -> list[RecordedUpload]:
    """Return the gateway's own uploads that were not touched for so long."""
    return [_upload(row["upload"]) for row in await database.fetch(_SQL["left_behind"], seconds, limit)]


async def any_staged(database: Database, bucket: str) -> bool:
    row = await database.fetchrow(_SQL["any_staged"], bucket)
    return row is not None and bool(row["any"])


async def staged_among(database: Database, bucket: str, upload_ids: Sequence[str]) -> frozenset[str]:
    """Which of these uploads the gateway opened for itself."""
    rows = await database.fetch(_SQL["staged_among"], bucket, list(upload_ids))
    return frozenset(row["upload_id"] for row in rows)


async def staged_below(database: Database, bucket: str, prefixes: Sequence[str]) -> frozenset[str]:
    """Below which of these prefixes the gateway has uploads of its own."""
    rows = await database.fetch(_SQL["staged_below"], bucket, list(prefixes))
    return frozenset(row["prefix"] for row in rows)


def _key(place: UploadKey) -> tuple[str, str, str, str]:
    return place.resource, place.bucket, place.key, place.upload_id


def _upload(row: Record) -> RecordedUpload:
    return RecordedUpload(
        UploadKey(row["resource"], row["bucket"], row["key"], row["upload_id"]),
        row["write_id"],
        token_from_row(row),
        row["holder"],
        row["caller"],
        row["staged"],
        row["completed_at"] is not None,
        None if row["sequencer"] is None else Sequencer.parse(row["sequencer"]),
    )
