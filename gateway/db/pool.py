"""Open sessions with Postgres, handed out one at a time.

asyncpg's own pool costs more than the statement of a fenced write (decision 015). It resets sessions and releases them
in a task of their own. The gateway never changes settings of its sessions, so neither is needed. If foreign code in the
database changes a reported setting, the session is not used again.
"""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import asyncpg

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""Errors of a session that was lost, or never opened. The caller decides whether a statement under way took effect."""

_GOODBYE = 2.0
"""Seconds that a server has to end a session."""


@dataclass(frozen=True, slots=True)
class SessionUse:
    """Sessions in use and idle, out of ``limit``, and how many wait for one."""

    limit: int
    in_use: int
    idle: int
    waiting: int


class SessionPool:
    """At most ``limit`` sessions, opened when they are needed. Waiters are served in turn."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Session]],
        limit: int,
        timeout: float,
        *,
        sound: Callable[[Session], bool] = lambda _: True,
    ) -> None:
        """``timeout``: seconds to wait for a session before ``TimeoutError``. ``sound``: whether it may be reused."""
        self._connect, self._sound = connect, sound
        self._limit = self._room = limit
        self._timeout = timeout
        self._idle: deque[Session] = deque()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False

    @property
    def use(self) -> "SessionUse":
        """How they are used at the moment."""
        return SessionUse(self._limit, self._limit - self._room - len(self._idle), len(self._idle), len(self._waiting))

    async def take(self) -> Session:
        """Return a session for the caller alone, until it is given back or dropped. Raise what connecting raises."""
        while True:
            while self._idle:
                session = self._idle.pop()
                if not session.is_closed():
                    return session
                self._room += 1
            if self._room:
                return await self._open()
            await self._turn()

    def give(self, session: Session) -> None:
        """Give a session back whose last statement is over. One that is still inside a transaction is not reused."""
        if self._closed or session.is_closed() or session.is_in_transaction() or not self._sound(session):
            self.drop(session)
            return
        self._idle.append(session)
        self._wake()

    def drop(self, session: Session) -> None:
        """Drop a session of unknown state. The server rolls back what it had not committed."""
        session.terminate()
        self._room += 1
        self._wake()

    async def close(self) -> None:
        """Close what is idle; what is in use goes when it is given back."""
        self._closed = True
        idle, self._idle = self._idle, deque()
        await asyncio.gather(*map(_close, idle))

    async def _open(self) -> Session:
        self._room -= 1
        try:
            return await self._connect()
        except BaseException:
            self._room += 1
            self._wake()
            raise

    async def _turn(self) -> None:
        """Wait until there may be something to take."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        # asyncio.timeout would do the same, at three times the price, for each write of a busy gateway.
        limit = loop.call_later(self._timeout, _give_up, turn)
        try:
            await turn
        except BaseException:
            # If the turn had come already, the next one in the line must not miss it.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._wake()
            raise
        finally:
            limit.cancel()
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


async def _close(session: Session) -> None:
    """Close a session. A server that is paused or gone does not answer."""
    # In each case asyncpg has closed the connection before it raises.
    with suppress(*LOST):
        await session.close(timeout=_GOODBYE)


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())


FOLDER = Path(__file__).with_name("queries")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(subject: str) -> dict[str, str]:
    """Return the queries of ``gateway/db/queries/{subject}.sql`` by name."""
    pieces = _NAME.split((FOLDER / f"{subject}.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
