"""A PostgreSQL that is put back to backups and fails over to standbys, and a pgbouncer in front of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any

from gateway.demo.embedded import postgres
from tests.crash.stage import Postgres
from tests.postgres import GATEWAY
from tests.processes import free_port

POOLER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
_PATIENCE = 60.0

_POOLER = """
[databases]
* = host=127.0.0.1 port={behind}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {users}
pool_mode = session
default_pool_size = 100
max_client_conn = 400
server_login_retry = 1
server_reset_query = DISCARD ALL
ignore_startup_parameters = extra_float_digits
"""


class Database:
    """The server that is the primary now. Its port and its data directory change with a failover."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._numbers = directory, count()
        directory.chmod(0o777)
        self.data = directory / "initial"
        with postgres(self.data) as made:
            self._made: Any = made.server
        self.port = self._start(self.data)
        self._standby: tuple[Path, int] | None = None

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last one."""
        session = Postgres(self.dsn)
        try:
            return [session.rows(statement) for statement in statements][-1]
        finally:
            session.close()

    def backup(self) -> Path:
        """Copy the data directory while the server works."""
        copy = self._directory / f"copy {next(self._numbers)}"
        self._run("pg_basebackup", "-D", copy, "-h", "127.0.0.1", "-p", self.port, "-U", "postgres", "-c", "fast")
        return copy

    def put_back(self, backup: Path) -> float:
        """Stop, and go on from a backup, which is used up. Return when the server had stopped."""
        self._stop(self.data)
        stopped = time.monotonic()
        shutil.rmtree(self.data)
        self.data = backup
        self._start(self.data, self.port)
        return stopped

    def restart(self) -> None:
        self.stop()
        self.start()

    def stop(self) -> None:
        """End the server as a crash does."""
        self._stop(self.data)

    def start(self) -> None:
        """Start it again, where it was."""
        self._start(self.data, self.port)

    def follow(self) -> None:
        """Start a standby."""
        copy = self._directory / f"standby {next(self._numbers)}"
        source = ("-h", "127.0.0.1", "-p", self.port, "-U", "postgres")
        self._run("pg_basebackup", "-D", copy, *source, "-c", "fast", "-R")
        self._standby = copy, self._start(copy)

    def caught_up(self) -> None:
        """Wait until the standby has all that is committed now."""
        ((position,),) = self.execute("SELECT pg_current_wal_flush_lsn()::text")
        self._wait(f"SELECT count(*) > 0 FROM pg_stat_replication WHERE flush_lsn >= '{position}'")

    def synchronous(self) -> None:
        """Let each commit wait for the standby from now on."""
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        self._wait("SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync'")

    def lag(self) -> None:
        """Part the standby from the primary."""
        assert self._standby is not None
        standby = Postgres(f"postgresql://postgres@127.0.0.1:{self._standby[1]}/postgres")
        standby.rows("ALTER SYSTEM SET primary_conninfo = ''")
        standby.rows("SELECT pg_reload_conf()")
        standby.close()
        self._wait("SELECT count(*) = 0 FROM pg_stat_replication")

    def fail_over(self) -> float:
        """End the primary, and promote the standby, which waits for none of its own. Return when it had ended."""
        assert self._standby is not None
        self._stop(self.data)
        stopped = time.monotonic()
        shutil.rmtree(self.data)
        self.data, self.port = self._standby
        self._standby = None
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")
        self._run("pg_ctl", "-w", "-D", self.data, "promote")
        return stopped

    def close(self) -> None:
        self._stop(self.data)
        if self._standby is not None:
            self._stop(self._standby[0])

    def pooler(self, behind: int, port: int) -> subprocess.Popen[bytes]:
        """Start a pgbouncer in session mode. It connects to the port ``behind``."""
        assert POOLER is not None, "pgbouncer is not installed"
        users, settings = self._directory / "users", self._directory / "pgbouncer.ini"
        users.write_text(f'"postgres" ""\n"{GATEWAY}" ""\n')
        settings.write_text(_POOLER.format(behind=behind, port=port, users=users))
        return subprocess.Popen([POOLER, "-q", str(settings)], user=self._made.system_user)

    def _start(self, data: Path, port: int | None = None) -> int:
        port = port or free_port()
        options = f"-p {port} -h 127.0.0.1 -k {self._directory} -c max_connections=200"
        self._run("pg_ctl", "-w", "-D", data, "-o", options, "-l", data / "log", "start")
        return port

    def _stop(self, data: Path) -> None:
        self._run("pg_ctl", "-w", "-m", "immediate", "-D", data, "stop")

    def _wait(self, sql: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not self.execute(sql)[0][0]:
            assert time.monotonic() < deadline, sql
            time.sleep(0.05)

    def _run(self, name: str, *arguments: object) -> None:
        subprocess.run(
            [self._made.bin_path / name, *map(str, arguments)],
            check=True,
            user=self._made.system_user,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
