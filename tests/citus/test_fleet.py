"""One fleet over the nodes of a Citus cluster: each node is a database of its own for gateways.

Rows, objects and locks of each node are served, while Citus' own tables are written on all nodes. Servers, gateways and
single backends are killed and paused at random. The checker of the soak judges what was answered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.citus.cluster import Cluster, Node, asked, execute
from tests.crash.soak.losses import play
from tests.crash.soak.servers import Database
from tests.waiting import PATIENCE

NAMES = ("coordinator", "east", "west")
FAULTS = ("gateways", "requests", "statements", "crashes", "outages")
SPREAD = """
CREATE TABLE spread (id bigint PRIMARY KEY, v bigint NOT NULL);
SELECT create_distributed_table('spread', 'id', shard_count => 4);
INSERT INTO spread SELECT n, 0 FROM generate_series(1, 100) AS n;
"""
ALONE = "citus.enable_ddl_propagation = off"


class OneNode(Database):
    """A node of the cluster in the place of a server of the soak."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.data, self.port = node.directory, node.port

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """The rows of the last one."""
        return super().execute(*(statement for statement in statements if statement.strip()))

    def stop(self) -> None:
        self._node.kill()

    def start(self) -> None:
        self._node.start()

    def close(self) -> None:
        """The cluster ends with the test."""


@asynccontextmanager
async def written(dsn: str) -> AsyncIterator[Callable[[], int]]:
    """Write a table of Citus again and again, on all nodes in one transaction. Yield the number of commits so far."""
    committed = 0

    async def write() -> None:
        nonlocal committed
        while True:
            with suppress(
                OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
            ):
                session = await asyncpg.connect(dsn, timeout=2, command_timeout=5)
                try:
                    # A transaction that a lost node has left prepared keeps its locks until then.
                    await session.execute("SELECT recover_prepared_transactions()")
                    while True:
                        await session.execute("UPDATE spread SET v = v + 1")
                        committed += 1
                        await asyncio.sleep(0.05)
                finally:
                    session.terminate()
            await asyncio.sleep(0.1)

    writing = asyncio.create_task(write())
    try:
        yield lambda: committed
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)


@pytest.mark.citus
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_is_stale_or_lost_and_the_other_nodes_go_on(
    own_cluster: Cluster, tmp_path: Path, seed: int
) -> None:
    cluster = own_cluster
    await cluster.join("postgres")
    await execute(cluster.coordinator.dsn(), SPREAD)
    for node in cluster.nodes:
        await execute(node.dsn(), f"SET {ALONE}; ALTER DATABASE postgres SET {ALONE}")
    nodes = iter(cluster.nodes)
    async with written(cluster.coordinator.dsn()) as commits:
        result = await play(
            3_000, seed, "off", FAULTS, tmp_path / "history", databases=NAMES, serve=lambda _: OneNode(next(nodes))
        )
        before = commits()
        async with asyncio.timeout(PATIENCE):
            while commits() == before:
                await asyncio.sleep(0.05)
    # Citus' own table has all of each transaction, now that all nodes are up.
    await execute(cluster.coordinator.dsn(), "SELECT recover_prepared_transactions()")
    assert len(await asked(cluster.coordinator.dsn(), "SELECT DISTINCT v FROM spread")) == 1
    assert result.verdict.violations == []
    assert result.verdict.figures["answers: done"] > 0
    assert result.counted["resources that the last holder did not get"] == 0
    assert result.verdict.figures["requests while another database was down"] > 0
