"""Locks while gateways and databases are restarted and restored, while clocks jump, and as docs/locks.md shows them."""

import asyncio
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from gateway.config.sections import Server
from gateway.demo.embedded import postgres
from tests import ROOT
from tests.clients.commands import Shell
from tests.doctor.test_doctor import execute
from tests.leases.asking import Caller, Service, calling, lies, needs_faketime, problem, served, serving, value
from tests.postgres import install
from tests.running import API_KEY
from tests.waiting import PATIENCE

JOB = "job/1"
PAGE = (ROOT / "docs/locks.md").read_text()


def snippet(language: str) -> str:
    """The only one in this language."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


@asynccontextmanager
async def serving_data(data: Path, *, first: bool = False) -> AsyncIterator[Service]:
    """A database that keeps its data here, and a gateway before it. ``first``: the schema is installed."""
    with postgres(data) as server:
        if first:
            await asyncio.to_thread(install, server.dsn())
        async with served(server.dsn()) as service:
            yield service


@pytest.mark.thorough
async def test_the_database_is_restarted() -> None:
    """Each holder still holds, and each waiter is served in its turn."""
    with tempfile.TemporaryDirectory(prefix="pg") as directory, postgres(Path(directory) / "data") as server:
        dsn = server.dsn("postgres")
        await asyncio.to_thread(install, dsn)
        async with served(dsn) as service:
            lease = await service.writer.got(JOB, "a", ttl=60)
            waiting = []
            for number, name in enumerate("bc", 1):
                waiting.append(asyncio.ensure_future(service.writer.acquire(JOB, name, wait=50)))
                await service.writer.until(JOB, waiters=number)
            await asyncio.to_thread(server.server.stop)
            for refused in (
                await service.writer.acquire(JOB, "d"),
                await service.writer.renew(lease),
                await service.writer.release(lease),
                await service.writer.http.get(f"/v1/leases/{JOB}"),
            ):
                assert problem(refused) == (503, "unavailable")
                assert refused.headers["retry-after"] == "1"
            await asyncio.to_thread(server.server.ensure_postgres_running)
            assert problem(await service.other.acquire(JOB, "d")) == (409, "lock-held"), "it is still held"
            renewed = await service.writer.renew(lease)
            assert (renewed.status_code, renewed.json()["token"]) == (200, lease["token"])
            await service.writer.until(JOB, waiters=2)
            assert (await service.writer.release(lease)).status_code == 204
            tokens = []
            for one in waiting:
                answer = await one
                assert answer.status_code == 201, answer.text
                tokens.append(value(answer.json()))
                await service.writer.release(answer.json())
            assert tokens == [2, 3], "in the order of the queue, and no token twice"


@pytest.mark.thorough
async def test_recovery_to_a_point_in_time() -> None:
    """A backup is really restored, and the database goes on beside what it was: no token of its past is issued."""
    with tempfile.TemporaryDirectory(prefix="pg") as directory:
        data, restored = Path(directory) / "data", Path(directory) / "restored"
        await backed_up(data, restored)
        async with serving_data(data) as service:
            for number in (2, 3):
                lease = await service.writer.got(JOB, "lost with the server", barrier=True)
                assert lease["token"] == str(number)
                await service.writer.release(lease)
        # The ordinary recovery of PostgreSQL: as far as the archive goes, which here is nowhere.
        (restored / "recovery.signal").touch()
        with (restored / "postgresql.auto.conf").open("a") as settings:
            # The server admits no session before the recovery is over.
            settings.write("restore_command = 'false'\nhot_standby = off\n")
        async with serving_data(restored) as service:
            lease = await service.writer.got(JOB, "after the restore", barrier=True)
            assert lease["token"] == "1.1"
            # The token of a holder that the restore has forgotten: a higher number, of an earlier epoch.
            assert problem(await service.writer.barrier(JOB, "3")) == (412, "token-stale")
            await service.writer.release(lease)
            assert (await service.writer.got(JOB, "the next"))["token"] == "1.2", "once, not each time"


@contextmanager
def lied_to(dsn: str, directory: Path, *, timers: bool) -> Iterator[tuple[str, Path]]:
    """A gateway that takes the time from a file; its origin, and the file."""
    clock = directory / "clock"
    with serving(dsn, directory, lies(clock, timers=timers)) as (_, origin):
        yield origin, clock


async def jumped(caller: Caller, clock: Path, days: int) -> None:
    """Let the clock jump, and see that it has: the gateway says what time it takes it to be."""
    clock.write_text(f"{days:+}d\n")
    async with asyncio.timeout(PATIENCE):
        while True:
            told = parsedate_to_datetime((await caller.http.get("/v1/ready")).headers["date"])
            if round((told - datetime.now(UTC)) / timedelta(days=1)) == days:
                return
            await asyncio.sleep(0.02)


@needs_faketime
@pytest.mark.thorough
async def test_the_time_of_day_jumps(dsn: str, tmp_path: Path) -> None:
    with lied_to(dsn, tmp_path, timers=False) as (origin, clock):
        async with calling(origin) as caller:
            for days in (1, -1):
                await _neither_early_nor_late(caller, clock, days)


async def _neither_early_nor_late(caller: Caller, clock: Path, days: int) -> None:
    job = f"job/{days}"
    lease = await caller.got(job, "a", ttl=300)
    waiting = asyncio.ensure_future(caller.got(job, "b", ttl=300, wait=PATIENCE))
    await caller.until(job, waiters=1)
    await jumped(caller, clock, days)
    assert problem(await caller.acquire(job, "c")) == (409, "lock-held"), "it has not ended"
    renewed = await caller.renew(lease)
    assert renewed.status_code == 200
    assert renewed.json()["expires_in"] == pytest.approx(300, abs=0.01)
    await caller.release(lease)
    short = await waiting
    assert value(short) == 2
    shortened = time.monotonic()
    await caller.renew(short, ttl=0.5)
    assert value(await caller.got(job, "c", wait=PATIENCE)) == 3
    assert time.monotonic() - shortened > 0.49, "not early, and not a day later"
    assert problem(await caller.renew(short)) == (410, "lease-lost")


@needs_faketime
@pytest.mark.thorough
async def test_timers_jump_as_well(dsn: str, tmp_path: Path) -> None:
    """All timeouts of the gateway seem to expire at once. Waiters may get that answer, but no lease ends by it."""
    with lied_to(dsn, tmp_path, timers=True) as (origin, clock):
        async with calling(origin) as caller:
            lease = await caller.got(JOB, "a", ttl=300)
            waiting = asyncio.ensure_future(caller.acquire(JOB, "b", wait=PATIENCE))
            await caller.until(JOB, waiters=1)
            await jumped(caller, clock, 1)
            assert problem(await waiting) == (409, "lock-held")
            assert (await caller.renew(lease)).status_code == 200
            await caller.release(lease)
            assert value(await caller.got(JOB, "c")) == 2


@pytest.mark.thorough
async def test_who_waits_is_sent_away_at_once_and_keeps_its_place(dsn: str, tmp_path: Path) -> None:
    """A gateway that is stopped does not wait for its waiters. They go on at another one."""
    async with served(dsn) as other:
        with serving(dsn, tmp_path) as (process, origin):
            async with calling(origin) as caller:
                lease = await caller.got(JOB, "a", ttl=300)
                waiting = asyncio.ensure_future(caller.acquire(JOB, "b", wait=PATIENCE, request="r"))
                await caller.until(JOB, waiters=1)
                asked = time.monotonic()
                stopped = asyncio.ensure_future(asyncio.to_thread(process.stop, signal.SIGTERM))
                answer = await waiting
            assert problem(answer) == (503, "unavailable")
            assert "stopped" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "1"
            again = asyncio.ensure_future(other.writer.got(JOB, "b", wait=PATIENCE, request="r"))
            assert await stopped == 0
            assert time.monotonic() - asked < Server().drain / 2
        behind = asyncio.ensure_future(other.writer.got(JOB, "c", wait=PATIENCE))
        await other.writer.until(JOB, waiters=2)
        assert [one["holder"] for one in (await other.writer.lock(JOB))["queue"]] == ["b", "c"]
        await other.writer.release(lease)
        assert (await again)["token"] == "2"
        behind.cancel()


async def test_a_lock_by_curl(dsn: str, tmp_path: Path) -> None:
    await execute(
        dsn, "CREATE TABLE accounts (id int PRIMARY KEY, balance int)", "INSERT INTO accounts VALUES (1, 100)"
    )
    rule = {"name": "public.accounts", "resource": "account/{id}"}
    async with served(dsn, tables=[rule]) as service:
        shell = Shell(tmp_path, {"GATEWAY": service.origin, "API_KEY": API_KEY})
        done = await asyncio.to_thread(shell.run, "bash", "-euo", "pipefail", "-c", snippet("sh"))
        assert done.status == 0, done.error
        assert [tuple(row) for row in await service.rows("SELECT balance FROM accounts")] == [(110,)]
        fence = (await service.writer.http.get("/v1/fences/account/1")).json()
        assert (fence["token"], fence["raised_by"]) == ("1", "nightly@host7:4711")
        assert (await service.writer.lock("account/1"))["holders"] == []


async def backed_up(data: Path, copy: Path) -> None:
    """A database in which one lease was had, and a copy of it, with its owners: the server does not run as root."""
    async with serving_data(data, first=True) as service:
        await service.writer.release(await service.writer.got(JOB, "before the backup", barrier=True))
    subprocess.run(["cp", "-a", data, copy], check=True)


@pytest.mark.thorough
async def test_a_disk_put_back_to_a_snapshot() -> None:
    """The database sees no restore here. The statement that docs/locks.md gives its operator makes up for that."""
    with tempfile.TemporaryDirectory(prefix="pg") as directory:
        data, snapshot = Path(directory) / "data", Path(directory) / "snapshot"
        await backed_up(data, snapshot)
        async with serving_data(data) as service:
            assert (await service.writer.got(JOB, "forgotten", barrier=True))["token"] == "2"
        shutil.rmtree(data)
        snapshot.rename(data)
        async with serving_data(data) as service:
            lease = await service.writer.got(JOB, "who is told nothing", barrier=True)
            assert lease["token"] == "2", "or nothing needs to be said"
            await service.writer.release(lease)
            await service.rows(snippet("sql"))
        async with serving_data(data) as service:
            assert (await service.writer.got(JOB, "after the restore", barrier=True))["token"] == "1.1"
            assert problem(await service.writer.barrier(JOB, "2")) == (412, "token-stale")


async def test_a_restore_that_nobody_has_noticed(dsn: str) -> None:
    async with served(dsn) as service:
        assert (await service.writer.got(JOB, "a"))["token"] == "1"
        await execute(dsn, snippet("sql"), "UPDATE fencing.lease SET expires_at = acquired_at")
        assert (await service.writer.got(JOB, "b", barrier=True))["token"] == "1.1"
        assert (await service.writer.barrier(JOB, "900")).status_code == 412, "one that was lost"
