"""Tables that Citus takes over, or gives back, while gateways serve them and a write is under way."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.db import migrations, rights
from tests.citus.cluster import Cluster, execute
from tests.citus.serving import ROLE, asked, serving
from tests.crash.clients import Answer, Client
from tests.crash.processes import Gateway, Nursery
from tests.postgres import GATEWAY, as_gateway, install
from tests.tables.asking import answered, send
from tests.waiting import waiting

WAYS = {
    "spread": "SELECT create_distributed_table('{}', 'id')",
    "spread_later": "SELECT create_distributed_table_concurrently('{}', 'id')",
    "whole": "SELECT create_distributed_table('{}', NULL)",
    "everywhere": "SELECT create_reference_table('{}')",
    "known": "SELECT citus_add_local_table_to_metadata('{}')",
}
TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, v int); INSERT INTO {} VALUES (1, 0);"
STRICTLY = {"Prefer": "handling=strict,max-affected=1"}
"""Such a write may have to be undone, so the gateway is in a transaction between its check and the commit."""


@pytest.fixture
async def dsn(cluster: Cluster, name: str) -> str:
    """The coordinator's database, with a table for each way."""
    dsn = cluster.coordinator.dsn(name)
    await asyncio.to_thread(install, dsn)
    await execute(dsn, "".join(TABLE.format(table, table) for table in WAYS))
    return dsn


@pytest.fixture
async def gateway(dsn: str) -> AsyncIterator[Gateway]:
    """A gateway that can be stopped at a step of a write."""
    postgres = {"dsn": as_gateway(dsn), "idle_timeout": 60, "lock_timeout": 30}
    with Nursery({"dsn": dsn, "postgres": postgres}) as nursery:
        yield await asyncio.to_thread(nursery.hatch)


def write(gateway: Gateway, table: str, token: int, value: int) -> "asyncio.Future[Answer]":
    """Send a write in a thread of its own."""
    client = Client(gateway.port, token)
    sent = asyncio.to_thread(client.table, "PATCH", f"{table}?id=eq.1", {"v": value}, **STRICTLY)
    return asyncio.ensure_future(sent)


async def stopped(gateway: Gateway, table: str, token: int, value: int) -> "asyncio.Future[Answer]":
    """Send a write whose gateway stops once the row is written, and before the commit."""
    gateway.trap("tables.write.after", 1, "stop")
    sent = write(gateway, table, token, value)
    await asyncio.to_thread(gateway.wait_down, "stop", sent.done)
    return sent


async def waits(dsn: str, statement: str) -> "asyncio.Task[None]":
    """Send a statement of an operator, and return once it waits for a lock."""
    session = await asyncpg.connect(dsn)
    try:
        sent = asyncio.create_task(execute(dsn, statement))
        await waiting(session)
    finally:
        session.terminate()
    return sent


@pytest.mark.citus
async def test_a_write_under_way_comes_first_and_the_next_one_is_refused(gateway: Gateway, dsn: str) -> None:
    """The write keeps its lock of the table. So Citus gets the table with what the write has left."""
    for table, statement in WAYS.items():
        assert (await write(gateway, table, 5, 1)).succeeded
        sent = await stopped(gateway, table, 5, 2)
        taken = await waits(dsn, statement.format(table))
        gateway.resume()
        assert (await sent).succeeded
        await taken
        assert await asked(dsn, f"SELECT v FROM {table}") == [2]
        refused = await write(gateway, table, 6, 3)
        assert (refused.status, refused.code) == (400, "PGRST127"), refused
        assert await asked(dsn, f"SELECT value FROM fencing.fence WHERE resource = 'public.{table}/1'") == [5]

        # A newer holder comes meanwhile. Once the table is plain again, the older one is still refused.
        assert (await asyncio.to_thread(Client(gateway.port, 7).barrier, f"public.{table}/1")).succeeded
        await execute(dsn, f"SELECT undistribute_table('{table}')")
        assert (await write(gateway, table, 5, 4)).refused_by_fence
        assert (await write(gateway, table, 7, 5)).succeeded
        assert await asked(dsn, f"SELECT v FROM {table}") == [5]


@pytest.mark.citus
async def test_a_write_whose_gateway_dies_leaves_nothing_for_citus(gateway: Gateway, dsn: str) -> None:
    sent = await stopped(gateway, "spread", 5, 2)
    taken = await waits(dsn, WAYS["spread"].format("spread"))
    gateway.kill()
    await asyncio.gather(sent, return_exceptions=True)
    await taken
    assert await asked(dsn, "SELECT v FROM spread") == [0]


@pytest.mark.citus
async def test_a_write_that_waits_for_citus_is_refused(gateway: Gateway, dsn: str) -> None:
    """It was planned for a plain table, and finds another one once it has the lock."""
    for table in ("spread", "whole", "everywhere", "known"):
        assert (await write(gateway, table, 5, 1)).succeeded
        operator = await asyncpg.connect(dsn)
        try:
            async with operator.transaction():
                await operator.execute(WAYS[table].format(table))
                sent = write(gateway, table, 6, 2)
                session = await asyncpg.connect(dsn)
                await waiting(session)
                session.terminate()
        finally:
            await operator.close()
        refused = await sent
        assert (refused.status, refused.code) == (400, "PGRST127"), refused
        assert await asked(dsn, f"SELECT v FROM {table}") == [1]
        assert await asked(dsn, f"SELECT value FROM fencing.fence WHERE resource = 'public.{table}/1'") == [5]


@pytest.mark.citus
async def test_a_schema_of_its_own_is_refused_and_served_again(dsn: str) -> None:
    """Citus keeps the tables of a distributed schema on one node, which need not be that of the fences."""
    await execute(dsn, f"CREATE SCHEMA tenant; {TABLE.format('tenant.account', 'tenant.account')}")
    async with serving(dsn, schemas=("tenant",)) as client:
        for made, status in (("", 204), ("citus_schema_distribute", 400), ("citus_schema_undistribute", 204)):
            if made:
                await execute(dsn, f"SELECT {made}('tenant')")
            answered(await send(client, "PATCH", "/account?id=eq.1", {"v": 1}, token=5), status)
        await execute(
            dsn, "SET citus.enable_schema_based_sharding = on; CREATE SCHEMA born; CREATE TABLE born.t (id int)"
        )
    async with serving(dsn, schemas=("born",)) as client:
        answered(await send(client, "POST", "/t", {"id": 1}, token=5, resource="r"), 400, "PGRST127")


@pytest.mark.citus
async def test_a_foreign_key_to_a_reference_table_is_enough(dsn: str) -> None:
    """Citus takes the table into its metadata then, and runs its writes by a path of its own."""
    await execute(dsn, WAYS["everywhere"].format("everywhere"))
    async with serving(dsn) as client:
        for _ in range(2):
            answered(await send(client, "PATCH", "/known?id=eq.1", {"v": 1}, token=5), 204)
        await execute(dsn, "ALTER TABLE known ADD FOREIGN KEY (v) REFERENCES everywhere (id)")
        answered(await send(client, "PATCH", "/known?id=eq.1", {"v": 1}, token=5), 400, "PGRST127")
        await execute(dsn, "SELECT undistribute_table('known', cascade_via_foreign_keys => true)")
        for table in ("known", "everywhere"):
            answered(await send(client, "PATCH", f"/{table}?id=eq.1", {"v": 1}, token=5), 204)


@pytest.mark.citus
@pytest.mark.parametrize("hidden", ["on", "off"])
async def test_settings_of_the_database_open_no_way(dsn: str, hidden: str) -> None:
    await execute(dsn, WAYS["spread"].format("spread"))
    database = dsn.rpartition("/")[2]
    for name, value in (
        ("override_table_visibility", hidden),
        ("enable_ddl_propagation", "off"),
        ("use_citus_managed_tables", "on"),
        ("enable_unsafe_triggers", "on"),
    ):
        await execute(dsn, f"ALTER DATABASE {database} SET citus.{name} = {value}")
    # Other nodes keep the old names. The gateway asks by the table's identity.
    await execute(dsn, "ALTER TABLE spread RENAME TO renamed; CREATE TABLE managed (id int PRIMARY KEY)")
    async with serving(dsn) as client:
        answered(await send(client, "PATCH", "/renamed?id=eq.1", {"v": 1}, token=5), 400, "PGRST127")
        managed = await asked(dsn, "SELECT 1 FROM pg_dist_partition WHERE logicalrelid = 'managed'::regclass")
        answered(await send(client, "POST", "/managed", {"id": 1}, token=5), 400 if managed else 201)


@pytest.mark.parametrize("hidden", [pytest.param("on", marks=pytest.mark.citus), "off"])
async def test_shards_are_refused_on_the_nodes_that_have_them(cluster: Cluster, dsn: str, hidden: str) -> None:
    """A shard is a table of a worker. A copy of a reference table must not be written alone, and Citus moves shards."""
    name = dsn.rpartition("/")[2]
    for table in ("spread", "everywhere"):
        await execute(dsn, WAYS[table].format(table))
    await execute(dsn, "INSERT INTO spread SELECT n, 0 FROM generate_series(2, 99) AS n")
    worker = cluster.workers[0].dsn(name)
    await asyncio.to_thread(migrations.upgrade, worker)
    await execute(worker, ROLE)
    await rights.grant(worker, GATEWAY)
    alone = "SET citus.enable_ddl_propagation = off; "
    await execute(worker, f"{alone}ALTER DATABASE {name} SET citus.override_table_visibility = {hidden}")
    shards = await asked(
        worker,
        "SELECT format('%s_%s', s.logicalrelid, s.shardid) FROM pg_dist_shard AS s JOIN pg_dist_placement AS p "
        f"USING (shardid) JOIN pg_dist_node AS n USING (groupid) WHERE n.nodeport = {cluster.workers[0].port}",
    )
    copies = [shard for shard in shards if shard.startswith("everywhere")]
    assert len(copies) == 1
    (filled, *_) = [shard for shard in shards if shard not in copies and await asked(worker, f"SELECT id FROM {shard}")]
    await execute(
        worker,
        f"{alone}CREATE VIEW over_a_shard AS SELECT * FROM {filled}; "
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {GATEWAY}",
    )
    (before,) = await asked(worker, f"SELECT sum(v) FROM {filled}")
    async with serving(worker) as client:
        for shard in (filled, *copies, "over_a_shard"):
            for answer in (
                await send(client, "PATCH", f"/{shard}?id=gt.0", {"v": 7}, token=5, resource="r"),
                await send(client, "POST", f"/{shard}", {"id": 7, "v": 7}, token=5, resource="r"),
            ):
                answered(answer, 400, "PGRST127")
    assert await asked(worker, f"SELECT sum(v) FROM {filled}") == [before]
    assert await asked(worker, f"SELECT v FROM {copies[0]}") == [0]
