"""Two databases with a server each: one is put back to a backup or fails over, and the other one goes on."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.config import Config
from gateway.journal import rows
from tests.crash.soak.servers import Database
from tests.databases.fleet import SOON, TABLES, databases, settings
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.postgres import GATEWAY, Server, as_gateway, fresh, fresh_database, install, memory_or_disk
from tests.processes import called
from tests.running import API_KEY, Events, running
from tests.standbys import Pair, paused, replicated
from tests.waiting import PATIENCE

pytestmark = pytest.mark.thorough


@pytest.fixture
def restorable() -> Iterator[Database]:
    """Run a server that can be put back to a backup."""
    with tempfile.TemporaryDirectory(prefix="pg", dir=memory_or_disk(), ignore_cleanup_errors=True) as directory:
        database = Database(Path(directory))
        try:
            install(database.dsn)
            yield database
        finally:
            database.close()


async def prepared(dsn: str, schema: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES.format(schema=schema))
    await connection.close()


@asynccontextmanager
async def client(origin: str) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as api:
        yield api


async def written(api: httpx.AsyncClient, schema: str, token: int) -> tuple[int, str]:
    headers = {"Fencing-Token": str(token), "Content-Profile": schema}
    answer = await api.patch("/v1/tables/orders?id=eq.1", json={"status": str(token)}, headers=headers)
    return answer.status_code, answer.json()["code"] if answer.content else ""


async def until_written(api: httpx.AsyncClient, schema: str, token: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await written(api, schema, token))[0] != 204:
            await asyncio.sleep(0.1)


JOURNALS: dict[str, dict[str, Any]] = {
    "sync in a bucket": {"mode": "sync", "bucket": "journal", "prefix": "south/"},
    "async in a bucket": {"mode": "async", "bucket": "journal", "prefix": "south/"},
    "sync by DSN": {"mode": "sync"},
    "off": {"mode": "off"},
}


@asynccontextmanager
async def journalled(north: str, second: str, south: str, kind: str) -> AsyncIterator[tuple[Config, dict[str, str]]]:
    """Return a configuration, and the variables that give it to a command.

    To accept a loss takes minutes where a store has objects, so that case has no store.
    """
    journal = dict(JOURNALS[kind])
    if kind == "sync by DSN":
        await rows.install(second, GATEWAY)
        journal["dsn"] = as_gateway(second)
    listed = databases(as_gateway(north), as_gateway(south), gives_up=SOON, journal=journal)
    if kind == "off":
        yield settings(listed), {"GATEWAY_DATABASES": json.dumps(listed)}
        return
    listed[0]["journal"] = {"mode": "sync", "bucket": "journal", "prefix": "north/"}
    async with serve(S3Double(buckets=["northern", "southern", "journal"])) as endpoint:
        store = {"endpoint": endpoint, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
        yield settings(listed, endpoint), {"GATEWAY_DATABASES": json.dumps(listed), "GATEWAY_S3": json.dumps(store)}


@pytest.mark.parametrize("kind", JOURNALS)
async def test_a_database_that_was_put_back_serves_no_stale_holder_and_the_other_goes_on(
    postgres_server: Server, restorable: Database, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    south = restorable
    async with (
        fresh_database(postgres_server) as north,
        fresh_database(postgres_server) as second,
        journalled(north, second, south.dsn, kind) as (config, variables),
    ):
        await prepared(north, "north")
        await prepared(south.dsn, "south")
        async with running(config, Events()) as origin, client(origin) as api:
            for schema in ("north", "south"):
                await until_written(api, schema, 5)
            backup = await asyncio.to_thread(south.backup)
            # Acknowledged after the backup, and long enough before the loss for a journal of any mode.
            for schema in ("north", "south"):
                answer = await api.post(f"/v1/fences/{schema}.orders/1/barrier", json={"token": "9"})
                assert answer.status_code == 200
            await asyncio.sleep(3)
            back = asyncio.create_task(asyncio.to_thread(south.put_back, backup))
            token = 9
            while not back.done():
                assert await written(api, "north", token) == (204, "")
                token += 1
            await back
            await stale_is_refused(api, north=token, closed=kind == "off")
            shown = (await api.get("/v1/health")).json()["databases"]
            assert shown["north"]["postgres"] == "ok"
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            if kind == "off":  # its gateways have noticed the loss
                assert shown["south"]["postgres"] == "closed"
            accept = ("--accept-loss",) if kind == "off" else ()
            opened = await asyncio.to_thread(called, "open", "--database", "south", *accept)
            assert opened.returncode == 0, opened.stdout + opened.stderr
            assert "north" not in opened.stdout
            await until_written(api, "south", 10)
            assert await written(api, "north", token) == (204, "")


async def stale_is_refused(api: httpx.AsyncClient, *, north: int, closed: bool) -> None:
    """The holder of a token below the acknowledged one writes nothing, however often it tries."""
    refused = 0
    async with asyncio.timeout(PATIENCE):
        while refused < 5:
            status, code = await written(api, "south", 6)
            assert status in (412, 503), (status, code)
            refused += (status, code) == ((503, "database-closed") if closed else (412, "token-stale"))
            assert await written(api, "north", north) == (204, "")


@pytest.fixture
def pair() -> Iterator[tuple[Pair, str]]:
    """A server with its standby, and a database there."""
    with replicated() as both, fresh(both.primary) as dsn:
        yield both, dsn
        both.forget()


async def test_one_of_two_fails_over_to_its_standby(postgres_server: Server, pair: tuple[Pair, str]) -> None:
    both, south = pair
    async with fresh_database(postgres_server) as north:
        await prepared(north, "north")
        await prepared(south, "south")
        hosts = as_gateway(both.hosts(both.socket(), both.data, database=south.partition("?")[0].rpartition("/")[2]))
        async with (
            running(settings(databases(as_gateway(north), hosts, gives_up=SOON)), Events()) as origin,
            client(origin) as api,
        ):
            for schema in ("north", "south"):
                await until_written(api, schema, 5)
            with paused(both.former):
                lost = asyncio.create_task(written(api, "south", 6))
                for token in range(6, 26):
                    assert await written(api, "north", token) == (204, "")
                await asyncio.to_thread(both.promote)
                await until_written(api, "south", 7)
                assert await written(api, "south", 6) == (412, "token-stale")
                assert (await lost)[0] == 503
            # The former primary continues, and acknowledges nothing.
            assert await written(api, "south", 6) == (412, "token-stale")
            assert await written(api, "south", 8) == (204, "")
