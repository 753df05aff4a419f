"""Hears what the database announces, by LISTEN on a session of its own: what is announced to a pool is lost in it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

from gateway.db.pool import Session, translated
from gateway.db.servers import APPLICATION, Servers
from gateway.errors import Unavailable

Channels: TypeAlias = Mapping[str, Collection[str] | None]
"""The channels to listen to, each with the payloads that matter, or None for all payloads."""

CATALOG: Channels = {"pgrst": ("", "reload schema"), "fencing_catalog": None}
"""Changes of tables. PostgREST's channel, which migration tools know, and one of our own. The former also tells it to
read its configuration again, which is none of our business.
"""
LEASES: Channels = {"fencing_lease": None}
"""Locks that have been handed over to a waiter (``hand_over_v1``)."""
RECORD: Channels = {"fencing_record": None}
"""Entries that have been sealed (``seal_v1``)."""

# Seconds without a word after which the session is asked whether it is still there: a lost one may say nothing.
_SILENCE = 30.0


class Announcements:
    """The notifications of one session. Once the session is lost, no more arrive."""

    def __init__(self, session: Session, channels: Channels) -> None:
        self._session, self._channels = session, channels
        self._heard = asyncio.Event()
        self._payloads: list[str] = []

    async def next(self) -> list[str]:
        """Wait until something has been announced since last time: the payloads. Raises ``Unavailable`` once lost."""
        while not self._heard.is_set():
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._heard.wait()
            except TimeoutError:
                with translated(Unavailable):
                    await self._session.execute("SELECT 1", timeout=_SILENCE)
        self._heard.clear()
        if self._session.is_closed():
            raise Unavailable("The session that listens to announcements was lost.")
        payloads, self._payloads = self._payloads, []
        return payloads

    def hear(self, _: object, __: int, channel: str, payload: object) -> None:
        wanted = self._channels[channel]
        if wanted is None or payload in wanted:
            self._payloads.append(str(payload))
            self._heard.set()

    def end(self, _: object) -> None:
        self._heard.set()


Listen: TypeAlias = Callable[[], AbstractAsyncContextManager[Announcements]]


@asynccontextmanager
async def listening(servers: Servers, channels: Channels = CATALOG) -> AsyncIterator[Announcements]:
    """Open a session that listens from here on. Raise ``Unavailable`` if none can be opened."""
    with translated(Unavailable, servers.at, opening=True):
        session = await servers.reach({"application_name": f"{APPLICATION} listening"})
    try:
        announced = Announcements(session, channels)
        session.add_termination_listener(announced.end)
        for channel in channels:
            with translated(Unavailable):
                await session.add_listener(channel, announced.hear)
        yield announced
    finally:
        # Nothing is under way on it that could be lost.
        session.terminate()
