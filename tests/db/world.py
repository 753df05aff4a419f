"""A gateway with both planes, the clients that ask it, and what an operator sees in the database and the store."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from tests.db.ending import Ender, mark_the_background
from tests.doubles.s3 import S3Double
from tests.objects.clients import connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.patience import LIMITS
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

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
    callers = [
        {
            "name": "writer",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "api_key": API_KEY,
            "groups": ["admins"],
        }
    ]
    sections: dict[str, Any] = {
        "callers": callers,
        "s3": {"memory_threshold": 100},
        "postgres": {
            "functions": ["public.annotate", "public.notes"],
            "openapi": True,
            **LIMITS,
        },
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
