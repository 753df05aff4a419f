"""Forgets the answers that were kept under idempotency keys, in the background, once they are old enough.

A matter of room only: each gateway does it, that several do at once does no harm, and an answer that is not forgotten
yet still comes again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.errors import GatewayError
from gateway.observe.events import Observe, SweepFailed
from gateway.store import idempotency
from gateway.store.database import Database

INTERVAL = 60.0
"""Seconds between two rounds."""

_BATCH = 500
_MOST_BATCHES = 100


@asynccontextmanager
async def forgetting(
    database: Database, retention: float, observe: Observe, interval: float = INTERVAL
) -> AsyncIterator[None]:
    """As long as this lasts. ``retention`` is in seconds, of the database's clock. What goes wrong is an event."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_keep_forgetting(database, retention, observe, interval))
        try:
            yield
        finally:
            task.cancel()


async def forget(database: Database, retention: float) -> int:
    """One round: in small batches, so that nobody waits for a long transaction; how many are gone."""
    gone = 0
    for _ in range(_MOST_BATCHES):
        batch = await idempotency.forget(database, retention, _BATCH)
        gone += batch
        if batch < _BATCH:
            break
    return gone


async def _keep_forgetting(database: Database, retention: float, observe: Observe, interval: float) -> None:
    while True:
        await asyncio.sleep(interval)
        try:
            await forget(database, retention)
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
            said = error.message if isinstance(error, GatewayError) else type(error).__name__
            observe(SweepFailed("answers under idempotency keys", said))
