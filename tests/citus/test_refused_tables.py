"""Tables that Citus manages are not served: rows and fence could commit on two nodes, one after the other.

So are tables that Citus takes over, or gives back, while gateways serve them and a write is under way.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.db import migrations, rights
from gateway.db.database import Database
from gateway.errors import DatabaseClosed
from gateway.fencing.resource import Template
from gateway.journal import opening_table
from gateway.observe.events import CatalogWarning, Event
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.citus.cluster import ROLE, Cluster, asked, execute, serving, session
from tests.crash.clients import Answer, Client
from tests.crash.processes import Gateway, Nursery
from tests.postgres import GATEWAY, as_gateway, install
from tests.processes import called, free_port, run
from tests.tables.asking import answered, over_asgi, send
from tests.waiting import waiting

TABLES = """
CREATE TABLE account (id bigint PRIMARY KEY, v int);
CREATE VIEW over_it AS SELECT * FROM account;
CREATE TABLE parted (id bigint, part int, v int, PRIMARY KEY (id, part)) PARTITION BY LIST (part);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);
CREATE TABLE other (id bigint PRIMARY KEY, v int);
CREATE TABLE own (id bigint PRIMARY KEY, v int);
INSERT INTO account VALUES (1, 0); INSERT INTO parted VALUES (1, 1, 0); INSERT INTO own VALUES (1, 0);
"""
NAMES = ("account", "over_it", "parted", "parted_1", "other", "own")
WAYS = {
    "distributed": ("SELECT create_distributed_table('account', 'id')", ("account", "over_it")),
    "on one node": ("SELECT create_distributed_table('account', NULL)", ("account", "over_it")),
    "on every node": ("SELECT create_reference_table('account')", ("account", "over_it")),
    "of the coordinator": ("SELECT citus_add_local_table_to_metadata('account')", ("account", "over_it")),
    "partitions": ("SELECT create_distributed_table('parted', 'id')", ("parted", "parted_1")),
}
TAKEOVERS = {
    "spread": "SELECT create_distributed_table('{}', 'id')",
    "spread_later": "SELECT create_distributed_table_concurrently('{}', 'id')",
    "whole": "SELECT create_distributed_table('{}', NULL)",
    "everywhere": "SELECT create_reference_table('{}')",
    "known": "SELECT citus_add_local_table_to_metadata('{}')",
}
TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, v int); INSERT INTO {} VALUES (1, 0);"
CODE = """
CREATE FUNCTION pay(id bigint) RETURNS void LANGUAGE sql AS $$ INSERT INTO other VALUES ($1, 1) $$;
CREATE FUNCTION keep() RETURNS void LANGUAGE sql AS $$ UPDATE own SET v = v + 1 $$;
CREATE FUNCTION copied() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO other VALUES (new.v, 1);
    RETURN new;
END $$;
CREATE TRIGGER copies AFTER UPDATE ON account FOR EACH ROW EXECUTE FUNCTION copied();
CREATE CONSTRAINT TRIGGER copies AFTER UPDATE ON parted DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION copied();
"""


@pytest.fixture
async def dsn(cluster: Cluster, name: str) -> str:
    dsn = cluster.coordinator.dsn(name)
    await asyncio.to_thread(install, dsn)
    await execute(dsn, TABLES + "".join(TABLE.format(table, table) for table in TAKEOVERS))
    return dsn


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def client(dsn: str, events: list[Event]) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a plane with a gateway's rights."""
    database = Database(as_gateway(dsn))
    rules = {f"public.{name}": Rule(Template.parse("job/{id}")) for name in NAMES}
    exposure = Exposure(rules=rules, functions=frozenset({"public.pay", "public.keep"}))
    async with over_asgi(
        TablePlane(database, exposure, authenticate=lambda _: known("tester"), observe=events.append)
    ) as opened:
        yield opened
    await database.close()


async def _patched(client: httpx.AsyncClient, name: str, value: int = 1) -> httpx.Response:
    return await send(client, "PATCH", f"/{name}?id=eq.1&v=gte.0", {"v": value}, token=5)


@pytest.mark.parametrize("way", WAYS)
async def test_it_is_refused_at_once(client: httpx.AsyncClient, dsn: str, events: list[Event], way: str) -> None:
    """A gateway that has learnt the write when the table was a plain one refuses the next write."""
    statement, reached = WAYS[way]
    for name in NAMES:
        answered(await _patched(client, name), 204)
        answered(await _patched(client, name), 204)
    await execute(dsn, statement)
    for name in NAMES:
        answer = await _patched(client, name, 2)
        if name not in reached:
            answered(answer, 204)
            continue
        answered(answer, 400, "PGRST127")
        assert "Citus manages" in answer.json()["details"]
        if name != "over_it":
            assert "undistribute_table" in answer.json()["hint"]
            assert any(isinstance(event, CatalogWarning) and event.table == f"public.{name}" for event in events)
    answered(await client.get(f"/{reached[0]}?id=eq.1"), 400, "PGRST127")
    assert 2 not in await asked(dsn, f"SELECT v FROM {reached[0]}")


async def test_code_that_writes_on_another_node_undoes_its_write(client: httpx.AsyncClient, dsn: str) -> None:
    await execute(dsn, "SELECT create_distributed_table('other', 'id')")
    await execute(dsn, CODE)
    held = {"fencing-token": "5", "fencing-resource": "job/1"}
    answered(await client.post("/rpc/keep", json={}, headers=held), 204)
    for answer in (
        await client.post("/rpc/pay", json={"id": 1}, headers=held),
        await _patched(client, "account", 7),
        await _patched(client, "parted", 7),
    ):
        answered(answer, 400, "0A000")
        assert "Citus manages" in answer.json()["message"]
    assert await asked(dsn, "SELECT id FROM other") == []
    assert await asked(dsn, "SELECT v FROM account UNION ALL SELECT v FROM parted") == [0, 0]
    assert await asked(dsn, "SELECT v FROM own") == [1]


async def test_a_gateway_with_a_rule_for_it_does_not_start(dsn: str, tmp_path: Path) -> None:
    await execute(dsn, WAYS["distributed"][0])
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[server]\nlisten = "127.0.0.1:{free_port()}"\n[postgres]\ndsn = "{as_gateway(dsn)}"\n'
        '[[callers]]\nname = "a"\napi_key = "key-of-a-caller-of-the-tests"\n[[tables]]\nname = "public.account"\n'
    )
    for arguments, code in ((("config", "check"), 78), (("serve",), 2)):
        done = await asyncio.to_thread(run, *arguments, "--config", str(file))
        assert done.returncode == code, done.stderr
        assert "public.account cannot be served: Citus manages it" in done.stderr
        assert "undistribute_table" in done.stderr


async def test_it_has_no_guard(dsn: str, tmp_path: Path) -> None:
    await execute(dsn, WAYS["distributed"][0])
    path = tmp_path / "gateway.toml"
    path.write_text(f'[postgres]\ndsn = "{as_gateway(dsn)}"\n')
    done = await asyncio.to_thread(called, "guard", "install", "account", "--dsn", dsn, "--config", str(path))
    assert done.returncode == 2
    assert "public.account cannot be guarded: Citus manages it" in done.stderr


async def test_the_fences_themselves_stay_on_one_node(dsn: str) -> None:
    """Citus refuses to distribute a table with triggers, so it refuses the fences. It would take the locks."""
    with pytest.raises(asyncpg.PostgresError, match="triggers"):
        await execute(dsn, "SELECT create_distributed_table('fencing.fence', 'resource')")
    database = Database(as_gateway(dsn))
    try:
        await opening_table.ask(database)
        await execute(dsn, "SELECT create_distributed_table('fencing.lock', 'resource')")
        with pytest.raises(DatabaseClosed, match=r"Citus manages fencing\.lock"):
            await opening_table.ask(database)
        await execute(dsn, "SELECT undistribute_table('fencing.lock')")
        await opening_table.ask(database)
    finally:
        await database.close()


STRICTLY = {"Prefer": "handling=strict,max-affected=1"}
"""Such a write may have to be undone, so the gateway is in a transaction between its check and the commit."""


@pytest.fixture
async def gateway(dsn: str) -> AsyncIterator[Gateway]:
    """A gateway that can be stopped at a step of a write."""
    with Nursery({"dsn": dsn, "limits": {"idle_timeout": 60, "lock_timeout": 30}}) as nursery:
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
    async with session(dsn) as watching:
        sent = asyncio.create_task(execute(dsn, statement))
        await waiting(watching)
    return sent


@pytest.mark.citus
async def test_a_write_under_way_comes_first_and_the_next_one_is_refused(gateway: Gateway, dsn: str) -> None:
    """The write keeps its lock of the table. So Citus gets the table with what the write has left."""
    for table, statement in TAKEOVERS.items():
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
async def test_a_write_that_waits_for_citus_is_refused(gateway: Gateway, dsn: str) -> None:
    """It was planned for a plain table, and finds another one once it has the lock."""
    for table in ("spread", "whole", "everywhere", "known"):
        assert (await write(gateway, table, 5, 1)).succeeded
        async with session(dsn) as operator, session(dsn) as watching, operator.transaction():
            await operator.execute(TAKEOVERS[table].format(table))
            sent = write(gateway, table, 6, 2)
            await waiting(watching)
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
    await execute(dsn, TAKEOVERS["everywhere"].format("everywhere"))
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
    await execute(dsn, TAKEOVERS["spread"].format("spread"))
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
        await execute(dsn, TAKEOVERS[table].format(table))
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
