"""A gateway in front of two databases, whose servers a test can stop and pause."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
from psycopg.conninfo import conninfo_to_dict

from gateway.changes.ownership import claim_if_new
from gateway.config import Config
from tests.doctor.test_doctor import execute
from tests.doubles.s3 import S3Double, serve
from tests.patience import limited
from tests.postgres import GATEWAY, Server, fresh_database
from tests.postgres_relay import connect
from tests.running import API_KEY, GRANTS, PAIR, Events, running
from tests.waiting import PATIENCE

TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.orders (id bigint PRIMARY KEY, status text);
CREATE TABLE {schema}.plans (tenant text, id bigint, status text, PRIMARY KEY (tenant, id));
INSERT INTO {schema}.orders VALUES (1, 'new'), (2, 'new');
"""
SOON = 3.0
"""Seconds after which a gateway gives up a database that is paused. One that is cut is known to be down at once."""
CALLERS = [{"name": "writer", "groups": ["admins"], "api_key": API_KEY}]
CALLERS[0] |= PAIR


class Line:
    """The path to one database. A test cuts it, so that no connection gets through, or pauses all that is on it."""

    def __init__(self, dsn: str) -> None:
        self._to = conninfo_to_dict(dsn)
        self._open = asyncio.Event()
        self._open.set()
        self._cut, self._writers = False, set[asyncio.StreamWriter]()

    def address(self, port: int) -> str:
        """Return the address of the database behind the port of this path."""
        return f"postgresql://{GATEWAY}@127.0.0.1:{port}/{self._to['dbname']}?sslmode=disable"

    async def __call__(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        if self._cut:
            answers.close()
            return
        server, requests = await connect(self._to)
        self._writers |= {answers, requests}
        if self._cut:  # while it connected
            self.cut()
        with suppress(OSError):
            await asyncio.gather(self._pass(client, requests), self._pass(server, answers))
        self._writers -= {answers, requests}

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self._open.wait()
                target.write(data)
        finally:
            target.close()

    def cut(self) -> None:
        self._cut = True
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        self._cut = False

    def pause(self) -> None:
        self._open.clear()

    def resume(self) -> None:
        self._open.set()


def calling(origin: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE)


async def write(api: httpx.AsyncClient, schema: str, row: int, status: str, token: str) -> httpx.Response:
    headers = {"Fencing-Token": token, "Content-Profile": schema}
    return await api.patch(f"/v1/tables/orders?id=eq.{row}", json={"status": status}, headers=headers)


@dataclass
class Fleet:
    """The gateway, and what is behind it. ``lines`` and ``addresses`` by the names of the databases."""

    origin: str
    lines: dict[str, Line]
    addresses: dict[str, str]
    events: Events
    settings: Config

    def api(self) -> httpx.AsyncClient:
        return calling(self.origin)

    async def asked(self, database: str, query: str, *values: Any) -> list[Any]:
        """Return the first column of a query to a database itself."""
        connection = await asyncpg.connect(self.addresses[database])
        try:
            return [row[0] for row in await connection.fetch(query, *values)]
        finally:
            await connection.close()

    async def fences(self, database: str) -> list[str]:
        """Return the names of all fences in a database."""
        query = "SELECT resource FROM fencing.fence WHERE resource <> '#ownership' ORDER BY 1"
        return await self.asked(database, query)


def databases(north: str, south: str, *, gives_up: float = PATIENCE, **more: Any) -> list[dict[str, Any]]:
    """Return both databases. ``gives_up``: the seconds after which the gateway gives one up that does not answer."""
    common = {"statement_timeout": gives_up}
    return [
        {"name": "north", "dsn": north, "schemas": ["north"], **common},
        {"name": "south", "dsn": south, "schemas": ["south"], **common, "resources": ["tenant-7/**"], **more},
    ]


def settings(listed: list[dict[str, Any]], endpoint: str | None = None, **sections: Any) -> Config:
    """Return the configuration of a gateway with these databases, and with the store at an endpoint."""
    gives_up = min(one.get("statement_timeout", PATIENCE) for one in listed)
    store: dict[str, Any] = {"endpoint": endpoint, "access_key_id": "AKIADOUBLE", "secret_access_key": "double-secret"}
    given = {"databases": listed, "s3": endpoint and store, "callers": CALLERS, "grants": GRANTS[:1], **sections}
    config = Config.model_validate({key: value for key, value in given.items() if value is not None})
    return limited(config, connect_timeout=gives_up, lock_timeout=gives_up)


@asynccontextmanager
async def behind_lines(server: Server) -> AsyncIterator[tuple[dict[str, Line], dict[str, str], dict[str, str]]]:
    """Make two databases. Return their lines, their own addresses, and those behind the lines."""
    async with AsyncExitStack() as stack:
        addresses = {name: await stack.enter_async_context(fresh_database(server)) for name in ("north", "south")}
        lines, behind = {name: Line(address) for name, address in addresses.items()}, {}
        for name, line in lines.items():
            await execute(addresses[name], TABLES.format(schema=name))
            listener = await stack.enter_async_context(await asyncio.start_server(line, "127.0.0.1", 0))
            behind[name] = line.address(listener.sockets[0].getsockname()[1])
        yield lines, addresses, behind
        for line in lines.values():
            line.resume()


@asynccontextmanager
async def fleet(
    server: Server,
    double: S3Double | None = None,
    /,
    *,
    cut: str | None = None,
    buckets: Sequence[str] = ("southern",),
    gives_up: float = PATIENCE,
    **sections: Any,
) -> AsyncIterator[Fleet]:
    """Run a gateway. ``cut``: a database that is down from the beginning. ``buckets``: those of south in a store.

    ``gives_up``: see ``databases``. Tests that pause a line take ``SOON``, so that they do not take long.
    """
    async with AsyncExitStack() as stack:
        lines, addresses, listed = await stack.enter_async_context(behind_lines(server))
        owned = {} if double is None else {"buckets": buckets}
        endpoint = None if double is None else await stack.enter_async_context(serve(double))
        given = databases(listed["north"], listed["south"], gives_up=gives_up, **owned)
        config = settings(given, endpoint, **sections)
        assert await claim_if_new(config)
        if cut is not None:
            lines[cut].cut()
        events = Events()
        origin = await stack.enter_async_context(running(config, events))
        yield Fleet(origin, lines, addresses, events, config)
