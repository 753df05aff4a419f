"""Holders of locks, as they ask the gateway over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from tests.processes import Running, free_port, started
from tests.releases import write_toml
from tests.running import API_KEY, GRANTS, Events, config, running
from tests.waiting import PATIENCE

OTHER_KEY, ADMIN_KEY = "other-api-key", "admin-api-key"
CALLERS = [
    {"name": "writer", "api_key": API_KEY},
    {"name": "other", "api_key": OTHER_KEY},
    {"name": "operator", "api_key": ADMIN_KEY, "groups": ["admins"]},
]

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
needs_faketime = pytest.mark.skipif(
    FAKETIME is None, reason="libfaketime is not installed: apt-get install libfaketime"
)


def lies(clock: Path, *, timers: bool = False) -> dict[str, str]:
    """The environment of a process that takes the time from a file. ``timers``: not just the time of day."""
    clock.write_text("+0d\n")
    return {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "0" if timers else "1",
    }


@dataclass(frozen=True, slots=True)
class Caller:
    """One configured caller of one gateway."""

    http: httpx.AsyncClient

    async def acquire(self, resource: str, holder: str, **wish: object) -> httpx.Response:
        return await self.http.post(f"/v1/leases/{resource}", json={"holder": holder, **wish})

    async def got(self, resource: str, holder: str, **wish: object) -> dict[str, Any]:
        """The lease, which must be had."""
        answer = await self.acquire(resource, holder, **wish)
        assert answer.status_code in (200, 201), answer.text
        lease: dict[str, Any] = answer.json()
        return lease

    async def renew(self, lease: dict[str, Any], **wish: object) -> httpx.Response:
        return await self.http.put(_path(lease), json=wish)

    async def release(self, lease: dict[str, Any]) -> httpx.Response:
        return await self.http.delete(_path(lease))

    async def withdraw(self, resource: str, holder: str, request: str) -> httpx.Response:
        return await self.http.post(f"/v1/withdrawals/{resource}", json={"holder": holder, "request": request})

    async def lock(self, resource: str) -> dict[str, Any]:
        """How the lock stands."""
        answer = await self.http.get(f"/v1/leases/{resource}")
        assert answer.status_code == 200, answer.text
        view: dict[str, Any] = answer.json()
        return view

    async def break_lock(self, resource: str, expected: str, reason: str = "a test") -> httpx.Response:
        return await self.http.post(f"/v1/breaks/{resource}", json={"expected": expected, "reason": reason})

    async def barrier(self, resource: str, token: str) -> httpx.Response:
        return await self.http.post(f"/v1/fences/{resource}/barrier", json={"token": token})

    async def until(self, resource: str, **wanted: object) -> dict[str, Any]:
        """How the lock stands, once it stands as ``wanted``."""
        async with asyncio.timeout(PATIENCE):
            while True:
                view = await self.lock(resource)
                if all(view[name] == value for name, value in wanted.items()):
                    return view
                await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Service:
    """A gateway with three callers, what it has announced, and its database."""

    origin: str
    writer: Caller
    other: Caller
    operator: Caller
    events: Events
    dsn: str

    async def rows(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Ask the database itself."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            await connection.close()


@asynccontextmanager
async def served(dsn: str, **sections: Any) -> AsyncIterator[Service]:
    """A gateway in the test's own event loop."""
    events = Events()
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(running(config(dsn, callers=CALLERS, **sections), events))
        writer = await stack.enter_async_context(calling(origin))
        other = await stack.enter_async_context(calling(origin, OTHER_KEY))
        operator = await stack.enter_async_context(calling(origin, ADMIN_KEY))
        yield Service(origin, writer, other, operator, events, dsn)


@contextmanager
def serving(dsn: str, directory: Path, more: Mapping[str, str] | None = None) -> Iterator[tuple[Running, str]]:
    """A gateway in a process of its own, once it listens; and its origin. ``more``: what is in its environment."""
    port = free_port()
    sections = {"server": {"listen": f"127.0.0.1:{port}"}, "postgres": {"dsn": dsn}, "callers": CALLERS[:1]}
    written = write_toml(directory / "gateway.toml", {**sections, "grants": GRANTS[2:]})
    with started("serve", "--config", written, more=more) as process:
        process.wait_for(lambda: "listening" in process.said())
        yield process, f"http://127.0.0.1:{port}"


@asynccontextmanager
async def calling(origin: str, key: str = API_KEY) -> AsyncIterator[Caller]:
    """Yield a caller with this API key."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=2 * PATIENCE, limits=limits) as http:
        yield Caller(http)


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["advice"]
    return answer.status_code, document["code"]


def value(lease: dict[str, Any]) -> int:
    """The value of a token of epoch 0."""
    return int(lease["token"])


def _path(lease: dict[str, Any]) -> str:
    return f"/v1/leases/{lease['resource']}/{lease['lease']}"
