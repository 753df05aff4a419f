"""Ends one statement of a request: the n-th that it sends to PostgreSQL, on whichever session."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from functools import partial, wraps
from typing import Any

import asyncpg
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import app
from tests.waiting import PATIENCE

# Statements that ``asyncpg.Connection`` sends. A transaction sends its own by ``execute``.
_METHODS = ("fetch", "fetchrow", "fetchmany", "execute", "copy_from_query")
_execute = asyncpg.Connection.execute

# The server ends this statement with 57014, as it does at ``statement_timeout``.
_CANCELLED = "DO $$ BEGIN PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(60); END $$"

_IN_BACKGROUND = ContextVar("in_background", default=False)


class How(StrEnum):
    """How a statement ends. ``LOST``: it was carried out, and the session ended before its answer arrived."""

    TIMEOUT = "timeout"
    TERMINATED = "terminated"
    LOST = "lost"


class Fault:
    """Strikes the statement of this number, counted from 1. ``struck`` is its text, once it was sent."""

    def __init__(self, number: int, how: How, own: tuple[asyncpg.Connection, ...]) -> None:
        self._left, self._how, self._own, self._operator = number, how, own, own[0]
        self.struck: str | None = None

    def strikes(self, session: asyncpg.Connection, sql: str) -> bool:
        """Count the statement, and return whether it is the one to end."""
        # No timeout ends a rollback. The operator's sessions belong to the test.
        timeless = self._how is How.TIMEOUT and sql.upper().startswith("ROLLBACK")
        if timeless or session in self._own or _IN_BACKGROUND.get():
            return False
        self._left -= 1
        if self._left == 0:
            self.struck = sql
        return self._left == 0

    async def strike(self, session: asyncpg.Connection, statement: Callable[[], Awaitable[object]]) -> object:
        """End the statement that ``statement()`` would send. Raises what asyncpg makes of that."""
        if self._how is How.TIMEOUT:
            return await _execute(session, _CANCELLED)
        if self._how is How.LOST:
            await statement()
        await self._end(session.get_server_pid())
        return await statement()

    async def _end(self, session: int) -> None:
        """End the session, and return once it is gone. PostgreSQL can wait itself, but looks only each 100 ms."""
        await self._operator.execute("SELECT pg_terminate_backend($1)", session)
        async with asyncio.timeout(PATIENCE):
            while await self._operator.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", session):
                await asyncio.sleep(0.001)


class Ender:
    """Ends statements of gateways in this process, except those that they send in the background."""

    def __init__(self, patch: pytest.MonkeyPatch, *own: asyncpg.Connection) -> None:
        """``own``: the test's sessions. The first one ends others, perhaps still after the request was answered."""
        self._fault: Fault | None = None
        self._own = own
        for name in _METHODS:
            patch.setattr(asyncpg.Connection, name, self._ending(getattr(asyncpg.Connection, name)))

    @contextmanager
    def ending(self, number: int, how: How) -> Iterator[Fault]:
        """End the statement of this number, counted from here on."""
        fault = self._fault = Fault(number, how, self._own)
        try:
            yield fault
        finally:
            self._fault = None

    def _ending(self, original: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        @wraps(original)
        async def sent(session: asyncpg.Connection, sql: str, *arguments: Any, **named: Any) -> object:
            fault = self._fault
            statement = partial(original, session, sql, *arguments, **named)
            if fault is None or not fault.strikes(session, sql):
                return await statement()
            return await fault.strike(session, statement)

        return sent


def mark_the_background(patch: pytest.MonkeyPatch) -> None:
    """Let gateways that are built from here on mark what they do beside answering."""
    build = app.build

    def built(*arguments: Any) -> ASGIApp:
        gateway = build(*arguments)

        async def marking(scope: Scope, receive: Receive, send: Send) -> None:
            # Tasks that begin in here inherit the mark.
            _IN_BACKGROUND.set(scope["type"] == "lifespan")
            await gateway(scope, receive, send)

        return marking

    patch.setattr(app, "build", built)
