"""Keeps what is known of the tables up to date in the background, and finds at start what is to be warned of.

It is a matter of convenience: a caller that is the first to meet a change waits for the catalog to be read, and new
columns and keys are known before anybody has asked for them in vain.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from gateway.background import said, working
from gateway.observe.events import Observe, ServiceUnreachable
from gateway.store.notifications import Listen
from gateway.tables.known import KnownTables

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


def following(tables: KnownTables, listen: Listen | None, observe: Observe) -> AbstractAsyncContextManager[None]:
    """As long as this lasts. Without ``listen`` the catalog is read but once, as soon as the database is there."""
    follow = _Follow(tables, observe)
    return working(follow.once() if listen is None else follow.always(listen))


class _Follow:
    def __init__(self, tables: KnownTables, observe: Observe) -> None:
        self._tables, self._observe = tables, observe
        self._pause = _FIRST_PAUSE

    async def once(self) -> None:
        while not await self._tried(self._read):
            await self._rest()

    async def always(self, listen: Listen) -> None:
        while True:
            await self._tried(lambda: self._listen(listen))
            await self._rest()

    async def _listen(self, listen: Listen) -> None:
        """Until the session is lost. What was announced while there was none has been missed."""
        async with listen() as announced:
            while True:
                await self._read()
                await announced.next()

    async def _read(self) -> None:
        await self._tables.renew()
        self._pause = _FIRST_PAUSE

    async def _tried(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was done. What goes wrong is announced once until it goes well again."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
            if self._pause == _FIRST_PAUSE:
                self._observe(ServiceUnreachable("postgres", f"The catalog is not followed: {said(error)}"))
            return False
        return True

    async def _rest(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
