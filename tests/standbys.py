"""A PostgreSQL server with a synchronous standby. Each of them can be paused, and the standby can take over."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import asyncpg
import psutil

from gateway.demo.embedded import EmbeddedPostgres, postgres
from tests.pausing import pause, resume
from tests.postgres import memory_or_disk

_WAITS = "SELECT pid, query_start FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def cancel_waits(dsn: str) -> None:
    """Cancel each wait of a commit for its standby, as an impatient client does, until this is cancelled itself.

    No wait is cancelled twice. The second cancellation could come late and meet the next statement of its session.
    """
    connection, done = await asyncpg.connect(dsn), set[tuple[int, datetime]]()
    try:
        while True:
            for waiting in map(tuple, await connection.fetch(_WAITS)):
                if waiting not in done:
                    done.add(waiting)
                    await connection.execute("SELECT pg_cancel_backend($1)", waiting[0])
            await asyncio.sleep(0.005)
    finally:
        connection.terminate()


@contextmanager
def paused(data: Path) -> Iterator[None]:
    """Pause all processes of a server, so that it accepts connections and answers nothing."""
    first = psutil.Process(int((data / "postmaster.pid").read_text().splitlines()[0]))
    pause(first.pid)
    others = [each.pid for each in first.children(recursive=True)]
    pause(*others)
    try:
        yield
    finally:
        resume(*reversed(others), first.pid)


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary, and the standby that each of its commits waits for."""

    primary: EmbeddedPostgres
    data: Path
    """The directory of the standby, with its socket."""

    @property
    def former(self) -> Path:
        """The directory of the primary."""
        return Path(self.primary.server.pgdata)

    def hosts(self, *hosts: Path, database: str = "postgres") -> str:
        """Return the address of a database at several servers. A host is the directory of a socket."""
        return f"postgresql://postgres:@/{database}?host={','.join(map(str, hosts))}"

    def socket(self) -> Path:
        """Return the directory of the primary's socket."""
        return Path(self.primary.server.get_postmaster_info().socket_dir)

    def promote(self) -> None:
        """Let the standby take over. It waits for no standby of its own."""
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        self._run("pg_ctl", "-w", "-D", str(self.data), "promote")

    def forget(self) -> None:
        """Let the former primary wait for no standby."""
        asyncio.run(_execute(self.primary.dsn(), "ALTER SYSTEM RESET synchronous_standby_names"))

    def start(self) -> None:
        """Copy the primary, and start the copy as a standby of it."""
        arguments = ("-h", str(self.socket()), "-U", "postgres", "-R", "--checkpoint=fast")
        self._run("pg_basebackup", "-D", str(self.data), *arguments)
        # The primary may keep its socket in its own directory, and this is a copy of that.
        (self.data / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        log = str(self.data / "log")
        self._run("pg_ctl", "-w", "-D", str(self.data), "-o", f"-h '' -k {self.data}", "-l", log, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "-D", str(self.data), "stop")

    def _run(self, name: str, *arguments: str) -> None:
        server: Any = self.primary.server
        subprocess.run(
            [server.bin_path / name, *arguments],
            check=True,
            user=server.system_user,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )


@contextmanager
def replicated(*, synchronous: bool = True) -> Iterator[Pair]:
    """Run a server and its standby, both in memory where there is enough of it. A commit waits if ``synchronous``."""
    with (
        tempfile.TemporaryDirectory(prefix="pg", dir=memory_or_disk()) as directory,
        postgres(Path(directory) / "primary") as primary,
    ):
        Path(directory).chmod(0o777)
        pair = Pair(primary, Path(directory) / "standby")
        pair.start()
        try:
            if synchronous:
                asyncio.run(_wait_for_it(primary.dsn()))
            yield pair
        finally:
            pair.stop()
            pair.forget()


async def _wait_for_it(dsn: str) -> None:
    await _execute(dsn, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(30):
            while not await connection.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')"
            ):
                await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()
