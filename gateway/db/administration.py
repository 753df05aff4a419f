"""The record of what callers do that only some may: change a bucket or its settings, take out credentials."""

import json

from gateway.db.database import Database
from gateway.db.queries import load
from gateway.errors import OutcomeUnknown, Unavailable
from gateway.fencing.record import Attempt

_SQL = load("administration")


async def record(
    database: Database, attempt: Attempt, operation: str, resource: str | None = None, **details: object
) -> None:
    """Put on record, durably, what a caller is about to do. ``details`` are JSON, and no secrets.

    Raises ``Unavailable`` or ``SqlError``: then it must not be done, though it may be on record.
    """
    token = attempt.token
    try:
        await database.fetchrow_write(
            _SQL["record"],
            attempt.plane,
            resource,
            token.epoch if token else None,
            token.value if token else None,
            attempt.holder,
            attempt.caller,
            attempt.method,
            attempt.target,
            attempt.client,
            attempt.request_id,
            json.dumps({"operation": operation, **details}),
        )
    except OutcomeUnknown as error:
        raise Unavailable(error.message) from error
