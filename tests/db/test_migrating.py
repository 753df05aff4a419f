"""Migrations and what happens at the same time: writers, other migrations, and the death of the process."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.db import migrations
from gateway.errors import SchemaLocked
from tests.pausing import pause, resume
from tests.postgres import GATEWAY, Server, fresh
from tests.processes import Running
from tests.releases import NEXT_REVISION, NEXT_SCRIPT, Release, next_release, this_release
from tests.running import OPEN, config, running
from tests.waiting import PATIENCE, end_sessions, waiting

CURRENT = migrations.newest()
LOCKED = "LOCK TABLE fencing.lock IN ROW EXCLUSIVE MODE"
WRITE = "INSERT INTO fencing.lock AS l (resource) VALUES ('job/1') ON CONFLICT (resource) DO UPDATE SET value = 1"
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
HAS_COLUMN = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'fencing.lock'::regclass AND attname = 'barriers'"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return this_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def following(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return next_release(release, tmp_path_factory.mktemp("following") / "next")


@pytest.fixture
def dsn(postgres_server: Server) -> Iterator[str]:
    with fresh(postgres_server) as address:
        yield address


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn)
    yield opened
    await opened.close()


@asynccontextmanager
async def a_long_transaction(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Keep a lock that a migration has to wait for."""
    opened = await asyncpg.connect(dsn)
    try:
        async with opened.transaction():
            await opened.execute(LOCKED)
            yield opened
    finally:
        await opened.close()


@pytest.fixture
def as_following(dsn: str, following: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process migrate the database as the next release does."""
    monkeypatch.setattr(migrations, "_folder", lambda: following.folder / "gateway/migrations")
    monkeypatch.setattr(migrations, "newest", lambda: NEXT_REVISION)


@pytest.mark.usefixtures("as_following")
async def test_writers_go_on_while_a_migration_waits_for_a_lock(dsn: str, session: asyncpg.Connection) -> None:
    async with a_long_transaction(dsn):
        migrating = asyncio.create_task(asyncio.to_thread(migrations.upgrade, dsn))
        await waiting(session)
        took = 0.0
        # Writers wait for a migration at most as long as it waits for them. A write that takes longer, because the
        # machine stood still, proves nothing. The next attempt of the migration makes another one wait.
        async with asyncio.timeout(PATIENCE):
            while not 0.1 < took < 1:
                begun = time.monotonic()
                await session.execute(WRITE)
                took = time.monotonic() - begun
                await asyncio.sleep(0.01)
        assert not migrating.done()
    await migrating
    assert await session.fetchval(HAS_COLUMN) == 1


@pytest.mark.usefixtures("as_following")
async def test_a_migration_that_gets_no_lock_gives_up_and_changes_nothing(
    dsn: str, session: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "PATIENCE", 0)
    async with a_long_transaction(dsn):
        with pytest.raises(SchemaLocked, match="Nothing was changed"):
            await asyncio.to_thread(migrations.upgrade, dsn)
    assert await session.fetchval(HAS_COLUMN) == 0
    assert await session.fetchval("SELECT version_num FROM fencing.migration") == CURRENT


@pytest.mark.thorough
async def test_a_migration_that_is_killed_leaves_nothing_behind(
    dsn: str, session: asyncpg.Connection, following: Release
) -> None:
    async with a_long_transaction(dsn):
        with following.start("migrate", "--dsn", dsn) as process:
            await waiting(session)
            process.stop(signal.SIGKILL)
    assert await session.fetchval(HAS_COLUMN) == 0
    assert await session.fetchval("SELECT to_regclass('fencing.raised')") is None
    again = await asyncio.to_thread(following.run, "migrate", "--dsn", dsn)
    assert again.stdout == f"fencing schema: {CURRENT} -> {NEXT_REVISION}\n", again.stderr


@pytest.mark.thorough
async def test_a_migration_that_is_paused_loses_its_locks(
    dsn: str, session: asyncpg.Connection, release: Release, tmp_path: Path
) -> None:
    slow = next_release(release, tmp_path / "slow", f"{NEXT_SCRIPT} SELECT pg_sleep(1);")
    with slow.start("migrate", "--dsn", dsn) as process:
        while not await session.fetchval(ASLEEP):
            await asyncio.sleep(0.01)
        pause(process.process.pid)
        begun = time.monotonic()
        await session.execute(WRITE, timeout=PATIENCE)
        assert 1 < time.monotonic() - begun < 10
        resume(process.process.pid)
        assert await asyncio.to_thread(_ended, process) != 0
    assert await session.fetchval(HAS_COLUMN) == 0


def _ended(process: Running) -> int:
    return process.process.wait(PATIENCE)


@pytest.mark.thorough
async def test_migrations_and_grants_of_several_processes_wait_for_each_other(
    dsn: str, session: asyncpg.Connection, following: Release
) -> None:
    arguments = ("migrate", "--dsn", dsn, "--grant-to", GATEWAY, "--journal-dsn", dsn)
    told = await asyncio.gather(*(asyncio.to_thread(following.run, *arguments) for _ in range(3)))
    assert [(one.returncode, one.stderr) for one in told] == [(0, "")] * 3
    assert await session.fetchval(HAS_COLUMN) == 1


async def test_a_gateway_that_started_before_its_database_serves_once_the_schema_is_new_enough(
    dsn: str, session: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at the start cannot see the schema of a database that is not there yet."""
    monkeypatch.setattr("gateway.db.opening.newest", lambda: NEXT_REVISION)
    async with running(config(dsn, grants=OPEN)) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        assert (await client.get("/v1/ready")).status_code == 503
        refused = await client.post("/v1/fences/job/1/barrier", json={"token": "1"})
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed")
        assert f"The fencing schema is at {CURRENT}; this version of the gateway needs {NEXT_REVISION}." in refused.text
        assert await session.fetchval("SELECT count(*) FROM fencing.fence") == 0
        await session.execute(f"UPDATE fencing.migration SET version_num = '{NEXT_REVISION}'")
        assert (await client.post("/v1/fences/job/1/barrier", json={"token": "1"})).status_code == 200
        assert (await client.get("/v1/ready")).status_code == 204


async def test_a_gateway_that_the_schema_no_longer_serves_gets_no_session(
    dsn: str, session: asyncpg.Connection
) -> None:
    """It may have started before the migration, or before its database."""
    async with running(config(dsn, grants=OPEN)) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        assert (await client.post("/v1/fences/job/1/barrier", json={"token": "1"})).status_code == 200
        await session.execute(
            f"UPDATE fencing.migration SET version_num = '{NEXT_REVISION}';"
            f"UPDATE fencing.compatibility SET oldest = '{NEXT_REVISION}'"
        )
        await end_sessions(dsn)
        refused = await client.post("/v1/fences/job/1/barrier", json={"token": "2"})
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed")
        assert f"which serves gateways of {NEXT_REVISION} and later. This one knows {CURRENT}." in refused.text
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as owner:
            assert await owner.fetchval("SELECT value FROM fencing.fence") == 1
