"""A PostgreSQL that is put back to backups and fails over to standbys, a pgbouncer in front of it, and stores.

And gateways of two releases, side by side.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from gateway.demo.embedded import postgres
from tests.crash.processes import Gateway
from tests.crash.stage import Postgres
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, DoubleProcess
from tests.pausing import pause, resume
from tests.postgres import GATEWAY, memory_or_disk
from tests.processes import Running, free_port
from tests.releases import Release, write_toml
from tests.stores import minio
from tests.stores.store import OWNER, REGION

POOLER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin")
_PATIENCE = 60.0
_WRITERS = ("checkpointer", "background writer", "walwriter")
"""The processes of PostgreSQL that write to the disk while no session waits for them."""

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

    def dump(self) -> Path:
        """Write the database to a file while it is used."""
        file = self._directory / f"dump {next(self._numbers)}"
        self._run("pg_dump", "--format=custom", f"--file={file}", f"--dbname={self.dsn}")
        return file

    def load(self, dump: Path) -> float:
        """Put a dump in the place of the database, and go on from it. Return when the database had ended."""
        maintenance, here = (f"postgresql://postgres@127.0.0.1:{self.port}/{name}" for name in ("template1", "loaded"))
        session = Postgres(maintenance)
        session.rows("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        session.rows("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
        deadline = time.monotonic() + _PATIENCE
        while session.value("SELECT count(*) FROM pg_stat_activity WHERE datname = 'postgres'"):
            assert time.monotonic() < deadline, "sessions do not end"
            time.sleep(0.01)
        stopped = time.monotonic()
        session.rows("DROP DATABASE postgres")
        session.rows("CREATE DATABASE loaded TEMPLATE template0")
        self._run("pg_restore", "--exit-on-error", f"--dbname={here}", dump)
        session.rows("ALTER DATABASE loaded RENAME TO postgres")
        session.close()
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

    @contextmanager
    def slow_disk(self) -> Iterator[None]:
        """Let each flush of the write-ahead log take a tenth of a second, and all writing in the background wait."""
        slow = ("ALTER SYSTEM SET commit_delay = 100000", "ALTER SYSTEM SET commit_siblings = 0")
        self.execute(*slow, "SELECT pg_reload_conf()")
        first = psutil.Process(int((self.data / "postmaster.pid").read_text().splitlines()[0]))
        writers = [one.pid for one in first.children() if any(name in "".join(one.cmdline()) for name in _WRITERS)]
        pause(*writers)
        try:
            yield
        finally:
            resume(*writers)
            self.execute("ALTER SYSTEM RESET commit_delay", "SELECT pg_reload_conf()")

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


class Double:
    """The double of a store. It can hold, lose and refuse single requests."""

    keys: ClassVar = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}

    def __init__(self, buckets: Iterable[str]) -> None:
        self.double = DoubleProcess.start(buckets=buckets)
        self.port = int(self.double.endpoint.rpartition(":")[2])

    def metadata(self, bucket: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the keys of a bucket, each with the metadata of its object."""
        for key, one in self.double.objects(bucket).items():
            yield key, one["metadata"]

    def close(self) -> None:
        self.double.stop()


class Minio:
    """MinIO, which can be killed and started again. Requests that it has not answered may have taken effect."""

    keys: ClassVar = {
        "access_key_id": OWNER.access_key_id,
        "secret_access_key": OWNER.secret_access_key,
        "region": REGION,
    }

    def __init__(self, buckets: Iterable[str]) -> None:
        """Raises ``StoreMissing``."""
        self._ending, self._running, self.port = ExitStack(), ExitStack(), free_port()
        named = tempfile.TemporaryDirectory(prefix="minio", dir=memory_or_disk(), ignore_cleanup_errors=True)
        self._directory = Path(self._ending.enter_context(named))
        self._start()
        for bucket in buckets:
            self._client.create_bucket(Bucket=bucket)

    def metadata(self, bucket: str) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Yield the keys of a bucket, each with the metadata of its object."""
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for one in page.get("Contents", ()):
                yield one["Key"], self._client.head_object(Bucket=bucket, Key=one["Key"])["Metadata"]

    def restart(self) -> None:
        self._running.close()
        self._start()

    def close(self) -> None:
        self._running.close()
        self._ending.close()

    def _start(self) -> None:
        self._client = self._running.enter_context(minio.serving(self._directory, self.port)).connect()


class TwoReleases:
    """Makes gateways of two releases by turns, once the schema is that of the newer one; before, of the older one."""

    def __init__(self, older: Release, newer: Release, database: Database, sections: Mapping[str, Any]) -> None:
        self._older, self._newer, self._database, self._sections = older, newer, database, sections
        self._releases = cycle([older])
        self._processes: dict[int, Running] = {}
        self._stack = ExitStack()
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="soak")))

    def upgrade(self) -> None:
        """Bring the schema to the newer release, while gateways of the older one serve."""
        migrate(self._newer, self._database.dsn)
        self._releases = cycle([self._newer, self._older])

    def hatch(self, _: str | None = None) -> Gateway:
        """Start a gateway, and return it once it listens. One that finds no database ends, and is started again."""
        release, deadline = next(self._releases), time.monotonic() + _PATIENCE
        while True:
            port = free_port()
            written = write_toml(
                self._directory / f"{port}.toml", {"server": {"listen": f"127.0.0.1:{port}"}, **self._sections}
            )
            running = self._stack.enter_context(release.start("serve", "--config", written))
            while running.process.poll() is None:
                if "listening" in running.said():
                    self._processes[running.process.pid] = running
                    return Gateway(running.process.pid, port)
                time.sleep(0.02)
            assert time.monotonic() < deadline, running.said()

    def end(self, gateway: Gateway) -> None:
        """Stop a gateway as systemd does."""
        running = self._processes.pop(gateway.pid)
        assert running.stop(signal.SIGTERM) == 0, running.said()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def migrate(release: Release, dsn: str) -> None:
    """Bring the schema of a database to a release, and give the role of gateways its rights."""
    told = release.run("migrate", "--dsn", dsn, "--grant-to", GATEWAY)
    assert told.returncode == 0, told.stderr
