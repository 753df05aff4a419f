"""A gateway with both planes whose statements a test ends, its clients, and what an operator sees behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial, wraps
from itertools import count
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest
from mypy_boto3_s3 import S3Client
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import app
from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.objects.clients import connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.running import KEYS
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


# The gateway --------------------------------------------------------------------------------------------------------

Said: TypeAlias = tuple[int, str]
"""Status and code of an answer; the code of a success is empty."""

SCHEMA = """
CREATE TABLE accounts (id bigint PRIMARY KEY, note text);
CREATE TABLE watched (id bigint PRIMARY KEY, note text);
CREATE TABLE audited (id bigint PRIMARY KEY, note text);
CREATE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER told AFTER UPDATE ON audited FOR EACH ROW EXECUTE FUNCTION told();
CREATE FUNCTION annotate(account bigint, note text) RETURNS void LANGUAGE sql VOLATILE AS
    'UPDATE accounts a SET note = $2 WHERE a.id = $1';
CREATE FUNCTION notes() RETURNS SETOF text LANGUAGE sql STABLE AS 'SELECT note FROM accounts';
"""


@dataclass(frozen=True)
class World:
    """Everything a path needs. ``number`` gives each attempt rows, keys and locks of its own."""

    stage: Stage
    operator: asyncpg.Connection
    api: httpx.AsyncClient
    ender: Ender
    _numbers: "count[int]"

    @property
    def number(self) -> int:
        return next(self._numbers)

    @cached_property
    def clients(self) -> dict[str, S3Client]:
        return {}

    def s3(self, token: int | None = 33) -> S3Client:
        """A client that presents the token with each request."""
        name = str(token)
        if name not in self.clients:
            self.clients[name] = connect(self.stage.origin, None if token is None else name)
        return self.clients[name]

    async def row(self, table: str = "accounts") -> int:
        """A new row; its key."""
        number = self.number
        await self.operator.execute(f"INSERT INTO {table} VALUES ($1, 'before')", number)
        return number

    async def note(self, row: int, table: str = "accounts") -> str:
        note: str = await self.operator.fetchval(f"SELECT note FROM {table} WHERE id = $1", row)
        return note

    async def ask(self, method: str, path: str, document: Any = None, token: int | None = None, **headers: str) -> Said:
        """Ask the API or the tables. Raises what httpx raises where an answer breaks off."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["fencing-token"] = str(token)
        answer = await self.api.request(method, path, json=document, headers=sent)
        return said(answer)

    async def object(self, body: bytes = b"before", token: int = 33) -> str:
        """A new object; its key."""
        key = f"key-{self.number}"
        assert await outcome(self.s3(token).put_object, Key=key, Body=body) == (200, "")
        return key


def said(answer: httpx.Response) -> Said:
    """Return the status and the error code of an answer of the API, of the tables, or of the page."""
    if answer.status_code < 400:
        return answer.status_code, ""
    if "json" not in answer.headers["content-type"]:
        return answer.status_code, "unavailable" if answer.status_code == 503 else answer.text
    return answer.status_code, answer.json().get("code", "unavailable")


Check: TypeAlias = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class Attempt:
    """One request that is ready to be sent. ``expected``: statuses where nothing was ended.

    ``effect`` tells whether it took effect, where that is a promise to its sender. ``after`` clears away.
    """

    send: Callable[[], Awaitable[Said]]
    expected: tuple[int, ...] = (200,)
    effect: Check | None = None
    after: Callable[[], Awaitable[object]] | None = None


@asynccontextmanager
async def opened(postgres: EmbeddedPostgres, patch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    mark_the_background(patch)
    double = S3Double(buckets=["bucket"])
    double.behave(minimum_part_size=1)
    sections: dict[str, Any] = {
        "callers": [{"name": "writer", "groups": ["admins"], **KEYS}],
        "limits": {"memory_threshold": 100},
        "postgres": {"functions": ["public.annotate", "public.notes"]},
        "tables": [{"name": "public.watched", "mode": "observe"}],
        "leases": {"signing_keys": ["k" * 32]},
    }
    async with staged(postgres, double, **sections) as stage:
        operator, ending = await asyncpg.connect(stage.dsn), await asyncpg.connect(stage.dsn)
        try:
            await operator.execute(SCHEMA)
            for table in ("accounts", "watched", "audited"):
                await stage.knows(table)
            async with stage.api() as api:
                world = World(stage, operator, api, Ender(patch, ending, operator), count(1))
                await world.object()  # the bucket is probed once
                yield world
        finally:
            await operator.close()
            await ending.close()
