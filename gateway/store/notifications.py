"""Hears what the database announces, by LISTEN on a session of its own: what is announced to a pool is lost in it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

import asyncpg

from gateway.errors import Unavailable
from gateway.store.database import translated
from gateway.store.sessions import Session

CHANNELS = ("pgrst", "fencing_catalog")
"""PostgREST's channel, which migration tools know, and one of our own."""

# PostgREST's channel also tells it to read its configuration again, which is none of our business.
_PAYLOADS = {"pgrst": ("", "reload schema")}
# Seconds without a word after which the session is asked whether it is still there: a lost one may say nothing.
_SILENCE = 30.0


class Announced:
    """What one session hears. Once it is lost there is no more to hear."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._heard = asyncio.Event()

    async def next(self) -> None:
        """Wait until the catalog is said to have changed since last time. Raises ``Unavailable`` once it is lost."""
        while not self._heard.is_set():
            try:
                async with asyncio.timeout(_SILENCE):
                    await self._heard.wait()
            except TimeoutError:
                with translated(Unavailable):
                    await self._session.execute("SELECT 1", timeout=_SILENCE)
        self._heard.clear()
        if self._session.is_closed():
            raise Unavailable("The session that listens to changes of the catalog was lost.")

    def hear(self, _: object, __: int, channel: str, payload: object) -> None:
        if payload in _PAYLOADS.get(channel, (payload,)):
            self._heard.set()

    def end(self, _: object) -> None:
        self._heard.set()


Listen: TypeAlias = Callable[[], AbstractAsyncContextManager[Announced]]


@asynccontextmanager
async def listening(dsn: str, connect_timeout: float) -> AsyncIterator[Announced]:
    """A session that listens from here on. Raises ``Unavailable`` where there is none to be had."""
    settings: dict[str, Any] = {"server_settings": {"application_name": "fencing-gateway listening"}}
    with translated(Unavailable):
        session: Session = await asyncpg.connect(dsn, timeout=connect_timeout, **settings)
    try:
        announced = Announced(session)
        session.add_termination_listener(announced.end)
        for channel in CHANNELS:
            with translated(Unavailable):
                await session.add_listener(channel, announced.hear)
        yield announced
    finally:
        # Nothing is under way on it that could be lost.
        session.terminate()
