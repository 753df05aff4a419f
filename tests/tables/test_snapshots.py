"""One statement of several writes is stopped between its snapshot and its locks, and newer holders commit meanwhile.

No write of an older holder takes effect then, however PostgreSQL plans the statement.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial

import asyncpg
import httpx
import pytest

from gateway.auth.principal import OWN, Principal
from gateway.db import database as store
from gateway.db import rights
from gateway.db.database import Database
from gateway.db.servers import APPLICATION
from gateway.demo.embedded import EmbeddedPostgres
from gateway.tables.pipeline import Exposure
from tests.postgres import fresh
from tests.tables.asking import TESTER, Send, answered, change, client_of, rows, send
from tests.tiers import first
from tests.waiting import PATIENCE, waiting

WRITERS = range(100, 110)

# The look for older object writes comes after the snapshot, and before the lock. Here, it waits while the gate is shut.
GATE = f"""
    CREATE TABLE gate (shut boolean);
    INSERT INTO gate VALUES (false);
    CREATE FUNCTION pass() RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN
        WHILE current_setting('application_name') = '{APPLICATION}' AND (SELECT shut FROM public.gate) LOOP
            PERFORM pg_sleep(0.01);
        END LOOP;
        RETURN true;
    END $$;
    ALTER TABLE fencing.intent RENAME TO announced;
    CREATE VIEW fencing.intent AS SELECT * FROM fencing.announced WHERE public.pass();
    INSERT INTO fencing.announced (resource, bucket, key, write_id, epoch, value, attempt)
    SELECT 'public.accounts/' || id, 'b', 'k' || id, gen_random_uuid(), 0, 5, 1 FROM unnest(ARRAY[103, 106]) AS id;
"""
AT_THE_GATE = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event = 'PgSleep' AND query LIKE $1
"""
STATEMENTS = {OWN: "WITH gw_asked%", "member_s": "%fencing.write_together_as_v1(%"}
"""The statement of several writes by the role that it runs under."""
TAKE_OVER = "SELECT decision FROM fencing.claim_v1($1, 0, 6, 'newer', 'newer', false, gen_random_uuid())"


@pytest.fixture(scope="module", autouse=True)
def patient_locks() -> Iterator[None]:
    """A batch goes on waiting for a row, or at the gate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "SHARED_LOCK_TIMEOUT", PATIENCE)
        patch.setattr(store, "SHARED_STATEMENT_TIMEOUT", PATIENCE)
        yield


SETTINGS = (
    "default_transaction_isolation = 'read committed'",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_isolation = 'serializable'",
    "plan_cache_mode = force_generic_plan",
    "enable_nestloop = off",
    "enable_hashjoin = off",
    "enable_indexscan = off",
)
OWN_WAYS, ACTING_WAYS = ([(setting, role) for setting in SETTINGS] for role in STATEMENTS)


@pytest.fixture(params=[*OWN_WAYS, *first(ACTING_WAYS, pytest.mark.nightly)], ids=" ".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A setting of the database, and the role that the batch runs under."""
    setting, role = request.param
    return setting, role


@pytest.fixture
def dsn(postgres_server: EmbeddedPostgres, way: tuple[str, str]) -> Iterator[str]:
    """A database with another setting."""
    with fresh(postgres_server) as dsn:
        asyncio.run(_set(dsn, way[0]))
        yield dsn


async def _set(dsn: str, setting: str) -> None:
    connection = await asyncpg.connect(dsn)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
    await connection.close()


@pytest.fixture
def role(way: tuple[str, str]) -> str:
    return way[1]


@pytest.fixture
async def caller(tables: Database, dsn: str, role: str) -> Principal:
    """A caller whose writes run under the role."""
    if role != OWN:
        await change(
            tables,
            f"""
            DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
            GRANT SELECT, INSERT, UPDATE, DELETE ON accounts TO {role}""",
        )
        await rights.let_act(dsn, [role])
    return replace(TESTER, role=role)


@pytest.fixture
async def write(tables: Database, exposure: Exposure, caller: Principal) -> AsyncIterator[Send]:
    async with client_of(tables, exposure, caller=caller) as client:
        yield partial(send, client)


@pytest.fixture
async def session(tables: Database, stranger: asyncpg.Connection, write: Send) -> asyncpg.Connection:
    """The session of newer holders. Holders of token 5 have written their rows."""
    await stranger.execute("INSERT INTO accounts (id) SELECT unnest($1::bigint[])", WRITERS)
    for _ in range(3):
        for answer in await asyncio.gather(*(older(write, number) for number in WRITERS)):
            answered(answer, 204)
    return stranger


async def older(write: Send, number: int, balance: int = 0) -> httpx.Response:
    return await write("PATCH", f"/accounts?id=eq.{number}", {"balance": balance}, token=5, holder="older")


async def test_a_takeover_between_the_snapshot_and_the_lock_wins(
    write: Send, tables: Database, session: asyncpg.Connection, role: str
) -> None:
    await session.execute(GATE)
    await session.execute("UPDATE gate SET shut = true")
    writes = [asyncio.create_task(older(write, number, 5)) for number in WRITERS]
    async with asyncio.timeout(PATIENCE):
        while not await session.fetchval(AT_THE_GATE, STATEMENTS[role]):
            await asyncio.sleep(0.01)
    taken = [103, 105, 106, 109]
    for number in taken:
        async with session.transaction():
            assert await session.fetchval(TAKE_OVER, f"public.accounts/{number}") == "raised"
            await session.execute("UPDATE accounts SET balance = 6 WHERE id = $1", number)
    assert not any(one.done() for one in writes)
    await session.execute("UPDATE gate SET shut = false")
    for number, one in zip(WRITERS, writes, strict=True):
        answered(await one, 412, "token-stale") if number in taken else answered(await one, 204)
    found = await rows(tables, "SELECT id, balance FROM accounts WHERE id >= 100 ORDER BY id")
    assert found == [(number, 6 if number in taken else 5) for number in WRITERS]


async def test_rows_are_locked_in_the_order_of_their_names(
    write: Send, tables: Database, session: asyncpg.Connection
) -> None:
    """Batches of one holder by two gateways would wait for each other otherwise. The table has them the other way."""
    await session.execute("DELETE FROM accounts WHERE id >= 100")
    await session.execute("INSERT INTO accounts (id) SELECT unnest($1::bigint[])", WRITERS[::-1])
    async with session.transaction():
        await session.execute("UPDATE accounts SET note = 'locked' WHERE id = 104")
        writes = [asyncio.create_task(older(write, number, 5)) for number in WRITERS]
        await waiting(tables)
        free = await session.fetch("SELECT id FROM accounts WHERE id >= 100 ORDER BY id FOR UPDATE SKIP LOCKED")
        assert [one["id"] for one in free] == list(range(104, 110))
    for one in writes:
        answered(await one, 204)


@pytest.mark.parametrize("table", first([False, True], pytest.mark.nightly))
async def test_a_takeover_waits_for_writes_that_have_their_locks(
    write: Send, tables: Database, exposure: Exposure, session: asyncpg.Connection, caller: Principal, *, table: bool
) -> None:
    """The batch waits for a row in its midst, which it finds again in its newest version. Or it waits for the table."""
    async with client_of(tables, exposure, caller=caller) as another:
        async with session.transaction():
            await session.execute("UPDATE accounts SET note = 'locked' WHERE id = 104")
            if table:
                await session.execute("LOCK TABLE accounts IN SHARE ROW EXCLUSIVE MODE")
            writes = [asyncio.create_task(older(write, number, 5)) for number in WRITERS]
            await waiting(tables)
            newer = [
                asyncio.create_task(
                    send(another, "PATCH", f"/accounts?id=eq.{number}", {"balance": 6}, token=6, holder="newer")
                )
                for number in (101, 108)
            ]
            await waiting(tables, 2)
            assert not newer[0].done(), "its predecessor has the fence"
        for one in newer:
            answered(await one, 204)
    for number, one in zip(WRITERS, writes, strict=True):
        assert (await one).status_code in ((204, 412) if number in (101, 108) else (204,))
    found = await rows(tables, "SELECT id, balance, note FROM accounts WHERE id >= 100 ORDER BY id")
    assert found == [
        (number, 6 if number in (101, 108) else 5, "locked" if number == 104 else None) for number in WRITERS
    ]
