"""Stores what a process has counted and noted in memory: every few seconds, and at its end."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Protocol

from gateway.auth.callers import KeyUse
from gateway.background import Attempts, background_tasks, repeat, sweep_failed
from gateway.db import key_uses as store
from gateway.db.database import Database
from gateway.observe.events import Observe

INTERVAL = 10.0
"""Seconds between two flushes."""

_GRACE = 3.0  # seconds


class Noted(Protocol):
    """Something that is noted in memory. ``what`` names it in events."""

    @property
    def what(self) -> str: ...

    async def flush(self, database: Database) -> None:
        """Store it. Raise ``GatewayError``: then it is kept for the next flush."""
        ...


@asynccontextmanager
async def flushing(
    database: Database, noted: Sequence[Noted], observe: Observe, interval: float = INTERVAL
) -> AsyncIterator[None]:
    """Flush while this lasts, and once at its end. An error is an event."""

    async def flush() -> None:
        for one in noted:
            await Attempts(observe, partial(sweep_failed, one.what)).make(partial(one.flush, database))

    async with background_tasks(repeat("flushing", flush, observe, interval)):
        yield
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE):
            await flush()


class KeyUses:
    """The uses of all keys of one process, which know until when the database has them."""

    what = "uses of keys"

    def __init__(self, keys: Sequence[KeyUse]) -> None:
        self._keys = keys
        self._stored: dict[KeyUse, float] = {}

    async def flush(self, database: Database) -> None:
        """Store the last use of each key. Raise ``GatewayError``: then it is stored by the next flush."""
        due = {one: last for one in self._keys if (last := one.last) is not None and self._stored.get(one) != last}
        if not due:
            return
        shown = await asyncio.to_thread(lambda: [one.shown() for one in due])
        now = monotonic()
        await store.note(
            database,
            [(one.caller, one.kind, name, now - last) for (one, last), name in zip(due.items(), shown, strict=True)],
        )
        self._stored.update(due)
