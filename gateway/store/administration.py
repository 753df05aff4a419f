"""The record of who changed a bucket or its settings."""

from gateway.fencing.record import Attempt
from gateway.store.database import Database
from gateway.store.queries import load

_SQL = load("administration")


async def record(database: Database, attempt: Attempt, operation: str, bucket: str) -> None:
    """Put on record, durably, what a caller is about to do to a bucket."""
    await database.fetchrow_write(
        _SQL["record"],
        attempt.caller,
        operation,
        bucket,
        f"{attempt.method} {attempt.target}",
        attempt.client,
        attempt.request_id,
    )
