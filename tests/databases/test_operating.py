"""The process with several databases: reloads, stops, and checks of its configuration."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest
import pytest_asyncio

from gateway.changes.ownership import claim_if_new
from gateway.config import load
from tests.databases.fleet import CALLERS, SOON, Line, behind_lines, calling, write
from tests.postgres import Server
from tests.processes import Running, called, free_port, started
from tests.releases import write_toml
from tests.running import GRANTS
from tests.waiting import PATIENCE


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

    def write(self, *tables: dict[str, str]) -> None:
        secret = self.file.with_name("dsn")
        secret.write_text(self.addresses["south"] + "\n")
        north = {"dsn": self.addresses["north"]}
        sections = {
            "server": {"listen": f"127.0.0.1:{self.port}", "drain": 5},
            "databases": [
                {"name": name, "schemas": [name], **place}
                for name, place in (("north", north), ("south", {"dsn_file": str(secret)}))
            ],
            "callers": CALLERS,
            "grants": GRANTS[:1],
            "tables": list(tables),
        }
        write_toml(self.file, sections)

    @contextmanager
    def served(self, *arguments: str) -> Iterator[Running]:
        with started(
            "serve", "--config", str(self.file), *arguments, limits={"connect_timeout": self.gives_up}
        ) as process:
            process.wait_for(lambda: "listening" in process.errors.read_text())
            yield process
            workers = psutil.Process(process.process.pid).children() if process.process.poll() is None else []
            for one in workers:
                one.kill()

    def api(self) -> httpx.AsyncClient:
        return calling(f"http://127.0.0.1:{self.port}")


@pytest_asyncio.fixture
async def site(request: pytest.FixtureRequest, postgres_server: Server, tmp_path: Path) -> AsyncIterator[Site]:
    async with behind_lines(postgres_server) as (lines, _, addresses):
        one = Site(lines, addresses, tmp_path / "gateway.toml", free_port(), getattr(request, "param", PATIENCE))
        one.write()
        assert await claim_if_new(load(one.file))
        yield one


async def write_row(api: httpx.AsyncClient, schema: str, token: int) -> int:
    return (await write(api, schema, 1, "x", str(token))).status_code


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


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize("site", [SOON], indirect=True, ids=[""])
@pytest.mark.parametrize("trouble", ["cut", "pause"])
async def test_a_reload_goes_through_while_a_database_is_down(site: Site, trouble: str) -> None:
    with site.served("--workers", "2") as process:
        async with site.api() as api:
            for schema in site.lines:
                assert await write_row(api, schema, 1) == 204
            direct = dict(site.addresses)
            getattr(site.lines["south"], trouble)()
            site.write({"name": "north.orders", "mode": "observe"})
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
                return await write_row(api, "south", 2) == 204

            await until(back)
            assert await write_row(api, "south", 1) == 412


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize("site", [SOON], indirect=True, ids=[""])
@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_stop_lets_requests_end_and_waits_for_no_database_that_is_down(site: Site, workers: str) -> None:
    with site.served("--workers", workers) as process:
        async with site.api() as api, site.api() as other:
            for schema in site.lines:
                assert await write_row(api, schema, 1) == 204
            holding = await asyncpg.connect(site.addresses["north"].replace("fencing_gateway", "postgres"))
            transaction = holding.transaction()
            await transaction.start()
            await holding.execute("SELECT FROM north.orders WHERE id = 1 FOR UPDATE")
            ending = asyncio.create_task(write_row(api, "north", 2))
            site.lines["south"].pause()
            lost = asyncio.create_task(write_row(other, "south", 2))
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


async def test_the_configuration_is_checked_and_shown_without_its_secrets(site: Site) -> None:
    site.write({"name": "south.orders", "resource": "tenant/{id}"})
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
