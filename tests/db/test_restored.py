"""Without a journal, a restored database stays closed until an operator opens it. A restart and a failover do not."""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest

from gateway.db import migrations, rights
from gateway.demo.embedded import psql
from gateway.journal import runner
from tests.crash.soak.servers import Database
from tests.postgres import GATEWAY, as_gateway
from tests.processes import called, free_port, started
from tests.running import API_KEY, GRANTS_TOML, config, running
from tests.tiers import first
from tests.waiting import PATIENCE

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, note text); INSERT INTO orders VALUES (1, '')"
PROGRAMS = Path(psql()).parent


@pytest.fixture
def site() -> Iterator["Site"]:
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as name:
        directory = Path(name)
        site = Site(Database(directory), directory)
        try:
            site.server.execute(f"CREATE ROLE {GATEWAY} LOGIN", "CREATE DATABASE shop")
            migrations.upgrade(site.dsn)
            asyncio.run(rights.grant(site.dsn, GATEWAY))
            for statement in (*TABLE.split("; "), f"GRANT SELECT, INSERT, UPDATE ON orders TO {GATEWAY}"):
                site.execute(statement)
            yield site
        finally:
            site.server.close()


@dataclass(slots=True)
class Site:
    """A server whose database ``name`` a gateway serves."""

    server: Database
    directory: Path
    name: str = "shop"
    origin: str = ""

    @property
    def dsn(self) -> str:
        return f"{self.server.dsn.rpartition('/')[0]}/{self.name}"

    def execute(self, statement: str) -> list[Any]:
        async def ask() -> list[Any]:
            connection = await asyncpg.connect(self.dsn)
            try:
                return await connection.fetch(statement)
            finally:
                await connection.close()

        return asyncio.run(ask())

    def program(self, name: str, *arguments: object) -> None:
        subprocess.run([PROGRAMS / name, *map(str, arguments)], check=True, capture_output=True)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        file = self.directory / "gateway.toml"
        file.write_text(f"[postgres]\ndsn = '{as_gateway(self.dsn)}'\n{GRANTS_TOML}")
        return called(*arguments, "--config", str(file))

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator["Site"]:
        async with running(config(self.dsn)) as self.origin:
            yield self

    async def write(self, token: int) -> httpx.Response:
        headers = {"Authorization": f"Bearer {API_KEY}", "Fencing-Token": f"{token}"}
        async with httpx.AsyncClient(base_url=self.origin, headers=headers, timeout=PATIENCE) as client:
            return await client.patch("/v1/tables/orders?id=eq.1", json={"note": f"{token}"})

    async def ready(self) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.origin, timeout=PATIENCE) as client:
            return await client.get("/readyz")

    async def hold(self, token: int) -> str:
        """Raise the fence as a direct writer does."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return str(await connection.fetchval("SELECT fencing.hold('public.orders/1', $1)", str(token)))
        finally:
            await connection.close()


Way: TypeAlias = Callable[[Site], Callable[[], None]]
"""A way back in time: it takes the backup, and returns the restore of it."""


def dump_of_the_same_name(site: Site) -> Callable[[], None]:
    file = site.directory / "shop.dump"
    site.program("pg_dump", "--format=custom", f"--file={file}", site.dsn)
    return lambda: site.program("pg_restore", "--clean", "--create", "-d", site.server.dsn, file)


def dump_into_the_same_database(site: Site) -> Callable[[], None]:
    file = site.directory / "shop.dump"
    site.program("pg_dump", "--format=custom", f"--file={file}", site.dsn)

    def restore() -> None:
        site.execute("DROP SCHEMA fencing CASCADE")
        site.execute("DROP TABLE orders")
        site.program("pg_restore", "-d", site.dsn, file)

    return restore


def dump_of_another_name(site: Site) -> Callable[[], None]:
    file = site.directory / "shop.sql"
    site.program("pg_dump", f"--file={file}", site.dsn)

    def restore() -> None:
        site.server.execute("CREATE DATABASE copy")
        site.name = "copy"
        site.program("psql", "-v", "ON_ERROR_STOP=1", "-f", file, site.dsn)

    return restore


def dump_on_another_server(site: Site) -> Callable[[], None]:
    file = site.directory / "shop.dump"
    site.program("pg_dump", "--format=custom", f"--file={file}", site.dsn)

    def restore() -> None:
        site.server.close()
        (site.directory / "other").mkdir()
        site.server = Database(site.directory / "other")
        site.server.execute(f"CREATE ROLE {GATEWAY} LOGIN", "CREATE DATABASE shop")
        site.program("pg_restore", "-d", site.dsn, file)

    return restore


def backup_recovered_up_to_a_target(site: Site) -> Callable[[], None]:
    backup = site.server.backup()
    with (backup / "postgresql.auto.conf").open("a") as settings:
        settings.write("restore_command = 'false'\nrecovery_target = 'immediate'\nrecovery_target_action = 'promote'\n")
    (backup / "recovery.signal").touch()
    return lambda: _promoted(site, lambda: site.server.put_back(backup))


def _promoted(site: Site, work: Callable[[], object]) -> None:
    work()
    while site.server.execute("SELECT pg_is_in_recovery()") == [(True,)]:
        pass


RESTORES = (
    dump_of_the_same_name,
    dump_into_the_same_database,
    dump_of_another_name,
    dump_on_another_server,
    backup_recovered_up_to_a_target,
)


@pytest.mark.parametrize("way", first(RESTORES, pytest.mark.nightly), ids=lambda way: way.__name__)
def test_a_restored_database_stays_closed_until_an_operator_opens_it(site: Site, way: Way) -> None:
    asyncio.run(_statuses(site, 33))
    restore = way(site)
    assert asyncio.run(_statuses(site, 34, 33)) == [204, 412]
    restore()

    told = site.command("doctor")
    assert told.returncode == 1
    assert "run: the database stays closed: it was restored" in told.stdout
    assert "gateway open --accept-loss" in told.stdout
    told = site.command("open")
    assert (told.returncode, "it was restored" in told.stderr, "--accept-loss" in told.stderr) == (2, True, True)

    async def closed() -> None:
        async with site.gateway():
            refused = await site.write(33)
            assert (refused.status_code, refused.json()["code"]) == (503, "database-closed"), refused.text
            assert "it was restored" in refused.json()["message"]
            assert "gateway open --accept-loss" in refused.json()["hint"]
            ready = await site.ready()
            assert (ready.status_code, "postgres is closed" in ready.text) == (503, True), ready.text
            with pytest.raises(asyncpg.PostgresError, match="not opened for its present run"):
                await site.hold(33)
            opened = await asyncio.to_thread(site.command, "open", "--accept-loss")
            assert opened.returncode == 0, opened.stderr
            assert "accepted: it was restored" in opened.stdout
            assert (await site.write(34)).status_code == 204
            assert (await site.ready()).status_code == 204

    asyncio.run(closed())
    told = site.command("doctor")
    assert "the database is open for the present run" in told.stdout


@pytest.mark.thorough
def test_a_server_says_it_in_its_log(site: Site) -> None:
    asyncio.run(_statuses(site, 33))
    dump_of_the_same_name(site)()
    port = free_port()
    site.command("doctor")
    more = {"GATEWAY_SERVER__LISTEN": f"127.0.0.1:{port}"}
    with started("serve", "--config", str(site.directory / "gateway.toml"), more=more) as gateway:
        gateway.wait_for(lambda: "it was restored" in gateway.said())


def test_a_restart_and_a_failover_need_no_operator(site: Site) -> None:
    server = site.server
    asyncio.run(_statuses(site, 33))

    def fail_over() -> None:
        server.follow()
        server.caught_up()
        server.fail_over()

    for work in (server.restart, fail_over):
        work()
        told = site.command("doctor")
        assert "the database stays closed" not in told.stdout
        assert ("It is a restart" in told.stdout) is (work == server.restart), told.stdout
        assert asyncio.run(_statuses(site, 33)) == [204]


@pytest.mark.parametrize(("losses", "shown"), [(0, "its log had reached"), (3, "it was opened in term 3000")])
def test_a_disk_that_was_put_back_is_found_by_a_gateway_that_has_read_only(
    site: Site, losses: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing in the database shows it. The gateway has seen a longer log, and tells all others.

    However often losses were accepted before, one more acceptance ends it.
    """
    monkeypatch.setattr(runner, "LOOK_INTERVAL", 0.02)
    asyncio.run(_statuses(site, 33))
    backup = site.server.backup()

    async def play() -> None:
        async with site.gateway():
            site_of_reader = site.origin
            await asyncio.to_thread(site.execute, "INSERT INTO orders SELECT n, 'x' FROM generate_series(2, 999) AS n")
            later = f"UPDATE fencing.opening SET term = {1000000 * losses} + 20, began = {1000000 * losses} + 12"
            if losses:
                await asyncio.to_thread(site.execute, later)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(site.server.put_back, backup)
            refused = await site.write(33)
            assert (refused.status_code, refused.json()["code"]) == (503, "database-closed"), refused.text
            assert shown in refused.text
            async with site.gateway():
                assert (await site.write(33)).status_code == 503, "a gateway that was started since"
            site.origin = site_of_reader
            assert (await asyncio.to_thread(site.command, "open", "--accept-loss")).returncode == 0
            assert (await site.write(33)).status_code == 204

    asyncio.run(play())


def test_a_dump_loaded_below_open_sessions_is_found(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump ends no session of the database that it is loaded into."""
    monkeypatch.setattr(runner, "LOOK_INTERVAL", 0.05)

    async def play() -> None:
        async with site.gateway():
            assert (await site.write(33)).status_code == 204
            restore = await asyncio.to_thread(dump_into_the_same_database, site)
            assert (await site.write(34)).status_code == 204
            await asyncio.to_thread(restore)
            await asyncio.to_thread(site.execute, f"GRANT SELECT, UPDATE ON orders TO {GATEWAY}")
            async with asyncio.timeout(PATIENCE):
                while (answer := await site.write(33)).status_code != 503 or "it was restored" not in answer.text:
                    await asyncio.sleep(0.02)
            assert answer.json()["code"] == "database-closed"
            assert (await site.ready()).status_code == 503

    asyncio.run(play())


async def _statuses(site: Site, *tokens: int) -> list[int]:
    async with site.gateway():
        return [(await site.write(token)).status_code for token in tokens]
