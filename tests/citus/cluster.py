"""A Citus cluster: a coordinator and two workers, each a PostgreSQL server of its own in a temporary folder.

Citus has to be there already: ``citus.so`` in the libraries of a PostgreSQL below ``/usr/lib/postgresql``.
``CITUS_BIN`` names the programs of another one. Nothing here installs it.
"""

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from gateway.db.database import Database
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.pausing import pause, resume
from tests.postgres import GATEWAY, ProgramsServer, as_gateway, memory_or_disk
from tests.processes import free_port
from tests.tables.asking import over_asgi

WORKERS = 2
_SETTINGS = """
shared_preload_libraries = 'citus'
fsync = off
wal_level = logical
max_connections = 300
max_prepared_transactions = 100
citus.node_conninfo = 'sslmode=disable'
# Nothing is recovered behind a test's back.
citus.recover_2pc_interval = -1
"""


class CitusMissing(Exception):
    """There is no Citus on this machine, or it is for another release of PostgreSQL."""


class Node(ProgramsServer):
    """One server of the cluster."""

    def create(self, settings: str = _SETTINGS) -> None:
        # Newer releases use no library for replication that is not named. Citus copies shards by its own.
        library = "output_plugin_libraries"
        described = subprocess.run([self.programs / "postgres", "--describe-config"], capture_output=True, check=True)
        super().create(f"{settings}{library} = 'citus'\n" if library in described.stdout.decode() else settings)

    def start(self) -> None:
        try:
            super().start()
        except subprocess.CalledProcessError as error:
            said = [line for line in self.log.read_text().splitlines() if "could not load library" in line]
            if not said:
                raise
            release = subprocess.run([self.programs / "postgres", "-V"], capture_output=True, text=True, check=True)
            raise CitusMissing(
                f"Citus was built for a newer release than {release.stdout.strip()}. For PostgreSQL 15 it needs 15.20: "
                f"apt-get install --only-upgrade postgresql-15. {said[-1]}"
            ) from error


@dataclass(frozen=True, slots=True)
class Cluster:
    """The coordinator and the workers."""

    nodes: tuple[Node, ...]

    @property
    def coordinator(self) -> Node:
        return self.nodes[0]

    @property
    def workers(self) -> Sequence[Node]:
        return self.nodes[1:]

    def suites(self, node: Node) -> dict[str, str]:
        """Return the environment in which other tests use a node. Each of their databases is one of the cluster."""
        return {"TEST_POSTGRES": node.address, "TEST_CITUS": " ".join(each.address for each in self.nodes)}

    async def create_database(self, name: str) -> None:
        """Make a database that is distributed over all nodes."""
        for node in self.nodes:
            await execute(node.dsn(), f"CREATE DATABASE {name}")
        await self.join(name)

    async def join(self, name: str) -> None:
        """Distribute a database that each node has."""
        for node in self.nodes:
            await execute(node.dsn(name), "CREATE EXTENSION citus")
        coordinator = f"SELECT citus_set_coordinator_host('127.0.0.1', {self.coordinator.port})"
        joined = [f"SELECT citus_add_node('127.0.0.1', {node.port})" for node in self.workers]
        await execute(self.coordinator.dsn(name), "; ".join((coordinator, *joined)))

    async def drop_database(self, name: str) -> None:
        for node in self.nodes:
            await execute(node.dsn(), f"DROP DATABASE {name} WITH (FORCE)")


@asynccontextmanager
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a session of its own. It ends at once, whatever it waits for."""
    opened = await asyncpg.connect(dsn)
    try:
        yield opened
    finally:
        opened.terminate()


async def execute(dsn: str, statements: str) -> None:
    async with session(dsn) as opened:
        await opened.execute(statements)


async def asked(dsn: str, sql: str, *arguments: object) -> list[Any]:
    """Return the first column of a query to a node."""
    async with session(dsn) as opened:
        return [row[0] for row in await opened.fetch(sql, *arguments)]


@contextmanager
def a_cluster() -> Iterator[Cluster]:
    """Run a cluster. Raises ``CitusMissing``."""
    programs = _programs()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="citus", dir=memory_or_disk()))
        Path(directory).chmod(0o777)
        nodes = tuple(Node(Path(directory) / f"n{number}", free_port(), programs) for number in range(WORKERS + 1))
        for node in nodes:
            node.create()
            node.start()
            stack.callback(node.kill)
        yield Cluster(nodes)


@contextmanager
def paused(process: int) -> Iterator[None]:
    """Pause one process of a server."""
    pause(process)
    try:
        yield
    finally:
        resume(process)


def _programs() -> Path:
    named = os.environ.get("CITUS_BIN")
    folders = [Path(named)] if named else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    for folder in reversed(folders):
        if (folder.parent / "lib" / "citus.so").exists() and (folder / "initdb").exists():
            return folder
    raise CitusMissing("Citus is not installed.")


# Tests on the coordinator may have made it there alone, in a database without Citus.
ROLE = f"""
SET citus.enable_ddl_propagation = off;
DO $$ BEGIN
    IF to_regrole('{GATEWAY}') IS NULL THEN
        CREATE ROLE {GATEWAY} LOGIN;
    END IF;
END $$
"""


@asynccontextmanager
async def serving(dsn: str, schemas: tuple[str, ...] = ("public",)) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a plane whose rows have the names that they have without rules."""
    database = Database(as_gateway(dsn))
    exposure = Exposure(schemas=schemas)
    plane = TablePlane(database, exposure, authenticate=lambda _: known("tester"), observe=lambda _: None)
    async with over_asgi(plane) as opened:
        yield opened
    await database.close()
