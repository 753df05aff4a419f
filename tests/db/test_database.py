"""The door to Postgres: what its troubles become, and what every session is pinned to."""

import asyncio
from typing import Any

import asyncpg
import pytest

from gateway import serving
from gateway.db import settings
from gateway.db.database import Database, Transaction, refuses_sessions
from gateway.errors import ConfigurationError, OutcomeUnknown, SqlError, Unavailable
from tests.patience import LIMITS
from tests.waiting import PATIENCE


def opened(dsn: str, **settings: float) -> Database:
    return Database(dsn, **LIMITS | settings)  # type: ignore[arg-type]  # a subset, all of them numbers


async def setting(database: Database, name: str) -> str:
    row = await database.fetchrow("SELECT current_setting($1) AS value", name)
    assert row is not None
    return str(row["value"])


async def administer(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(statement)
    await connection.close()


@pytest.mark.parametrize(
    ("default", "pinned"), [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_commits_are_durable_whatever_the_default_is(dsn: str, default: str, pinned: str) -> None:
    name = dsn.partition("?")[0].rpartition("/")[2]
    await administer(dsn, f"ALTER DATABASE {name} SET synchronous_commit = {default}")
    database = opened(dsn)
    assert await setting(database, "synchronous_commit") == pinned
    await database.close()


@pytest.mark.parametrize(("name", "value"), [("TimeZone", "UTC"), ("DateStyle", "ISO, YMD"), ("bytea_output", "hex")])
async def test_sessions_write_values_in_one_form(dsn: str, name: str, value: str) -> None:
    database_name = dsn.partition("?")[0].rpartition("/")[2]
    await administer(dsn, f"ALTER DATABASE {database_name} SET TimeZone = 'Asia/Tokyo'")
    database = opened(dsn)
    assert await setting(database, name) == value
    await database.close()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    database = opened("postgresql://gateway@127.0.0.1:1/app", connect_timeout=1)
    with pytest.raises(Unavailable):
        await database.fetch("SELECT 1")
    with pytest.raises(Unavailable):
        await database.fetchrow_write("SELECT 1")
    await database.close()


async def test_a_session_lost_under_a_write_leaves_its_outcome_unknown(database: Database, dsn: str) -> None:
    await database.fetch("SELECT 1")

    async def lose() -> None:
        """End the session as soon as it is in the middle of the statement."""
        connection = await asyncpg.connect(dsn)
        ended = None
        async with asyncio.timeout(PATIENCE):
            while ended is None:
                ended = await connection.fetchval(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE wait_event = 'PgSleep' AND datname = current_database()"
                )
        await connection.close()

    for read, error in ((database.fetchrow, Unavailable), (database.fetchrow_write, OutcomeUnknown)):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(lose())
            with pytest.raises(error):
                await read("SELECT pg_sleep(40)")
    assert await database.fetchrow("SELECT 1") is not None


async def test_a_transaction_that_fails_is_undone_and_its_session_usable(database: Database) -> None:
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int PRIMARY KEY)"))

    async def twice(transaction: Transaction) -> None:
        await transaction.execute("INSERT INTO t VALUES (1)")
        await transaction.execute("INSERT INTO t VALUES (1)")

    with pytest.raises(SqlError) as caught:
        await database.run(twice)
    assert caught.value.sqlstate == "23505"
    assert await database.fetch("SELECT * FROM t") == []


async def test_a_cancelled_transaction_does_not_leak_into_the_next(dsn: str) -> None:
    """P3: a session that came back inside a transaction would answer success for what is never committed."""
    database = opened(dsn, pool_size=1)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))

    async def slow(transaction: Transaction) -> None:
        await transaction.execute("INSERT INTO t VALUES (1)")
        await transaction.execute("SELECT pg_sleep(30)")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await database.run(slow)
    await database.fetchrow_write("INSERT INTO t VALUES (2)")
    other = await asyncpg.connect(dsn)
    assert [row["v"] for row in await other.fetch("SELECT v FROM t")] == [2]
    await other.close()
    await database.close()


async def test_a_deadlock_is_tried_again(database: Database) -> None:
    await database.run(
        lambda transaction: transaction.execute("CREATE TABLE t AS SELECT v FROM generate_series(1, 2) v")
    )
    attempts = 0
    both = asyncio.Barrier(2)

    async def cross(first: int, second: int) -> None:
        met = False

        async def work(transaction: Transaction) -> None:
            nonlocal attempts, met
            attempts += 1
            await transaction.execute("UPDATE t SET v = v WHERE v = $1", first)
            if not met:
                met = True
                await both.wait()
            await transaction.execute("UPDATE t SET v = v WHERE v = $1", second)

        await database.run(work)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(cross(1, 2))
        tasks.create_task(cross(2, 1))
    assert attempts > 2


async def test_a_lock_that_is_held_too_long_is_unavailable(dsn: str) -> None:
    database = opened(dsn, lock_timeout=0.2)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t AS SELECT 1 AS v"))
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("UPDATE t SET v = 2")
        with pytest.raises(Unavailable, match="still under way"):
            await database.fetchrow_write("UPDATE t SET v = 3")
    await holder.close()
    await database.close()


RAISED = "DO $$ BEGIN RAISE EXCEPTION 'ringing' USING ERRCODE = '{}'; END $$"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sqlstate",
    [
        "08006",
        "25006",
        "25P03",
        "40001",
        "40P01",
        "53100",
        "53200",
        "53300",
        "55P03",
        "57014",
        "57P01",
        "57P03",
        "72000",
    ],
)
async def test_what_the_server_says_about_itself_is_unavailable(database: Database, sqlstate: str) -> None:
    raised = RAISED.format(sqlstate)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))

    async def work(transaction: Transaction) -> None:
        await transaction.execute("INSERT INTO t VALUES (1)")
        await transaction.execute(raised)

    for asked in (database.fetch(raised), database.fetchrow_write(raised), database.run(work)):
        with pytest.raises(Unavailable):
            await asked
    assert await database.fetch("SELECT * FROM t") == []
    assert database.use()["own"].in_use == 0


async def test_an_outcome_that_the_server_does_not_know_is_unknown(database: Database) -> None:
    with pytest.raises(OutcomeUnknown):
        await database.fetchrow_write(RAISED.format("40003"))


@pytest.mark.parametrize("sqlstate", ["23505", "42P01", "P0001", "XX000"])
async def test_what_the_server_says_about_the_statement_stays_its_error(database: Database, sqlstate: str) -> None:
    for asked in (database.fetch, database.fetchrow_write):
        with pytest.raises(SqlError) as caught:
            await asked(RAISED.format(sqlstate))
        assert caught.value.sqlstate == sqlstate


async def test_a_standby_takes_no_writes_at_the_moment(dsn: str) -> None:
    database = opened(dsn)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))
    await database.close()
    name = dsn.partition("?")[0].rpartition("/")[2]
    await administer(dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = opened(dsn)
    with pytest.raises(Unavailable, match="read-only"):
        await database.fetchrow_write("INSERT INTO t VALUES (1)")
    await database.close()


async def test_a_write_in_a_transaction_that_only_reads_is_the_statements_own_fault(database: Database) -> None:
    async def work(transaction: Transaction) -> None:
        await settings.make_read_only(transaction)
        await transaction.execute("CREATE TABLE t (v int)")

    with pytest.raises(SqlError) as caught:
        await database.run(work)
    assert caught.value.sqlstate == "25006"


async def test_a_session_whose_transaction_could_not_begin_is_not_used_again(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = opened(dsn, pool_size=1)
    execute = asyncpg.Connection.execute

    async def cancelled(session: asyncpg.Connection, sql: str, *arguments: object) -> str:
        if sql.startswith("BEGIN"):
            monkeypatch.setattr(asyncpg.Connection, "execute", execute)
            sql = "DO $$ BEGIN PERFORM pg_cancel_backend(pg_backend_pid()); PERFORM pg_sleep(60); END $$"
        return await execute(session, sql, *arguments)

    await database.fetch("SELECT 1")
    monkeypatch.setattr(asyncpg.Connection, "execute", cancelled)
    with pytest.raises(Unavailable, match="canceling statement"):
        await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))
    assert await database.fetch("SELECT * FROM t") == []
    await database.close()


async def test_a_rollback_that_fails_does_not_hide_why_there_is_one(database: Database, dsn: str) -> None:
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))

    async def work(transaction: Transaction) -> None:
        await transaction.execute("INSERT INTO t VALUES (1)")
        row = await transaction.fetchrow("SELECT pg_backend_pid() AS pid")
        assert row is not None
        await administer(dsn, f"SELECT pg_terminate_backend({row['pid']}, 30000)")
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(work)
    assert await database.fetch("SELECT * FROM t") == []


async def test_a_server_with_too_many_sessions_says_so(dsn: str) -> None:
    """A session may be free a moment later, so a gateway that starts waits for one."""
    name = dsn.partition("?")[0].rpartition("/")[2]
    await administer(dsn, f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    await administer(dsn, f"CREATE ROLE {name} LOGIN")
    database = opened(dsn.replace("://postgres", f"://{name}"))
    for asked in (database.fetch, database.fetchrow_write, database.search):
        with pytest.raises(Unavailable, match="refuses the gateway a session: too many connections") as caught:
            await asked("SELECT 1")
        assert not refuses_sessions(caught.value)
    await database.close()
    await administer(dsn, f"DROP ROLE {name}")


@pytest.mark.parametrize("how", ["no such database", "no right to connect"])
async def test_a_server_that_grants_no_session_is_unavailable(dsn: str, how: str) -> None:
    """This also holds for a running gateway, when an operator has changed a password or dropped the database."""
    name = dsn.partition("?")[0].rpartition("/")[2]
    if how == "no such database":
        address = dsn.replace(name, "nowhere")
    else:
        await administer(dsn, f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
        await administer(dsn, f"CREATE ROLE {name} LOGIN")
        address = dsn.replace("://postgres", f"://{name}")
    database = opened(address)
    for asked in (database.fetch, database.fetchrow_write, database.search):
        with pytest.raises(Unavailable, match="refuses the gateway a session") as caught:
            await asked("SELECT 1")
        assert refuses_sessions(caught.value)
    with pytest.raises(ConfigurationError, match="refuses the gateway a session"):
        await serving.revision(address)
    await database.close()
    if how != "no such database":
        await administer(dsn, f"DROP ROLE {name}")


COMPOSITE = "CREATE TYPE pair AS (a int, b int); CREATE TABLE t (n int, p pair); INSERT INTO t VALUES (0, '(1, 2)')"
COUNT = "UPDATE t SET n = n + $1::int RETURNING n, p"


async def _fetchmany_claim(database: Database, sql: str, rows: list[tuple[int]]) -> object:
    return await database.fetchmany_claim(sql, rows, lambda _: ())


async def _fetchrow_claim(database: Database, sql: str, value: int) -> object:
    return await database.fetchrow_claim(sql, value, claims=lambda _: ())


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (Database.fetchrow_write, 1),
        (Database.fetch_write, 1),
        (_fetchrow_claim, 1),
        (Database.fetchmany_write, [(1,)]),
        (_fetchmany_claim, [(1,)]),
    ],
)
async def test_a_write_whose_answer_cannot_be_read_is_sent_once(dsn: str, write: Any, values: Any) -> None:
    """P3: a session knows a composite type from before. The write is committed, so its outcome counts as unknown."""
    database = opened(dsn)
    await database.run(lambda transaction: transaction.execute(COMPOSITE))
    await write(database, COUNT, values)
    await administer(dsn, "ALTER TYPE pair ADD ATTRIBUTE c int")
    with pytest.raises(OutcomeUnknown):
        await write(database, COUNT, values)
    row = await database.fetchrow("SELECT n FROM t")
    assert row is not None
    assert row["n"] == 2
    # Another session learns the type anew.
    await write(database, COUNT, values)
    await database.close()


async def test_a_transaction_whose_answer_cannot_be_read_is_undone(dsn: str) -> None:
    database = opened(dsn)
    await database.run(lambda transaction: transaction.execute(COMPOSITE))

    async def work(transaction: Transaction) -> None:
        await transaction.fetchrow(COUNT, 1)

    await database.run(work)
    await administer(dsn, "ALTER TYPE pair ADD ATTRIBUTE c int")
    with pytest.raises(Unavailable):
        await database.run(work)
    row = await database.fetchrow("SELECT n FROM t")
    assert row is not None
    assert row["n"] == 1
    await database.close()


@pytest.mark.parametrize("write", [Database.fetchrow_write, Database.fetch_write])
async def test_a_write_whose_columns_have_changed_takes_effect_once(dsn: str, write: Any) -> None:
    """The server refuses the former statement before it runs it. The driver prepares it anew, and sends it again."""
    database = opened(dsn)
    await database.run(lambda transaction: transaction.execute(COMPOSITE))
    await write(database, "UPDATE t SET n = n + $1::int RETURNING *", 1)
    await administer(dsn, "ALTER TABLE t ADD COLUMN q int")
    await write(database, "UPDATE t SET n = n + $1::int RETURNING *", 1)
    row = await database.fetchrow("SELECT n FROM t")
    assert row is not None
    assert row["n"] == 2
    await database.close()
