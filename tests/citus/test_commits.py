"""Citus commits the parts of a transaction one after the other, so a fence on one node protects no row on another.

These tests show why such tables are refused (docs/decisions/100). ``tests/model/test_two_nodes.py`` has all orders of
the steps. If one of these tests fails, Citus has changed, and the decision can be looked at again.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import pytest

from tests.citus.cluster import Cluster, Node, asked, execute, paused
from tests.postgres import install
from tests.waiting import PATIENCE

OLDER, NEWER = 1, 2
CLAIM = "SELECT decision FROM fencing.claim_v1('r', 0, $1, NULL, 'tester', false, $2)"
WRITE_ID = "00000000-0000-0000-0000-000000000001"
WORKS = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'UPDATE%account%' AND state = 'idle in transaction'"
PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
SLOW = "ALTER SYSTEM SET synchronous_standby_names = 'nobody'"


@pytest.fixture
async def database(cluster: Cluster, name: str) -> str:
    """A database whose fences are rows of the coordinator, with one row of a table on each worker."""
    dsn = cluster.coordinator.dsn(name)
    await asyncio.to_thread(install, dsn)
    await execute(
        dsn,
        "CREATE TABLE account (id bigint PRIMARY KEY, v int); "
        "SELECT create_distributed_table('account', 'id', shard_count => 2); "
        "INSERT INTO account SELECT n, 0 FROM generate_series(1, 20) AS n",
    )
    return name


async def _ids(dsn: str) -> list[int]:
    """Return the id of a row of each worker."""
    return await asked(
        dsn,
        "SELECT min(id) AS id FROM (SELECT id, get_shard_id_for_distribution_column('account', id) AS shard "
        "FROM account) AS placed GROUP BY shard ORDER BY shard",
    )


async def _writer(node: Node, database: str, ids: list[int]) -> asyncpg.Connection:
    """Return a session of the older holder, which has claimed and written, and not committed."""
    session = await asyncpg.connect(node.dsn(database))
    await session.execute("SET synchronous_commit = on; BEGIN")
    assert await session.fetchval(CLAIM, OLDER, WRITE_ID) in ("raised", "held")
    for number in ids:
        await session.execute(f"UPDATE account SET v = {OLDER} WHERE id = {number}")
    return session


async def _acknowledged(dsn: str) -> None:
    """Raise the fence for the newer holder, as a barrier does."""
    assert await asyncio.wait_for(asked(dsn, CLAIM, NEWER, None), PATIENCE) == ["raised"]


async def _values(dsn: str, ids: list[int]) -> list[int]:
    return [value for number in ids for value in await asked(dsn, f"SELECT v FROM account WHERE id = {number}")]


async def _until(dsn: str, sql: str, expected: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while await asked(dsn, sql) != [expected]:
            await asyncio.sleep(0.02)


async def _backends(cluster: Cluster, database: str) -> list[int]:
    """Return the processes of workers that have a part of the write."""
    return [process for worker in cluster.workers for process in await asked(worker.dsn(database), WORKS)]


def _has_unread(port: int) -> bool:
    """Return whether a session of this server has not read all that it was sent."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return any(int(line[1].partition(":")[2], 16) == port and int(line[4].partition(":")[2], 16) for line in lines)


async def test_one_phase_with_the_coordinator_killed(cluster: Cluster, database: str) -> None:
    """The worker has the COMMIT and is paused. The fence's lock goes with the coordinator, and its raise, too."""
    dsn = cluster.coordinator.dsn(database)
    number, *_ = await _ids(dsn)
    session = await _writer(cluster.coordinator, database, [number])
    (backend,) = await _backends(cluster, database)
    with paused(backend):
        committing = asyncio.create_task(session.execute("COMMIT"))
        async with asyncio.timeout(PATIENCE):
            while not any(_has_unread(worker.port) for worker in cluster.workers):
                await asyncio.sleep(0.02)
        cluster.coordinator.kill()
        cluster.coordinator.start()
        await asyncio.gather(committing, return_exceptions=True)
        session.terminate()
        await _acknowledged(dsn)
        assert await _values(dsn, [number]) == [0]
    await _until(dsn, f"SELECT v FROM account WHERE id = {number}", OLDER)


@pytest.mark.parametrize("then", ["goes on", "is lost"])
async def test_two_phases_with_a_worker_paused_in_between(cluster: Cluster, database: str, then: str) -> None:
    """Both parts are prepared, and the coordinator has committed its own. The fence is free before the rows are."""
    node, dsn = cluster.coordinator, cluster.coordinator.dsn(database)
    ids = await _ids(dsn)
    session = await _writer(node, database, ids)
    backends = await _backends(cluster, database)
    assert len(backends) == len(ids) == 2
    await execute(dsn, SLOW)
    await execute(dsn, "SELECT pg_reload_conf()")
    with ExitStack() as pauses:
        # The coordinator's own commit waits for a standby that never comes, so that the workers can be paused first.
        probe = asyncio.create_task(execute(dsn, "SELECT pg_logical_emit_message(true, 'probe', '')"))
        await _until(dsn, WAITS, 1)
        committing = asyncio.create_task(session.execute("COMMIT"))
        for worker in cluster.workers:
            await _until(worker.dsn(database), PREPARED, 1)
        await _until(dsn, WAITS, 2)
        for backend in backends:
            pauses.enter_context(paused(backend))
        await execute(dsn, "ALTER SYSTEM RESET synchronous_standby_names")
        await execute(dsn, "SELECT pg_reload_conf()")
        await probe
        await _acknowledged(dsn)
        assert await _values(dsn, ids) == [0, 0]
        if then == "is lost":
            node.kill()
            node.start()
            for backend in backends:
                await _end(cluster, database, backend)
    if then == "is lost":
        await execute(dsn, "SELECT recover_prepared_transactions()")
    await asyncio.gather(committing, return_exceptions=True)
    session.terminate()
    for number in ids:
        await _until(dsn, f"SELECT v FROM account WHERE id = {number}", OLDER)


async def _end(cluster: Cluster, database: str, backend: int) -> None:
    """End a paused session of a worker before it reads what it was sent."""
    for worker in cluster.workers:
        await execute(
            worker.dsn(database), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {backend}"
        )
