"""A node of a Citus cluster does what a PostgreSQL without Citus does: each promise once more.

The promises are shown by the tests that show them elsewhere. ``make citus`` runs whole suites on the nodes.
"""

import asyncio
import os
import subprocess
import sys

import pytest

from gateway.db import leases, migrations, rights
from gateway.db.database import Database
from gateway.fencing.lease import LockRequest
from tests import ROOT
from tests.citus.cluster import ROLE, Cluster, execute
from tests.postgres import GATEWAY, as_gateway, install

PROMISES = (
    # A table write below the fence is not applied, and fence and row are one transaction.
    "crash/test_table_steps.py::test_paused[raising-update-of-one-at-tables.claim.after-by_barrier]",
    "crash/test_table_steps.py::test_killed[insert-of-two-at-tables.commit.after]",
    "tables/test_refusals.py::test_a_failed_write_takes_its_raise_back",
    # After an acknowledged barrier, nothing older takes effect. A refusal has no effect, and a success is durable.
    "crash/test_object_steps.py::test_paused[overwrite-at-objects.begin.after-by_barrier]",
    "crash/test_object_steps.py::test_paused[delete-at-objects.begin.before-by_barrier]",
    "crash/test_object_steps.py::test_killed[create-at-objects.begin.after]",
    # A stale write is on record before its refusal, and a changed record is found.
    "crash/test_refusals.py::test_on_record_before_it_is_answered[stale-put-at-objects.begin.after-kill]",
    "record/test_chain.py::test_an_entry_that_is_gone_is_found",
    "record/test_sealing.py::TestInTheBackground::test_every_gateway_seals_and_says_so",
    # One holder, growing tokens, queues, barriers of locks.
    "leases/test_acquire.py::test_one_holder_at_a_time_with_growing_tokens",
    "leases/test_leases_waiting.py::test_first_come_first_served",
    "leases/test_leases_barrier.py::test_nothing_older_takes_effect_any_more",
)


@pytest.mark.parametrize("kind", ["worker", pytest.param("coordinator", marks=pytest.mark.citus)])
def test_each_promise_once(cluster: Cluster, kind: str) -> None:
    node = cluster.coordinator if kind == "coordinator" else cluster.workers[0]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not thorough and not installed", "-p", "no:cacheprovider"]
        + [f"tests/{name}" for name in PROMISES],
        cwd=ROOT,
        env={**os.environ, **cluster.suites(node), "PYTEST_XDIST_WORKER": "gw99"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]


async def test_each_node_has_fences_and_locks_of_its_own(cluster: Cluster, name: str) -> None:
    """A migration of one node leaves nothing on the others, and works on a worker as on the coordinator."""
    await asyncio.to_thread(install, cluster.coordinator.dsn(name))
    for worker in cluster.workers:
        await asyncio.to_thread(migrations.upgrade, worker.dsn(name))
        await execute(worker.dsn(name), ROLE)
        await rights.grant(worker.dsn(name), GATEWAY)
    for number, node in enumerate(cluster.nodes):
        database = Database(as_gateway(node.dsn(name)))
        try:
            for expected in range(1, 4 + number):
                (answer,) = await leases.acquire(database, [LockRequest("job/1", "ann", "tester", 30.0)])
                assert answer.lease is not None
                assert answer.lease.token.value == expected
                await leases.release(database, [("job/1", answer.lease.id, "tester")])
        finally:
            await database.close()
