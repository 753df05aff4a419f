"""The process with several databases: workers, reloads, health checks, stops, and a server that fails."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
import pytest_asyncio

from gateway.config import Config, load
from gateway.journal import rows
from gateway.ownership.plan import claim_if_new
from tests.crash.soak.servers import Database
from tests.databases.fleet import SOON, Line, behind_lines, databases, prepared, settings
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.postgres import GATEWAY, Server, as_gateway, fresh_database, install, memory_or_disk
from tests.processes import Running, called, free_port, started
from tests.running import API_KEY, GRANTS_TOML, OPERATOR_TOML, Events, running
from tests.waiting import PATIENCE

CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
drain = 5
[[databases]]
name = "north"
default = true
dsn = "{north}"
schemas = ["north"]
connect_timeout = {gives_up}
[[databases]]
name = "south"
dsn_file = "{secret}"
schemas = ["south"]
connect_timeout = {gives_up}
[[callers]]
name = "writer"
api_key = "{key}"
{grants}
"""


@dataclass
class Site:
    """Two databases behind lines, and the file of a configuration for both. The DSN of one is in another file.

    ``gives_up``: the seconds that a session with one of them may take to open.
    """

    lines: dict[str, Line]
    addresses: dict[str, str]
    file: Path
    port: int
    gives_up: float

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self, more: str = "") -> None:
        grants = GRANTS_TOML + OPERATOR_TOML.format("writer")
        secret = self.file.with_name("dsn")
        secret.write_text(self.addresses["south"] + "\n")
        given = {"north": self.addresses["north"], "secret": secret, "key": API_KEY, "grants": grants}
        self.file.write_text(CONFIGURATION.format(port=self.port, gives_up=self.gives_up, **given) + more)

    @contextmanager
    def served(self, *arguments: str) -> Iterator[Running]:
        with started("serve", "--config", str(self.file), *arguments) as process:
            process.wait_for(lambda: "listening" in process.errors.read_text())
            yield process
            workers = psutil.Process(process.process.pid).children() if process.process.poll() is None else []
            for one in workers:
                one.kill()

    def api(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE)

    async def write_row(self, api: httpx.AsyncClient, schema: str, token: int) -> int:
        headers = {"Fencing-Token": str(token), "Content-Profile": schema}
        answer = await api.patch("/v1/tables/orders?id=eq.1", json={"status": "x"}, headers=headers)
        return answer.status_code


@pytest_asyncio.fixture
async def site(request: pytest.FixtureRequest, postgres_server: Server, tmp_path: Path) -> AsyncIterator[Site]:
    async with behind_lines(postgres_server) as (lines, _, addresses):
        one = Site(lines, addresses, tmp_path / "gateway.toml", free_port(), getattr(request, "param", PATIENCE))
        one.write()
        assert await claim_if_new(load(one.file))
        yield one


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.1)


def reloads(process: Running) -> list[str]:
    """Return the outcomes of reloads in the log."""
    lines = map(json.loads, process.errors.read_text().splitlines())
    return [line["event"] for line in lines if line.get("event") in ("configuration reloaded", "reload failed")]


async def entries(address: str) -> int:
    """Return how many reloads are on record in a database."""
    connection = await asyncpg.connect(address)
    both = "SELECT details::text FROM fencing.intake UNION ALL SELECT details::text FROM fencing.entry"
    found = await connection.fetchval(f"SELECT count(*) FROM ({both}) AS one WHERE details LIKE '%ReloadConf%'")
    await connection.close()
    return int(found)


@pytest.mark.thorough
@pytest.mark.parametrize("site", [SOON], indirect=True, ids=[""])
@pytest.mark.parametrize("trouble", ["cut", "pause"])
async def test_a_reload_goes_through_while_a_database_is_down(site: Site, trouble: str) -> None:
    with site.served("--workers", "2") as process:
        async with site.api() as api:
            for schema in site.lines:
                assert await site.write_row(api, schema, 1) == 204
            direct = dict(site.addresses)
            getattr(site.lines["south"], trouble)()
            site.write('[[tables]]\nname = "north.orders"\nmode = "observe"\n')
            os.kill(process.process.pid, signal.SIGHUP)
            await asyncio.to_thread(process.wait_for, lambda: bool(reloads(process)))
            assert reloads(process) == ["configuration reloaded"], process.said()
            headers = {"Fencing-Token": "0", "Content-Profile": "north"}
            observed = await api.patch("/v1/tables/orders?id=eq.1", json={"status": "x"}, headers=headers)
            assert observed.headers["fencing-would-refuse"].startswith("token-stale")
            assert await entries(direct["north"]) == 1
            site.lines["south"].mend()
            site.lines["south"].resume()

            async def back() -> bool:
                return await site.write_row(api, "south", 2) == 204

            await until(back)
            assert await site.write_row(api, "south", 1) == 412


@pytest.mark.thorough
@pytest.mark.parametrize("site", [SOON], indirect=True, ids=[""])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_stop_lets_requests_end_and_waits_for_no_database_that_is_down(site: Site, workers: str) -> None:
    with site.served("--workers", workers) as process:
        async with site.api() as api, site.api() as other:
            for schema in site.lines:
                assert await site.write_row(api, schema, 1) == 204
            holding = await asyncpg.connect(site.addresses["north"].replace("fencing_gateway", "postgres"))
            transaction = holding.transaction()
            await transaction.start()
            await holding.execute("SELECT FROM north.orders WHERE id = 1 FOR UPDATE")
            ending = asyncio.create_task(site.write_row(api, "north", 2))
            site.lines["south"].pause()
            lost = asyncio.create_task(site.write_row(other, "south", 2))
            await asyncio.sleep(0.5)
            process.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            await transaction.rollback()
            assert await ending == 204
            await holding.close()
            code = await asyncio.to_thread(process.process.wait, PATIENCE)
            assert code == 0, process.said()
            assert (await asyncio.gather(lost, return_exceptions=True))[0] != 204
            assert "Traceback" not in process.said()


@pytest.mark.thorough
async def test_a_container_is_ready_while_one_of_its_databases_is_up(site: Site) -> None:
    site.lines["south"].cut()
    with site.served() as process:

        async def asked(*arguments: str) -> tuple[int, str]:
            told = await asyncio.to_thread(called, "health", "--url", site.url, *arguments)
            return told.returncode, told.stdout + told.stderr

        assert await asked() == (0, "ready\n"), process.said()
        site.lines["north"].cut()
        code, said = await asked()
        assert code == 1
        assert "503 Not ready" in said
        assert await asked("--alive") == (0, "alive\n")


async def test_the_configuration_is_checked_and_shown_without_its_secrets(site: Site) -> None:
    site.write('[[tables]]\nname = "south.orders"\nresource = "tenant/{id}"\n')
    refused = await asyncio.to_thread(called, "config", "check", "--config", str(site.file))
    assert refused.returncode == 78
    assert "can name resources of north" in refused.stderr
    site.write()
    shown = await asyncio.to_thread(called, "config", "show", "--config", str(site.file))
    assert shown.stdout.count("[[databases]]") == 2
    for address in site.addresses.values():
        assert address not in shown.stdout
    checked = await asyncio.to_thread(called, "config", "check", "--config", str(site.file))
    assert checked.returncode == 0, checked.stderr
    site.lines["south"].cut()
    down = await asyncio.to_thread(called, "config", "check", "--config", str(site.file))
    assert down.returncode == 0  # as at a start, which must not depend on a database
    assert "gateway: south: The names of tables cannot be checked" in down.stderr
    assert "north" not in down.stderr


# Servers: one of two is put back to a backup or fails over, and the other one goes on. -------------------------------


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


@pytest.mark.thorough
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
