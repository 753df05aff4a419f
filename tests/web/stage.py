"""Gateways whose page is asked for: by a browser, for which they run in a thread of their own, or over HTTP alone."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
import httpx

from gateway.config import Config
from tests import running
from tests.postgres import as_owner
from tests.waiting import PATIENCE

Result = TypeVar("Result")
KEYS = {"auditor": "auditor-api-key", "writer": "writer-api-key", "admin": "admin-api-key"}
AUDITOR_KEY, WRITER_KEY = KEYS["auditor"], KEYS["writer"]
CALLERS: list[dict[str, object]] = [
    {"name": "auditor", "api_key": KEYS["auditor"], "groups": ["auditors"]},
    {"name": "writer", "api_key": KEYS["writer"]},
    {"name": "admin", "api_key": KEYS["admin"], "groups": ["admins"]},
]
PAGES = ("/ui/", "/ui/incidents", "/ui/rejections", "/ui/events", "/ui/resources", "/ui/live", "/ui/observe")
"""The pages that are not about one thing."""
SECRET = "public.orders/the-resource-nobody-may-see"
"""A text on record, which no answer to an unauthorised reader may contain."""


@dataclass(frozen=True)
class Stage:
    """A gateway at ``origin``, with the fencing schema, and the tables a test has made, at ``dsn``."""

    origin: str
    dsn: str
    loop: asyncio.AbstractEventLoop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run ``work`` beside the gateway, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    @property
    def host(self) -> str:
        return self.origin.removeprefix("http://")

    def api(self, key: str = WRITER_KEY) -> httpx.Client:
        """A client of the gateway; use it as a context."""
        return httpx.Client(base_url=self.origin, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)

    def sql(self, statement: str, *arguments: object) -> list[asyncpg.Record]:
        """The rows of one statement."""
        return self.run(execute(self.dsn, [(statement, arguments)]))

    @property
    def now(self) -> datetime:
        """The time by the database's clock."""
        moment: datetime = self.sql("SELECT clock_timestamp() AS now")[0]["now"]
        return moment

    def put_on_record(self, entries: Sequence[dict[str, Any]]) -> None:
        """Put entries, as columns of ``fencing.intake``, on record in this order. The next reader seals them."""
        self.run(execute(self.dsn, [_insert(entry) for entry in entries]))

    def session(self, key: str = AUDITOR_KEY) -> str:
        """The session that the login page gives out."""
        known = {"Origin": self.origin}
        answer = httpx.post(f"{self.origin}/ui/login", data={"api_key": key}, headers=known, timeout=PATIENCE)
        assert answer.status_code == 303, answer.text
        return answer.cookies["gateway_session"]


@contextmanager
def staged(config: Config, port: int = 0) -> Iterator[Stage]:
    """Serve a gateway of this configuration for as long as this lasts, on a free port or on this one."""
    with in_a_thread(running.running(config, port=port)) as (origin, loop):
        yield Stage(origin, as_owner(config.default.postgres.dsn.get_secret_value()), loop)


@contextmanager
def in_a_thread(opened: AbstractAsyncContextManager[Result]) -> Iterator[tuple[Result, asyncio.AbstractEventLoop]]:
    """Hold a context open in a thread with a loop of its own."""
    ready, failed, made = threading.Event(), list[BaseException](), list[Result]()
    stop: asyncio.Event
    loop: asyncio.AbstractEventLoop

    async def serve() -> None:
        nonlocal stop, loop
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        async with opened as one:
            made.append(one)
            ready.set()
            await stop.wait()

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - handed on to the test, which would wait for ever
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    try:
        if failed:
            raise failed[0]
        yield made[0], loop
    finally:
        if not failed:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failed:
        raise failed[0]


def _insert(entry: dict[str, Any]) -> tuple[str, tuple[object, ...]]:
    columns = ", ".join(entry)
    places = ", ".join(f"${index}" for index in range(1, len(entry) + 1))
    return f"INSERT INTO fencing.intake ({columns}) VALUES ({places})", tuple(entry.values())


async def execute(dsn: str, statements: Sequence[tuple[str, tuple[object, ...]]]) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(dsn)
    found: list[asyncpg.Record] = []
    try:
        async with connection.transaction():
            for statement, arguments in statements:
                found = await connection.fetch(statement, *arguments)
    finally:
        await connection.close()
    return found


@asynccontextmanager
async def serving(dsn: str, **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway; it follows no redirects."""
    config = running.config(dsn, **{"callers": CALLERS, **sections})
    async with running.running(config) as address, httpx.AsyncClient(base_url=address, timeout=PATIENCE) as client:
        yield client


async def put_on_record(dsn: str) -> None:
    """A refused write of ``SECRET``."""
    row = {
        "kind": "rejection",
        "plane": "tables",
        "rule": "public.orders",
        "resource": SECRET,
        "reason": "token-stale",
        "enforced": True,
        "epoch": 0,
        "value": 33,
        "holder": "worker-a",
        "caller": "writer",
        "method": "PATCH",
        "target": "/v1/tables/orders?id=eq.5",
        "request_id": "r-1",
    }
    await execute(dsn, [_insert(row)])


def origin(client: httpx.AsyncClient) -> dict[str, str]:
    """Return the headers that a browser sends with a form of the gateway."""
    return {"Origin": str(client.base_url).rstrip("/")}


async def log_in(client: httpx.AsyncClient, caller: str = "auditor", **fields: str) -> httpx.Response:
    """Send the login form; a session stays with the client."""
    return await client.post("/ui/login", data={"api_key": KEYS[caller], **fields}, headers=origin(client))
