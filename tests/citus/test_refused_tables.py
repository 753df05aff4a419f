"""Tables that Citus manages are not served: rows and fence could commit on two nodes, one after the other."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.db import opening
from gateway.db.database import Database
from gateway.errors import DatabaseClosed
from gateway.fencing.resource import Template
from gateway.observe.events import CatalogWarning, Event
from gateway.tables.naming.plan import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.citus.cluster import Cluster, execute
from tests.postgres import as_gateway, install
from tests.processes import called, free_port, run
from tests.tables.asking import answered, over_asgi, send

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
    await execute(dsn, TABLES)
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


async def _values(dsn: str, sql: str) -> list[int]:
    session = await asyncpg.connect(dsn)
    try:
        return [row[0] for row in await session.fetch(sql)]
    finally:
        session.terminate()


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
    assert 2 not in await _values(dsn, f"SELECT v FROM {reached[0]}")


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
    assert await _values(dsn, "SELECT id FROM other") == []
    assert await _values(dsn, "SELECT v FROM account UNION ALL SELECT v FROM parted") == [0, 0]
    assert await _values(dsn, "SELECT v FROM own") == [1]


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
        await opening.ask(database)
        await execute(dsn, "SELECT create_distributed_table('fencing.lock', 'resource')")
        with pytest.raises(DatabaseClosed, match=r"Citus manages fencing\.lock"):
            await opening.ask(database)
        await execute(dsn, "SELECT undistribute_table('fencing.lock')")
        await opening.ask(database)
    finally:
        await database.close()
