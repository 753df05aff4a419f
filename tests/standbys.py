"""A PostgreSQL server with a synchronous standby, which can be stopped for a while."""

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil

from gateway.demo.embedded import EmbeddedPostgres, postgres
from tests.databases import memory_or_disk

ASKED = """
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> pg_backend_pid()
"""
"""Cancels each wait of a commit for its standby, as a client does that has lost its patience."""


@dataclass(frozen=True, slots=True)
class Standby:
    """The standby: one that every commit of its primary waits for."""

    data: Path

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all its processes, so that it confirms nothing."""
        processes = self._processes()
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGCONT)

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(int((self.data / "postmaster.pid").read_text().splitlines()[0]))
        return [first, *first.children()]


@contextmanager
def replicated() -> Iterator[tuple[EmbeddedPostgres, Standby]]:
    """Run a server and its standby, both in memory where there is enough of it."""
    with (
        tempfile.TemporaryDirectory(prefix="pg", dir=memory_or_disk()) as directory,
        postgres(Path(directory) / "primary") as primary,
    ):
        data = Path(directory) / "standby"
        program, user = primary.server.bin_path, primary.server.system_user
        Path(directory).chmod(0o777)
        socket = primary.server.get_postmaster_info().socket_dir

        def run(name: str, *arguments: str) -> None:
            subprocess.run(
                [program / name, *arguments],
                check=True,
                user=user,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "LC_ALL": "C"},
            )

        run("pg_basebackup", "-D", str(data), "-h", str(socket), "-U", "postgres", "-R", "--checkpoint=fast")
        # The primary keeps its socket in its own directory, and this is a copy of that.
        (data / ".s.PGSQL.5432.lock").unlink()
        run("pg_ctl", "-w", "-D", str(data), "-o", f"-h '' -k {data}", "-l", str(data / "log"), "start")
        try:
            asyncio.run(_wait_for_it(primary.dsn()))
            yield primary, Standby(data)
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "-D", str(data), "stop")
            asyncio.run(_execute(primary.dsn(), "ALTER SYSTEM RESET synchronous_standby_names"))


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
