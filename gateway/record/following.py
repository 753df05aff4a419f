"""Follows the record: new entries are read once for all subscriptions. A slow subscription reads them itself.

A subscription holds only its position, so a slow one costs no memory. A client that reconnects with its last position
misses no entry and gets none twice.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date
from functools import partial
from itertools import islice

from gateway.background import Attempts, background_tasks, unreachable, wait_until
from gateway.db import record, search
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import RequestMalformed, Unavailable
from gateway.fencing.record import Entry, Filters
from gateway.observe.events import Observe

BATCH = 100
"""The most entries that are handed over at once."""
KEPT = 2000
"""So many of the newest entries are in memory, once for all subscriptions."""
# Seconds between two looks at the record without a notification.
_LOOK = 1.0
_LONGEST_PAUSE = 30.0


class Subscription:
    """The entries that one reader asks for, from a position on, each once and in order. It holds none of them."""

    def __init__(self, follower: "Follower", filters: Filters, position: int) -> None:
        self._follower, self._filters = follower, filters
        self.position = position
        """All entries up to here have been handed over, or do not match."""

    async def next(self, *, waits: bool = True) -> Sequence[Entry]:
        """Wait until there are entries after ``position``; return some of them, or none once the follower is closed.

        A cancelled call may be repeated. Unless it ``waits`` for a database that has become unavailable while the
        follower reads new entries, it raises ``Unavailable`` then.

        Raise ``Unavailable`` if the database is unavailable. The call may be repeated then, too.
        """
        while not self._follower.closed:
            news = self._follower.news
            if self._follower.failing and not waits:
                raise Unavailable("The record cannot be followed.")
            found, position = await self._follower.look(self._filters, self.position)
            if position == self.position:
                await news.wait()
            self.position = position
            if found:
                return found
        return ()


class Follower:
    """Reads new entries for one process: on notifications, else every second, and only while a reader subscribes."""

    def __init__(self, database: Database, observe: Observe, listen: Listen | None, *, kept: int = KEPT) -> None:
        """``listen`` opens a session that receives notifications of new entries; None: it polls."""
        self._database, self._observe, self._listen = database, observe, listen
        self._recent: deque[Entry] = deque(maxlen=kept)
        self._end: tuple[int, date] | None = None
        self._followers = 0
        self._followed, self._heard = asyncio.Event(), asyncio.Event()
        self.news = asyncio.Event()
        """Set when there are new entries, and replaced by another event."""
        self.failing = False
        """Whether the last try to read new entries has failed."""
        self.closed = False
        """Whether all subscriptions have ended, so that their readers subscribe elsewhere."""

    @property
    def followers(self) -> int:
        return self._followers

    def close(self) -> None:
        self.closed = True
        self._wake()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Return a context in which the record is followed. It waits by itself for an unavailable database."""
        if self._listen is None:
            return background_tasks(self._follow())
        return background_tasks(self._follow(), self._hear(self._listen))

    @asynccontextmanager
    async def subscribed(self, filters: Filters, after: int | None = None) -> AsyncIterator[Subscription]:
        """Subscribe to the entries after a position, or without one to the entries that are recorded from now on.

        Raise ``RequestMalformed`` for a position that the record has not reached.
        """
        end = await record.seal(self._database)
        if after is not None and after > end:
            raise RequestMalformed(f"The record has no position {after} yet: it ends at {end}.")
        self.failing = False
        self._followers += 1
        self._followed.set()
        self._heard.set()
        try:
            yield Subscription(self, filters, end if after is None else after)
        finally:
            self._followers -= 1
            if not self._followers:
                # The next subscription begins at the end of the record at that time.
                self._followed.clear()
                self._end = None
                self._recent.clear()

    async def look(self, filters: Filters, position: int) -> tuple[Sequence[Entry], int]:
        """Return some of the matching entries after a position, and the position reached, as far as is known."""
        if self._end is None:
            return (), position
        begin = self._end[0] - len(self._recent)
        if position < begin:
            found = await search.find_page(
                self._database, filters, BATCH, after=position, before=begin + 1, oldest_first=True
            )
            return found, found[-1].position if len(found) == BATCH else begin
        admitted: list[Entry] = []
        for entry in islice(self._recent, position - begin, None):
            if len(admitted) == BATCH:
                break
            position = entry.position
            if filters.admit(entry):
                admitted.append(entry)
        return admitted, position

    async def _follow(self) -> None:
        attempts = self._attempts()
        while True:
            await self._followed.wait()
            self._heard.clear()
            self.failing = not await attempts.make(self._read_on)
            if self.failing:
                self._wake()
            await wait_until(self._heard, attempts.pause)

    async def _read_on(self) -> None:
        if self._end is None:
            end = await search.read_end(self._database)
            if self._followers:
                self._end = end
                self._wake()
        while self._end is not None:
            position, day = self._end
            found = await search.read_after(self._database, position, day, self._recent.maxlen or BATCH)
            if not found or self._end != (position, day):
                return
            self._recent.extend(entry for entry, _ in found)
            self._end = found[-1][0].position, found[-1][1]
            self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def _hear(self, listen: Listen) -> None:
        attempts = self._attempts()

        async def hear() -> None:
            async with listen() as announced:
                attempts.succeeded()
                while True:
                    await announced.next()
                    self._heard.set()

        await attempts.repeat(hear)

    def _attempts(self) -> Attempts:
        failed = partial(unreachable, "postgres", "The record is not followed")
        return Attempts(self._observe, failed, _LOOK, _LONGEST_PAUSE)
