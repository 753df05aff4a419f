"""Forgets the answers that were kept under idempotency keys, in the background, once they are old enough.

A matter of room only: each gateway does it, that several do at once does no harm, and an answer that is not forgotten
yet still comes again.
"""

from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.background import background_tasks, repeat
from gateway.db import idempotency
from gateway.db.database import Database
from gateway.observe.events import Observe

INTERVAL = 60.0
"""Seconds between two rounds."""

_BATCH = 500
_MOST_BATCHES = 100


def forgetting(
    database: Database, retention: float, observe: Observe, interval: float = INTERVAL
) -> AbstractAsyncContextManager[None]:
    """As long as this lasts. ``retention`` is in seconds, of the database's clock. What goes wrong is an event."""
    return background_tasks(
        repeat("answers under idempotency keys", partial(forget, database, retention), observe, interval)
    )


async def forget(database: Database, retention: float) -> int:
    """One round: in small batches, so that nobody waits for a long transaction; how many are gone."""
    gone = 0
    for _ in range(_MOST_BATCHES):
        batch = await idempotency.forget(database, retention, _BATCH)
        gone += batch
        if batch < _BATCH:
            break
    return gone
