"""Follows the record: new entries are read once for all who follow, and whoever falls behind reads them by itself.

Nothing is kept for a follower but its position. So one that is slow, or does not read at all, costs no memory here, and
one that comes back with its last position misses nothing and gets nothing twice.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import date
from itertools import islice

from gateway.background import background_tasks, describe_failure
from gateway.db import record, search
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import RequestMalformed
from gateway.fencing.record import Entry, Filters
from gateway.observe.events import Observe, ServiceUnreachable

BATCH = 100
"""So many entries are handed over at once, at the most."""
KEPT = 2000
"""So many of the newest entries are in memory, once for all who follow."""
# Seconds after which the record is looked at though nothing was heard of it.
_LOOK = 1.0
_LONGEST_PAUSE = 30.0


class Subscription:
    """The entries one reader asks for, from a position on, each once and in order. It holds none of them itself."""

    def __init__(self, follower: "Follower", filters: Filters, position: int) -> None:
        self._follower, self._filters = follower, filters
        self.position = position
        """All entries up to here have been handed over, or are not asked for."""

    async def next(self) -> Sequence[Entry]:
        """Wait until there are entries after ``position``; some of them. May be cancelled at any time, and go on.

        Raises ``Unavailable`` where the database is away: it may be asked again.
        """
        while True:
            news = self._follower.news
            found, position = await self._follower.look(self._filters, self.position)
            if position == self.position:
                await news.wait()
            self.position = position
            if found:
                return found


class Follower:
    """One a process. Hears of new entries, and asks every second where it does not; nothing while nobody follows."""

    def __init__(self, database: Database, observe: Observe, listen: Listen | None, *, kept: int = KEPT) -> None:
        """``listen``: opens a session that hears of new entries; None where that is not possible (poolers)."""
        self._database, self._observe, self._listen = database, observe, listen
        self._recent: deque[Entry] = deque(maxlen=kept)
        self._end: tuple[int, date] | None = None
        self._followers = 0
        self._followed, self._heard = asyncio.Event(), asyncio.Event()
        self.news = asyncio.Event()
        """Set, and replaced by another, whenever there are new entries."""

    @property
    def followers(self) -> int:
        """How many follow at the moment."""
        return self._followers

    def running(self) -> AbstractAsyncContextManager[None]:
        """As long as this lasts. Waits by itself for a database that is away."""
        if self._listen is None:
            return background_tasks(self._follow())
        return background_tasks(self._follow(), self._hear(self._listen))

    @asynccontextmanager
    async def subscribed(self, filters: Filters, after: int | None = None) -> AsyncIterator[Subscription]:
        """The entries after a position; without one, those that are put on record from now on.

        Raises ``RequestMalformed`` for a position that the record has not reached.
        """
        end = await record.seal(self._database)
        if after is not None and after > end:
            raise RequestMalformed(f"The record has no position {after} yet: it ends at {end}.")
        self._followers += 1
        self._followed.set()
        self._heard.set()
        try:
            yield Subscription(self, filters, end if after is None else after)
        finally:
            self._followers -= 1
            if not self._followers:
                # Who comes next begins at the end of that time, however long nobody looked.
                self._followed.clear()
                self._end = None
                self._recent.clear()

    async def look(self, filters: Filters, position: int) -> tuple[Sequence[Entry], int]:
        """Some of the entries after a position that are asked for, and how far that has got; as far as is known."""
        if self._end is None:
            return (), position
        begin = self._end[0] - len(self._recent)
        if position < begin:
            found = await search.page(
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
        pause = _LOOK
        while True:
            await self._followed.wait()
            self._heard.clear()
            try:
                await self._read_on()
                pause = _LOOK
            except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
                self._tell(pause, error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                async with asyncio.timeout(pause):
                    await self._heard.wait()
            except TimeoutError:
                pass

    async def _read_on(self) -> None:
        if self._end is None:
            end = await search.end(self._database)
            if self._followers:
                self._end = end
                self._wake()
        while self._end is not None:
            position, day = self._end
            found = await search.after(self._database, position, day, self._recent.maxlen or BATCH)
            if not found or self._end != (position, day):
                return
            self._recent.extend(entry for entry, _ in found)
            self._end = found[-1][0].position, found[-1][1]
            self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    async def _hear(self, listen: Listen) -> None:
        pause = _LOOK
        while True:
            try:
                async with listen() as announced:
                    pause = _LOOK
                    while True:
                        await announced.next()
                        self._heard.set()
            except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
                self._tell(pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _tell(self, pause: float, error: Exception) -> None:
        """What goes wrong is announced once until it goes well again."""
        if pause == _LOOK:
            self._observe(ServiceUnreachable("postgres", f"The record is not followed: {describe_failure(error)}"))
