"""The door to PostgreSQL: what its troubles become, and how sessions are pinned, bounded and handed out."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import asyncpg
import pytest

from gateway import serving
from gateway.db import settings
from gateway.db.database import SHARED_SESSIONS, Database, Transaction
from gateway.db.pool import Session, SessionPool, refuses_sessions
from gateway.errors import ConfigurationError, OutcomeUnknown, SqlError, Unavailable
from tests.doctor.test_doctor import execute
from tests.patience import LIMITS
from tests.waiting import PATIENCE

Open: TypeAlias = Callable[..., Database]


@pytest.fixture
async def opened(dsn: str) -> AsyncIterator[Open]:
    """Open databases, this one if no other is named, which are closed at the end."""
    made: list[Database] = []

    def open_one(address: str = dsn, **settings: Any) -> Database:
        made.append(Database(address, **LIMITS | settings))
        return made[-1]

    yield open_one
    for one in made:
        await one.close()


@pytest.fixture
def name(dsn: str) -> str:
    """The name of the database, which may name a role as well."""
    return dsn.partition("?")[0].rpartition("/")[2]


async def value(database: Database, query: str, *arguments: object) -> Any:
    row = await database.fetchrow(query, *arguments)
    assert row is not None
    return row["value"]


@pytest.mark.parametrize(
    ("default", "pinned"), [("off", "on"), ("local", "on"), ("on", "on"), ("remote_apply", "remote_apply")]
)
async def test_commits_are_durable_whatever_the_default_is(
    dsn: str, name: str, opened: Open, default: str, pinned: str
) -> None:
    await execute(dsn, f"ALTER DATABASE {name} SET synchronous_commit = {default}")
    assert await value(opened(), "SELECT current_setting('synchronous_commit') AS value") == pinned


async def test_sessions_write_values_in_one_form(dsn: str, name: str, opened: Open) -> None:
    await execute(dsn, f"ALTER DATABASE {name} SET TimeZone = 'Asia/Tokyo'")
    database = opened()
    for setting, pinned in {"TimeZone": "UTC", "DateStyle": "ISO, YMD", "bytea_output": "hex"}.items():
        assert await value(database, "SELECT current_setting($1) AS value", setting) == pinned


async def test_a_server_that_is_not_there_is_unavailable(opened: Open) -> None:
    database = opened("postgresql://gateway@127.0.0.1:1/app", connect_timeout=1)
    for asked in (database.fetch, database.fetchrow_write):
        with pytest.raises(Unavailable):
            await asked("SELECT 1")


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


async def test_a_cancelled_transaction_does_not_leak_into_the_next(opened: Open, dsn: str) -> None:
    """P3: a session that came back inside a transaction would answer success for what is never committed."""
    database = opened(pool_size=1)
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


async def test_a_lock_that_is_held_too_long_is_unavailable(opened: Open, dsn: str) -> None:
    database = opened(lock_timeout=0.2)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t AS SELECT 1 AS v"))
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("UPDATE t SET v = 2")
        with pytest.raises(Unavailable, match="still under way"):
            await database.fetchrow_write("UPDATE t SET v = 3")
    await holder.close()


RAISED = "DO $$ BEGIN RAISE EXCEPTION 'ringing' USING ERRCODE = '{}'; END $$"

SERVERS_OWN = [
    *("08006", "25006", "25P03", "40001", "40P01", "53100", "53200", "53300", "55P03", "57014", "57P01", "57P03"),
    "72000",
]


@pytest.mark.thorough
@pytest.mark.parametrize("sqlstate", SERVERS_OWN)
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


async def test_a_standby_takes_no_writes_at_the_moment(opened: Open, name: str, dsn: str) -> None:
    database = opened()
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))
    await execute(dsn, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = opened()
    with pytest.raises(Unavailable, match="read-only"):
        await database.fetchrow_write("INSERT INTO t VALUES (1)")


async def test_a_write_in_a_transaction_that_only_reads_is_the_statements_own_fault(database: Database) -> None:
    async def work(transaction: Transaction) -> None:
        await settings.make_read_only(transaction)
        await transaction.execute("CREATE TABLE t (v int)")

    with pytest.raises(SqlError) as caught:
        await database.run(work)
    assert caught.value.sqlstate == "25006"


async def test_a_session_whose_transaction_could_not_begin_is_not_used_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = opened(pool_size=1)
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


async def test_a_rollback_that_fails_does_not_hide_why_there_is_one(database: Database, dsn: str) -> None:
    await database.run(lambda transaction: transaction.execute("CREATE TABLE t (v int)"))

    async def work(transaction: Transaction) -> None:
        await transaction.execute("INSERT INTO t VALUES (1)")
        row = await transaction.fetchrow("SELECT pg_backend_pid() AS pid")
        assert row is not None
        await execute(dsn, f"SELECT pg_terminate_backend({row['pid']}, 30000)")
        raise LookupError

    with pytest.raises(LookupError):
        await database.run(work)
    assert await database.fetch("SELECT * FROM t") == []


async def test_a_server_with_too_many_sessions_says_so(opened: Open, name: str, dsn: str) -> None:
    """A session may be free a moment later, so a gateway that starts waits for one."""
    await execute(dsn, f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    await execute(dsn, f"CREATE ROLE {name} LOGIN")
    database = opened(dsn.replace("://postgres", f"://{name}"))
    for asked in (database.fetch, database.fetchrow_write, database.search):
        with pytest.raises(Unavailable, match="refuses the gateway a session: too many connections") as caught:
            await asked("SELECT 1")
        assert not refuses_sessions(caught.value)
    await execute(dsn, f"DROP ROLE {name}")


@pytest.mark.parametrize("how", ["no such database", "no right to connect"])
async def test_a_server_that_grants_no_session_is_unavailable(opened: Open, name: str, dsn: str, how: str) -> None:
    """This also holds for a running gateway, when an operator has changed a password or dropped the database."""
    if how == "no such database":
        address = dsn.replace(name, "nowhere")
    else:
        await execute(dsn, f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
        await execute(dsn, f"CREATE ROLE {name} LOGIN")
        address = dsn.replace("://postgres", f"://{name}")
    database = opened(address)
    for asked in (database.fetch, database.fetchrow_write, database.search):
        with pytest.raises(Unavailable, match="refuses the gateway a session") as caught:
            await asked("SELECT 1")
        assert refuses_sessions(caught.value)
    with pytest.raises(ConfigurationError, match="refuses the gateway a session"):
        await serving.revision(address)
    if how != "no such database":
        await execute(dsn, f"DROP ROLE {name}")


COMPOSITE = "CREATE TYPE pair AS (a int, b int); CREATE TABLE t (n int, p pair); INSERT INTO t VALUES (0, '(1, 2)')"
COUNT = "UPDATE t SET n = n + $1::int RETURNING n, p"


async def _fetchmany_claim(database: Database, sql: str, rows: list[tuple[int]]) -> object:
    return await database.fetchmany_claim(sql, rows, lambda _: ())


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (Database.fetchrow_write, 1),
        (Database.fetch_write, 1),
        (Database.fetchmany_write, [(1,)]),
        (_fetchmany_claim, [(1,)]),
    ],
)
async def test_a_write_whose_answer_cannot_be_read_is_sent_once(
    opened: Open, dsn: str, write: Any, values: Any
) -> None:
    """P3: a session knows a composite type from before. The write is committed, so its outcome counts as unknown."""
    database = opened()
    await database.run(lambda transaction: transaction.execute(COMPOSITE))
    await write(database, COUNT, values)
    await execute(dsn, "ALTER TYPE pair ADD ATTRIBUTE c int")
    with pytest.raises(OutcomeUnknown):
        await write(database, COUNT, values)
    assert await value(database, "SELECT n AS value FROM t") == 2
    # Another session learns the type anew.
    await write(database, COUNT, values)


async def test_a_transaction_whose_answer_cannot_be_read_is_undone(opened: Open, dsn: str) -> None:
    database = opened()
    await database.run(lambda transaction: transaction.execute(COMPOSITE))

    async def work(transaction: Transaction) -> None:
        await transaction.fetchrow(COUNT, 1)

    await database.run(work)
    await execute(dsn, "ALTER TYPE pair ADD ATTRIBUTE c int")
    with pytest.raises(Unavailable):
        await database.run(work)
    assert await value(database, "SELECT n AS value FROM t") == 1


@pytest.mark.parametrize("write", [Database.fetchrow_write, Database.fetch_write])
async def test_a_write_whose_columns_have_changed_takes_effect_once(opened: Open, dsn: str, write: Any) -> None:
    """The server refuses the former statement before it runs it. The driver prepares it anew, and sends it again."""
    database = opened()
    await database.run(lambda transaction: transaction.execute(COMPOSITE))
    await write(database, "UPDATE t SET n = n + $1::int RETURNING *", 1)
    await execute(dsn, "ALTER TABLE t ADD COLUMN q int")
    await write(database, "UPDATE t SET n = n + $1::int RETURNING *", 1)
    assert await value(database, "SELECT n AS value FROM t") == 2


# Sessions -----------------------------------------------------------------------------------------------------------

Make = Callable[..., SessionPool]


@pytest.fixture
async def make(dsn: str) -> AsyncIterator[Make]:
    made: list[SessionPool] = []

    async def connect() -> Session:
        session: Session = await asyncpg.connect(dsn)
        return session

    def sessions(limit: int, timeout: float = PATIENCE) -> SessionPool:
        made.append(SessionPool(connect, limit, timeout))
        return made[-1]

    yield sessions
    for one in made:
        await one.close()
    await asyncio.sleep(0)


async def test_a_session_is_reused_unless_it_is_inside_a_transaction(make: Make) -> None:
    sessions = make(1)
    first = await sessions.take()
    sessions.give(first)
    assert await sessions.take() is first
    await first.execute("BEGIN")
    sessions.give(first)
    second = await sessions.take()
    assert second is not first
    assert not second.is_in_transaction()
    sessions.give(second)


async def test_a_failed_connect_makes_room_again() -> None:
    attempts = 0

    async def connect() -> Session:
        nonlocal attempts
        attempts += 1
        raise OSError

    sessions = SessionPool(connect, 1, 0.1)
    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011 - nothing more is known of it
            await sessions.take()
    assert attempts == 3


@pytest.mark.thorough
async def test_a_full_house_is_unavailable(dsn: str) -> None:
    taken, over = asyncio.Event(), asyncio.Event()

    async def work(_: Transaction) -> None:
        taken.set()
        await over.wait()

    async with Database(dsn, pool_size=1, connect_timeout=5, idle_timeout=PATIENCE) as database:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(database.run(work))
            await taken.wait()
            with pytest.raises(Unavailable):
                await database.fetch("SELECT 1")
            over.set()
        assert await database.fetchrow("SELECT 1") is not None


async def test_a_database_answers_while_any_of_its_sessions_gets_an_answer(opened: Open) -> None:
    """The sessions for probes may be in use, too. Then only an answer to another statement shows it."""
    database = opened(connect_timeout=1.0)
    pauses = [[0.4]] * 10
    trips = [asyncio.ensure_future(database.fetchmany("SELECT pg_sleep($1)", pauses)) for _ in range(SHARED_SESSIONS)]
    async with asyncio.timeout(PATIENCE):
        while database.use()["shared"].in_use < SHARED_SESSIONS:
            await asyncio.sleep(0.01)
    asked = asyncio.gather(*(database.check_answers() for _ in range(100)), return_exceptions=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert database.use()["shared"].waiting == 1, "all who ask share a question"
    assert {str(one) for one in await asked} == {"The database has answered no statement for seconds."}
    again = asyncio.ensure_future(database.check_answers())
    await asyncio.sleep(0)
    await database.now()
    await again
    await asyncio.gather(*trips)


async def test_sessions_whose_server_is_gone_are_closed_like_others(make: Make) -> None:
    """The socket of one is broken, but the event loop has not noticed yet. The other one still works."""
    sessions = make(2)
    held = [await sessions.take(), await sessions.take()]
    for session in held:
        sessions.give(session)
    held[0]._transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # type: ignore[attr-defined]
    await sessions.close()
    assert all(session.is_closed() for session in held)
