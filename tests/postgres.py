"""Real PostgreSQL for every test that wants one: one server a session, and fresh databases.

The server is the embedded one. To test another release, set ``TEST_POSTGRES`` to the folder of its programs, such as
``/usr/lib/postgresql/15/bin``. It may also be the address of a superuser of a running server, without a database, such
as ``postgresql://postgres@127.0.0.1:5432``. ``TEST_CITUS`` has the addresses of
the nodes of a Citus cluster. Each database is then one of that cluster, and its tables are those of this node.
"""

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TypeAlias

import asyncpg
import psutil

from gateway.db import migrations, rights
from gateway.demo.embedded import EmbeddedPostgres, postgres
from tests.processes import free_port

# Processes of one run may share a server that is named.
_TEMPLATE = f"fencing_template_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"

GATEWAY = "fencing_gateway"
"""The role of gateways in tests. It has what ``gateway migrate --grant-to`` gives, and the tables of each test."""

# A copy is another database to the gateway, which opens it anew. These copies stand for new installations.
_INSTALLED_HERE = "UPDATE fencing.opening SET identity = (fencing.run_v1()).identity"

# An operator grants the tables that are served. Here, each table is, as soon as it is made.
_ROLE = f"""
DO $$ BEGIN
    IF to_regrole('{GATEWAY}') IS NULL THEN
        CREATE ROLE {GATEWAY} LOGIN;
    END IF;
END $$;
CREATE FUNCTION pg_catalog.grant_to_gateway() RETURNS event_trigger LANGUAGE plpgsql AS $$
DECLARE
    made record;
BEGIN
    FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() WHERE schema_name IS DISTINCT FROM 'fencing' LOOP
        IF made.object_type IN ('table', 'view', 'materialized view', 'foreign table') THEN
            EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO {GATEWAY}', made.object_identity);
        ELSIF made.object_type = 'sequence' THEN
            EXECUTE format('GRANT USAGE ON SEQUENCE %s TO {GATEWAY}', made.object_identity);
        ELSIF made.object_type = 'schema' THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %s TO {GATEWAY}', made.object_identity);
        END IF;
    END LOOP;
END $$;
CREATE EVENT TRIGGER grant_to_gateway ON ddl_command_end EXECUTE FUNCTION pg_catalog.grant_to_gateway();
"""

_MEMORY = Path("/dev/shm")
_ENOUGH = 2 * 1024**3
"""Bytes, several times what a server holds. A database is 600 files, and there are thousands: a disk takes longer."""


@dataclass(frozen=True)
class OwnPostgres:
    """A server that is there already."""

    address: str

    def dsn(self, database: str = "postgres") -> str:
        return f"{self.address}/{database}"


@dataclass(frozen=True)
class ProgramsServer:
    """A server from a folder of programs. Its processes can be killed at once, and it can be started again.

    A superuser of the machine needs the account ``postgres`` for it.
    """

    directory: Path
    port: int
    programs: Path

    def dsn(self, database: str = "postgres") -> str:
        return f"{self.address}/{database}"

    @property
    def address(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    def create(self, settings: str) -> None:
        self._run("initdb", "--auth=trust", "--username=postgres", "--locale=C.UTF-8", "--encoding=UTF8", "--no-sync")
        with (self.directory / "postgresql.conf").open("a") as file:
            file.write(f"{settings}port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\n")

    def start(self) -> None:
        self._run("pg_ctl", "-w", "-l", str(self.log), "start")

    def kill(self) -> None:
        """Kill all processes of the server, as a lost machine ends."""
        try:
            first = psutil.Process(int((self.directory / "postmaster.pid").read_text().splitlines()[0]))
        except (FileNotFoundError, psutil.NoSuchProcess):
            return  # it is down already
        # The first process would start the others again, so it is paused until all are killed.
        first.suspend()
        processes = [first, *first.children(recursive=True)]
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=30)

    def _run(self, name: str, *arguments: str) -> None:
        subprocess.run(
            [self.programs / name, "-D", str(self.directory), *arguments],
            check=True,
            user="postgres" if os.geteuid() == 0 else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )


Server: TypeAlias = EmbeddedPostgres | OwnPostgres | ProgramsServer


_SESSIONS = 400
"""The sessions of a server. The gateways of crash tests stay as long as a worker, and have about a hundred."""


@contextmanager
def a_server() -> Iterator[Server]:
    """Run a server, or name the one that was asked for."""
    named, settings = os.environ.get("TEST_POSTGRES"), f"max_connections = {_SESSIONS}\n"
    if named and "://" in named:
        yield OwnPostgres(named)
        return
    with tempfile.TemporaryDirectory(prefix="pg", dir=memory_or_disk()) as directory:
        data = Path(directory) / "data"
        if named:
            Path(directory).chmod(0o777)
            server = ProgramsServer(data, free_port(), Path(named))
            server.create(settings)
            server.start()
            try:
                yield server
            finally:
                server.kill()
            return
        with postgres(data):
            pass  # it is made
        with (data / "postgresql.conf").open("a") as file:
            file.write(settings)
        with postgres(data) as embedded:
            yield embedded


def memory_or_disk() -> Path | None:
    """Return where a server keeps its data: in memory where there is enough of it, else where temporary files go."""
    return _MEMORY if _in_memory() else None


@cache
def _in_memory() -> bool:
    return _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH


@contextmanager
def fresh(server: Server) -> Iterator[str]:
    """The address of a fresh database with the fencing schema, dropped in the end."""
    name = _create(server)
    try:
        yield server.dsn(name)
    finally:
        _drop(server, name)


def as_gateway(dsn: str) -> str:
    """Return the address of a superuser for the role of a gateway, and that of any other role as it is."""
    return re.sub(r"://postgres:?@", f"://{GATEWAY}@", dsn, count=1)


def as_owner(dsn: str) -> str:
    """Return the address for the superuser again, who makes the tables of a test."""
    return dsn.replace(f"://{GATEWAY}@", "://postgres:@", 1)


@asynccontextmanager
async def fresh_database(server: Server) -> AsyncIterator[str]:
    """The same, where a loop runs."""
    name = await asyncio.to_thread(_create, server)
    try:
        yield server.dsn(name)
    finally:
        await asyncio.to_thread(_drop, server, name)


def template_of_today(server: Server) -> str:
    """The database that fresh ones are copies of. The record of one that was made yesterday begins yesterday.

    Nothing begins in the last seconds of a day: much of the record is about days, and it would see two of them.
    """
    while (now := datetime.now(UTC)).date() != (now + timedelta(seconds=20)).date():
        time.sleep(0.5)
    _make_template(server, now.date())
    return _TEMPLATE


def _create(server: Server) -> str:
    name = f"test_{uuid.uuid4().hex}"
    # On a disk it is much the slower way: each file is synchronised.
    strategy = "STRATEGY file_copy" if _in_memory() and not isinstance(server, OwnPostgres) else ""
    asyncio.run(_execute(server.dsn(), f"CREATE DATABASE {name} TEMPLATE {template_of_today(server)} {strategy}"))
    asyncio.run(_execute(server.dsn(name), _INSTALLED_HERE))
    # Not in the template: the workers of an extension would keep it in use.
    if nodes := os.environ.get("TEST_CITUS"):
        asyncio.run(_spread(nodes.split(), server.dsn().rpartition("/")[0], name))
    return name


async def _spread(nodes: list[str], here: str, name: str) -> None:
    """Make a database of a Citus cluster one that its other nodes have, too. The first node is the coordinator."""
    for node in nodes:
        if node != here:
            await _execute(f"{node}/postgres", f"CREATE DATABASE {name}")
        await _execute(f"{node}/{name}", "CREATE EXTENSION citus")
    coordinator, *workers = (f"'127.0.0.1', {node.rpartition(':')[2]}" for node in nodes)
    joined = "; ".join(f"SELECT citus_add_node({worker})" for worker in workers)
    # Citus gives roles to a node that joins. Two that do so at once fail, because roles belong to the whole server.
    alone = await asyncpg.connect(f"{nodes[0]}/postgres")
    try:
        await alone.execute("SELECT pg_advisory_lock(1)")
        await _execute(f"{nodes[0]}/{name}", f"SELECT citus_set_coordinator_host({coordinator}); {joined}")
    finally:
        await alone.close()
    # Otherwise Citus refuses much of what tests make on a worker, and copies what they make on the coordinator.
    setting = "citus.enable_ddl_propagation = off"
    await _execute(f"{here}/{name}", f"SET {setting}; ALTER DATABASE {name} SET {setting}")


def _drop(server: Server, name: str) -> None:
    asyncio.run(_execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)"))
    for node in os.environ.get("TEST_CITUS", "").split():
        asyncio.run(_execute(f"{node}/postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@cache
def _make_template(server: Server, _: date) -> None:
    asyncio.run(_execute(server.dsn(), f"DROP DATABASE IF EXISTS {_TEMPLATE} WITH (FORCE)"))
    asyncio.run(_execute(server.dsn(), f"CREATE DATABASE {_TEMPLATE}"))
    install(server.dsn(_TEMPLATE))


def install(dsn: str, migrate: Callable[[str], None] | None = None) -> None:
    """Install the fencing schema in a database as an operator would: with a role for gateways beside its owner.

    ``migrate`` installs that of another release, and grants the role what its gateways need.
    """
    if migrate is None:
        migrations.upgrade(dsn)
    asyncio.run(_execute(dsn, _ROLE))
    if migrate is None:
        asyncio.run(rights.grant(dsn, GATEWAY))
    else:
        migrate(dsn)


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
