"""Refusals of guards are on record, and so is what was written while a guard that watches was switched off."""

import asyncio
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from gateway.db import guards
from gateway.db.database import Database
from gateway.db.guards import GuardFinding
from gateway.demo import embedded
from gateway.demo.embedded import postgres
from gateway.errors import ConfigurationError, Unavailable
from gateway.fencing.record import Rejection
from gateway.fencing.token import Token
from gateway.guard import installation as guard
from gateway.guard.script import grants
from tests.guard.stage import Session, Stage, declare_and_write, hold, hold_and_write, logging_in_as, refused, session
from tests.postgres import install
from tests.tiers import first

TABLE = "public.shipments"


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Database]:
    database = Database(dsn)
    try:
        yield database
    finally:
        await database.close()


async def looked(dsn: str) -> tuple[list[Rejection], int]:
    """Return the refusals that gateways put on record, and of how many only the number is known."""
    refusals: list[Rejection] = []
    counted = 0
    async with opened(dsn) as database:
        while True:
            found, more = await guards.record_refusals(database, None)
            if not found and not more:
                return refusals, counted
            refusals += found
            counted += sum(each.count for each in more)


def told(refusals: list[Rejection]) -> Counter[tuple[str, str | None, str]]:
    """Count the refusals by reason, table and resource."""
    return Counter((one.reason, one.attempt.rule, one.resource) for one in refusals)


async def counts(stage: Stage) -> int:
    """Return how many refusals the record knows by their number alone."""
    ((counted,),) = await stage.rows(
        "SELECT coalesce(sum((details ->> 'count')::bigint), 0) FROM fencing.record WHERE kind = 'guard-refused'"
    )
    return int(counted)


async def refuse(app: Session, times: int = 1) -> None:
    for _ in range(times):
        async with refused("FN428"):
            await app.execute("UPDATE shipments SET state = 'x'")


async def overtaken(stage: Stage, *resources: str) -> None:
    """Let bob take resources over with token 35."""
    async with session(stage.app) as successor:
        for resource in resources:
            await hold(successor, resource, 35, "bob")


DECLARED = "SET fencing.resource = 'order/5'; SET fencing.token = '34'; SET fencing.holder = 'ann';"
WRITE = "UPDATE shipments SET state = 'late' WHERE order_id = 5"


def by_psql(dsn: str, *statements: str) -> str:
    """Run statements in a session of psql that ends at once; its errors."""
    arguments = [argument for one in statements for argument in ("--command", one)]
    address = f"{dsn}{'&' if '?' in dsn else '?'}application_name=nightly"
    done = subprocess.run(
        [embedded.psql(), "--no-psqlrc", "--set=VERBOSITY=verbose", *arguments, address],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


def by_psycopg(dsn: str, *, savepoint: bool = False) -> None:
    with psycopg.connect(dsn, application_name="nightly") as connection:
        connection.execute(DECLARED)
        with pytest.raises(psycopg.Error, match="overtaken"), connection.transaction():
            connection.execute(WRITE)
        if savepoint:
            assert connection.execute("SELECT 1").fetchone() == (1,), "the transaction goes on"
        connection.rollback()


def in_autocommit(dsn: str) -> None:
    assert "FN412" in by_psql(dsn, DECLARED, WRITE)


def in_a_transaction(dsn: str) -> None:
    assert "FN412" in by_psql(dsn, DECLARED, "BEGIN", WRITE, "ROLLBACK")


def in_a_savepoint(dsn: str) -> None:
    by_psycopg(dsn, savepoint=True)


WAYS = [in_autocommit, in_a_transaction, by_psycopg, in_a_savepoint]


@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_is_on_record_after_its_session_is_gone(guarded: Stage, way: Callable[[str], None]) -> None:
    await overtaken(guarded, "order/5")
    begun = datetime.now(UTC)
    await asyncio.to_thread(way, guarded.app)
    (refusal,), counted = await looked(guarded.owner)
    assert counted == 0
    assert (refusal.resource, refusal.reason, refusal.enforced) == ("order/5", "token-stale", True)
    assert begun <= refusal.at <= datetime.now(UTC)
    attempt, fence = refusal.attempt, refusal.fence
    assert (attempt.token, attempt.holder, attempt.rule) == (Token(0, 34), "ann", TABLE)
    assert (attempt.caller, attempt.client) == (f"role:{guarded.app_role}", await address_of(guarded))
    assert fence is not None
    ((raised_at,),) = await guarded.rows("SELECT raised_at FROM fencing.fence WHERE resource = 'order/5'")
    assert (fence.token, fence.holder, fence.raised_at) == (Token(0, 35), "bob", raised_at)
    ((kind, at, details),) = await guarded.rows(
        f"SELECT kind, at, details::text FROM fencing.record WHERE id = '{refusal.id}'"
    )
    assert (kind, at) == ("rejection", refusal.at)
    assert json.loads(details) == {"by": "guard", "program": "nightly", "statement": "UPDATE shipments SET"}


WORDS = {
    "UPDATE orders SET state = 'secret' WHERE id = 5": "UPDATE orders SET",
    "  \n/* secret */ -- secret /* secret\n\tDELETE\n FROM  public.orders WHERE true": "DELETE FROM public.orders",
    "SELECT secret_function('secret')": "SELECT secret_function",
    'UPDATE "Orders"."of_2" SET state = $1': 'UPDATE "Orders"."of_2" SET',
    "BEGIN; UPDATE orders SET state = 'secret'": "BEGIN",
    "DO $secret$ BEGIN DELETE FROM orders; END $secret$": "DO",
    "SELECT x$secret$": "SELECT",
    "SELECT E'secret'": "SELECT",
    "SELECT U&'secret', U&\"secret\"": "SELECT",
    "SELECT 'secret'::text": "SELECT",
    "SELECT date 'secret'": "SELECT date",
    "SELECT interval'secret'": "SELECT",
    "SELECT state::text FROM orders": "SELECT state",
    'UPDATE "it\'s secret" SET state = 1': "UPDATE",
    "UPDATE gr\u00f6\u00dfe SET state = 'secret'": "UPDATE",
    "EXECUTE late('secret', 5)": "EXECUTE late",
    "VALUES (5, 'secret')": "VALUES",
    "SELECT 5 AS secret": "SELECT",
    "WITH/* secret */x AS (SELECT 1) SELECT": None,
    "/* of /* a */ secret */ UPDATE orders": None,
    "/* secret": None,
    "-- secret": None,
    "'secret'": None,
    "": None,
    # A line's comment ends with its line, though it looks as if another kind of comment began in it.
    "-- a /*\nUPDATE orders SET state = '*/ secret'": "UPDATE orders SET",
    "/**/ /***/ UPDATE orders SET": "UPDATE orders SET",
    f"UPDATE {'x' * 200} SET": f"UPDATE {'x' * 93}",
    f"/*{' secret' * 1000}*/ UPDATE orders": None,
    f"UPDATE orders SET state = '{'secret' * 100_000}'": "UPDATE orders SET",
}


async def test_of_a_statement_only_its_first_words_are_told(guarded: Stage) -> None:
    """Values and comments stay off the record, whatever the statement looks like."""
    async with session(guarded.owner) as owner:
        found = {statement: await owner.fetchval("SELECT fencing.first_words_v1($1)", statement) for statement in WORDS}
    assert found == WORDS


async def test_neither_values_nor_parameters_of_a_refused_statement_get_on_record(guarded: Stage, app: Session) -> None:
    for statement, parameters in (
        ("UPDATE shipments SET state = 'hunter2' /* hunter2 */", ()),
        ("/* hunter2 */ UPDATE shipments SET state = $1", ("hunter2",)),
        ("DO $$ BEGIN UPDATE shipments SET state = 'hunter2'; END $$", ()),
        ("SELECT 'hunter2'; UPDATE shipments SET state = 'hunter2'", ()),
    ):
        async with refused("FN428"):
            await app.execute(statement, *parameters)
    assert len((await looked(guarded.owner))[0]) == 4
    told_words = await guarded.rows("SELECT details ->> 'statement' FROM fencing.record WHERE kind = 'rejection'")
    assert Counter(told_words) == {("UPDATE shipments SET",): 2, ("DO",): 1, ("SELECT",): 1}
    entries = await guarded.rows("SELECT r::text FROM fencing.record r")
    assert not [entry for entry in entries if "hunter2" in entry[0]]


async def test_an_entry_from_before_is_read_without_a_statement(guarded: Stage, app: Session) -> None:
    """The logs may still have entries of eleven facts when the schema is new."""
    ((body,),) = await guarded.rows("SELECT pg_get_functiondef('fencing.keep_refusal_v1'::regproc)")
    twelfth = ",\n        fencing.first_words_v1(current_query())"
    assert twelfth in body
    await guarded.execute(body.replace(twelfth, ""))
    await refuse(app)
    await guarded.execute(body)
    await refuse(app)
    assert told((await looked(guarded.owner))[0]) == {("token-required", TABLE, "order/5"): 2}
    statements = await guarded.rows(
        "SELECT details ->> 'statement' FROM fencing.record WHERE kind = 'rejection' ORDER BY at"
    )
    assert statements == [(None,), ("UPDATE shipments SET",)]


async def address_of(stage: Stage) -> str | None:
    ((address,),) = await stage.rows("SELECT host(inet_client_addr())")
    return None if address is None else str(address)


async def test_reasons_tables_and_resources_are_told_apart(guarded: Stage, app: Session, other: Session) -> None:
    await guarded.install("settings")
    await hold(app, "order/5", 35)
    async with refused("FN412"):
        await hold(app, "order/5", 34)
    async with refused("FN428"):
        await app.execute("DELETE FROM settings")
    await refuse(app)
    await refuse(other)
    async with refused("FN412"):
        await declare_and_write(other, "UPDATE shipments SET state = 'x'", "order/5", 34)
    found, counted = await looked(guarded.owner)
    assert counted == 0
    assert told(found) == {
        ("token-stale", None, "order/5"): 1,  # by fencing.hold, which knows of no table
        ("token-required", "public.settings", "settings"): 1,
        ("token-required", TABLE, "order/5"): 2,
        ("token-stale", TABLE, "order/5"): 1,
    }


async def test_a_refusal_that_is_caught_counts(guarded: Stage, app: Session) -> None:
    """A session that catches the refusal and goes on has still made the attempt."""
    await app.execute("DO $$ BEGIN UPDATE shipments SET state = 'x'; EXCEPTION WHEN SQLSTATE 'FN428' THEN NULL; END $$")
    assert told((await looked(guarded.owner))[0]) == {("token-required", TABLE, "order/5"): 1}


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_snapshot_from_before_the_last_look(guarded: Stage, app: Session, isolation: Any) -> None:
    await refuse(app)
    async with refused("FN428"), app.transaction(isolation=isolation):
        await app.fetch("SELECT FROM shipments")
        assert len((await looked(guarded.owner))[0]) == 1
        await app.execute("UPDATE shipments SET state = 'x'")
    assert len((await looked(guarded.owner))[0]) == 1


async def test_of_a_storm_each_is_on_record_up_to_a_number(guarded: Stage, app: Session) -> None:
    """One zombie that tries again and again takes no more room."""
    await refuse(app, 1003)
    found, counted = await looked(guarded.owner)
    assert (len(found), counted) == (1000, 3)
    assert await counts(guarded) == 3
    times = [one.at for one in found]
    assert times == sorted(times)
    between = await guarded.rows("SELECT count(*) FROM fencing.record WHERE kind = 'rejection' AND details ? 'since'")
    assert between == [(999,)], "all but the first have no time of their own"
    await refuse(app)
    (later,), _ = await looked(guarded.owner)
    assert later.at > times[-1]


async def test_two_hundred_zombies_at_once(guarded: Stage) -> None:
    """Of each, the record has the particulars, or counts it: none is lost."""
    resources = [f"order/{number}" for number in range(200)]
    await overtaken(guarded, *resources)
    async with AsyncExitStack() as stack:
        zombies = [await stack.enter_async_context(session(guarded.app)) for _ in resources]

        async def write(zombie: Session, resource: str) -> None:
            async with refused("FN412"):
                await hold(zombie, resource, 34, "ann")

        await asyncio.gather(*map(write, zombies, resources))
        found, counted = await looked(guarded.owner)
        assert len(found) + counted == 200
        assert len({one.resource for one in found}) == len(found) >= 80
        assert await counts(guarded) == counted
        # The room is free again, and those with the same particulars share it.
        await asyncio.gather(*(write(zombie, "order/7") for zombie in zombies))
    found, counted = await looked(guarded.owner)
    assert (told(found), counted) == ({("token-stale", None, "order/7"): 200}, 0)


async def test_none_is_lost_and_none_is_counted_twice(guarded: Stage) -> None:
    """Four writers are refused while others look, all the time."""
    over = asyncio.Event()
    found: list[Rejection] = []

    async def look() -> None:
        while not over.is_set():
            refusals, counted = await looked(guarded.owner)
            assert counted == 0
            found.extend(refusals)

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        writers = [await stack.enter_async_context(session(guarded.app)) for _ in range(4)]
        looking = [group.create_task(look()) for _ in range(4)]
        await asyncio.gather(*(refuse(writer, 40) for writer in writers))
        over.set()
        await asyncio.gather(*looking)
    found += (await looked(guarded.owner))[0]
    assert len(found) == len({one.id for one in found}) == 160
    assert await guarded.rows("SELECT count(*) FROM fencing.record WHERE kind = 'rejection'") == [(160,)]


async def test_a_look_that_is_undone_loses_nothing(guarded: Stage, app: Session) -> None:
    await refuse(app)
    async with session(guarded.owner) as looking:
        transaction = looking.transaction()
        await transaction.start()
        assert len(await looking.fetch("SELECT FROM fencing.record_refusals_v2(NULL)")) == 1
        await transaction.rollback()
    await refuse(app)
    assert len((await looked(guarded.owner))[0]) == 2


async def test_the_longest_names_have_room(guarded: Stage, app: Session) -> None:
    resource, holder = "r" * 512, "h" * 200
    await hold(app, resource, f"2147483647.{2**63 - 1}", holder)
    async with refused("FN412"):
        await hold(app, resource, f"2147483647.{2**63 - 2}", holder)
    ((refusal,), counted) = await looked(guarded.owner)
    assert counted == 0
    assert (refusal.resource, refusal.attempt.holder, refusal.attempt.token) == (
        resource,
        holder,
        Token(2147483647, 2**63 - 2),
    )
    assert refusal.fence is not None
    assert refusal.fence.holder == holder


async def test_a_gateway_of_the_release_before_puts_the_same_on_record(guarded: Stage, app: Session) -> None:
    await refuse(app, 2)
    rows = await guarded.rows("SELECT * FROM fencing.record_refusals_v1(NULL)")
    assert rows == [(TABLE, "token-required", 2)]
    assert await guarded.rows("SELECT count(*) FROM fencing.rejection") == [(2,)]


async def test_without_room_they_are_counted(stage: Stage) -> None:
    """No guard has made room. None is lost, though all come at once."""
    await stage.execute(grants(stage.app_role))
    await overtaken(stage, "order/5")
    async with AsyncExitStack() as stack:
        zombies = [await stack.enter_async_context(session(stage.app)) for _ in range(100)]

        async def write(zombie: Session) -> None:
            async with refused("FN412"):
                await hold(zombie, "order/5", 34)

        for _ in range(2):
            await asyncio.gather(*map(write, zombies))
            assert await looked(stage.owner) == ([], 100)
    assert await counts(stage) == 200


async def test_nobody_can_make_refusals_up(guarded: Stage, app: Session) -> None:
    """A role that may call ``fencing.hold`` may also call the function that words a refusal.

    That function runs with the caller's own rights, so such a call leaves no trace.
    """
    forged = "SELECT fencing.refuse_v1('token-stale', 'order/5', '1', NULL, NULL, 'public.shipments')"
    async with refused("FN412"):
        await app.execute(forged)
    for statement in ("SELECT nextval('fencing.refusal')", "SELECT setval('fencing.refusal_word_0000', 7)"):
        async with refused("42501"):
            await app.execute(statement)
    for function in (
        "record_refusals_v1(NULL)",
        "record_refusals_v2(NULL)",
        "keep_refusals_v1()",
        "look_at_guards_v1()",
        "stamp_v1(1, '{}', 1, 1, NULL)",
    ):
        async with refused("42501"):
            await app.execute(f"SELECT fencing.{function}")
    assert await looked(guarded.owner) == ([], 0)


async def test_in_a_transaction_that_only_reads(guarded: Stage, app: Session) -> None:
    """The refusal is the answer, not that nothing may be counted."""
    async with refused("FN400"), app.transaction(readonly=True):
        await hold(app, "order/5", "x")
    assert await looked(guarded.owner) == ([], 0)


@pytest.mark.thorough
async def test_a_crash_of_the_server_makes_none_up(tmp_path: Path) -> None:
    """PostgreSQL logs sequences ahead: after a crash they go on with numbers that were never used."""
    with postgres(tmp_path / "data") as server:
        await asyncio.to_thread(install, server.dsn())
        dsn = server.dsn()
        stage = Stage(dsn, logging_in_as("gateway", dsn), logging_in_as("app", dsn), "gateway", "app")
        await stage.execute("""
            CREATE ROLE gateway LOGIN; CREATE ROLE app LOGIN;
            CREATE TABLE shipments (id bigint PRIMARY KEY, order_id bigint);
            INSERT INTO shipments VALUES (1, 5);
            GRANT ALL ON shipments TO gateway, app;
        """)
        await stage.install("shipments")
        await attempt(stage)
        assert len((await looked(dsn))[0]) == 1
        await attempt(stage)
        await crash(dsn)
        await attempt(stage)
        # No session waited until the refusal before the crash was durable, but a later commit has made it so.
        assert (len((await looked(dsn))[0]), await counts(stage)) == (2, 0)
        assert await looked(dsn) == ([], 0)


async def attempt(stage: Stage) -> None:
    async with session(stage.app) as app, refused("FN428"):
        await app.execute("UPDATE shipments SET order_id = 6")


async def crash(dsn: str) -> None:
    """Have a process of the server die, which takes all others along, and wait until it is back."""
    victim, witness = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    # This commit flushes the write-ahead log, so that the values which PostgreSQL logged ahead survive the crash.
    # Without them the test would show nothing.
    await victim.execute("CREATE TABLE IF NOT EXISTS flushed ()")
    os.kill(victim.get_server_pid(), signal.SIGKILL)
    # The server admits sessions until it notices the death, and then ends them too. Once it ends the witness, it has
    # noticed the death, and admits no session until it has recovered.
    with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.CrashShutdownError)):
        await witness.execute("SELECT pg_sleep(60)")
    problem: Exception | None = None
    for _ in range(1200):
        try:
            opened = await asyncpg.connect(dsn)
        except (asyncpg.PostgresError, OSError) as error:
            problem = error
            await asyncio.sleep(0.05)
            continue
        await opened.close()
        victim.terminate()
        return
    raise AssertionError(f"the server did not come back: {problem}")


# A guard that watches finds what was written while it was switched off, and nothing else.


# The size of each step of a pass: small, so that one pass takes many steps.
BLOCKS, STAMPS = 1, 2


@pytest.fixture
async def watched(stage: Stage) -> Stage:
    """Shipments with a guard that watches, and stamps."""
    await stage.install("shipments", watch=True)
    assert await swept(stage) == []
    return stage


async def swept(stage: Stage, blocks: int = BLOCKS, stamps: int = STAMPS) -> list[GuardFinding]:
    """Return the findings that one pass over every watched table puts on record."""
    async with opened(stage.owner) as database:
        found = [*await guards.check_guards(database)]
        relations = await stage.rows("SELECT relation::text FROM fencing.watch")
        for (relation,) in relations:
            while True:
                try:
                    step = await guards.guard_watch_step(database, 0, blocks, stamps, relation)
                except Unavailable:
                    continue
                assert step is not None
                found += step.findings
                if step.passed:
                    break
    return found


async def on_record(stage: Stage) -> list[tuple[str, str | None, dict[str, Any]]]:
    rows = await stage.rows(
        "SELECT reason, resource, details::text FROM fencing.record WHERE kind = 'bypass' ORDER BY reason, resource"
    )
    return [(reason, resource, json.loads(details)) for reason, resource, details in rows]


async def behind_its_back(stage: Stage, sql: str) -> None:
    await stage.execute(f"SET session_replication_role = replica; {sql}")


@asynccontextmanager
async def holding(app: Session, *resources: str) -> AsyncIterator[None]:
    async with app.transaction():
        for resource in resources:
            await hold(app, resource, 34)
        yield


class TestFinds:
    @pytest.mark.parametrize(
        "switched_off",
        first(
            [
                "SET session_replication_role = replica",
                "ALTER TABLE shipments DISABLE TRIGGER ALL",
                "ALTER TABLE shipments DISABLE TRIGGER fencing_guard_row",
            ]
        ),
    )
    async def test_rows_that_were_changed_added_and_removed(self, watched: Stage, switched_off: str) -> None:
        await watched.execute(f"""
            INSERT INTO fencing.fence (resource, epoch, value, holder) VALUES ('order/5', 0, 34, 'ann');
            {switched_off};
            UPDATE shipments SET state = 'x' WHERE id IN (1, 2);
            DELETE FROM shipments WHERE id = 3;
            INSERT INTO shipments VALUES (9, 8, 'new');
            ALTER TABLE shipments ENABLE TRIGGER ALL;
        """)
        found = await swept(watched)
        assert sorted(found, key=str) == [
            GuardFinding("row-appeared", "order/8", TABLE, "sweep", 1),
            GuardFinding("row-changed", "order/5", TABLE, "sweep", 2),
            GuardFinding("row-vanished", "order/6", TABLE, "sweep", 1),
        ]
        assert await on_record(watched) == [
            ("row-appeared", "order/8", {"keys": [["9"]], "rows": 1, "found_by": "sweep"}),
            ("row-changed", "order/5", {"keys": [["1"], ["2"]], "rows": 2, "found_by": "sweep"}),
            ("row-vanished", "order/6", {"keys": [["3"]], "rows": 1, "found_by": "sweep"}),
        ]
        assert await watched.rows(
            "SELECT kind, plane, rule, target, fence_value, fence_holder FROM fencing.record WHERE resource = 'order/5'"
        ) == [("bypass", "tables", TABLE, TABLE, 34, "ann")]
        assert await swept(watched) == [], "each change is found once"
        assert await swept(watched) == []

    async def test_the_next_write_of_the_row_finds_it(self, watched: Stage, app: Session) -> None:
        """The write overwrites the foreign change. The gateway puts that change on record all the same, and at once."""
        await behind_its_back(
            watched, "UPDATE shipments SET state = 'x' WHERE id = 1; DELETE FROM shipments WHERE id = 2"
        )
        async with holding(app, "order/5"):
            await app.execute("UPDATE shipments SET state = 'y' WHERE id = 1")
            await app.execute("INSERT INTO shipments VALUES (2, 5, 'again')")
        async with opened(watched.owner) as database:
            step = await guards.guard_watch_step(database, 0, BLOCKS, STAMPS)
        assert step is not None
        assert step.findings == (GuardFinding("row-changed", "order/5", TABLE, "write", 2),)
        assert await swept(watched) == []

    async def test_the_next_write_deletes_it(self, watched: Stage, app: Session) -> None:
        await behind_its_back(watched, "UPDATE shipments SET state = 'x' WHERE id = 1")
        await hold_and_write(app, "DELETE FROM shipments WHERE id = 1", ("order/5", 34))
        assert await swept(watched) == [GuardFinding("row-vanished", "order/5", TABLE, "write", 1)]
        assert await swept(watched) == []
        assert await watched.rows("SELECT count(*) FROM fencing.stamp") == [(3,)]

    async def test_a_guard_that_is_switched_off_or_gone_is_found_once(self, watched: Stage) -> None:
        await watched.execute("ALTER TABLE shipments DISABLE TRIGGER fencing_guard_row")
        assert await swept(watched) == [GuardFinding("guard-disabled", None, TABLE, "sweep", 1)]
        assert await swept(watched) == []
        await watched.execute("DROP TRIGGER fencing_guard_statement ON shipments")
        assert await swept(watched) == [GuardFinding("guard-removed", None, TABLE, "sweep", 1)]
        assert (await on_record(watched))[1][2]["lacking"] == ["fencing_guard_statement on public.shipments: gone"]
        await watched.execute("ALTER TABLE shipments ENABLE TRIGGER fencing_guard_row")
        assert await swept(watched) == []
        await watched.execute("ALTER TABLE shipments DISABLE TRIGGER ALL")
        assert len(await swept(watched)) == 1

    async def test_a_guard_that_does_not_watch_is_looked_at_too(self, guarded: Stage) -> None:
        await guarded.execute(
            "DELETE FROM fencing.guarded; ALTER TABLE shipments DISABLE TRIGGER fencing_guard_truncate"
        )
        assert await swept(guarded) == [GuardFinding("guard-disabled", None, TABLE, "sweep", 1)]

    async def test_partitions(self, stage: Stage, app: Session) -> None:
        await stage.execute(f"""
            CREATE TABLE parts (note text, id bigint, region text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
            CREATE TABLE parts_a (region text NOT NULL, id bigint NOT NULL, note text);
            ALTER TABLE parts ATTACH PARTITION parts_a FOR VALUES IN ('a');
            CREATE TABLE parts_b PARTITION OF parts FOR VALUES IN ('b');
            INSERT INTO parts VALUES ('x', 1, 'a'), ('y', 2, 'b');
            GRANT ALL ON parts TO {stage.app_role};
        """)
        rule = [{"name": "public.parts", "resource": "part/{id}"}]
        await guard.install(
            stage.config(tables=rule).default,
            guard.GuardRequest("parts", dsn=stage.owner, watch=True, grants=(stage.app_role,)),
        )
        assert await swept(stage) == []
        moved = "UPDATE parts SET note = 'z'; UPDATE parts SET region = 'b' WHERE id = 1"
        await hold_and_write(app, moved, ("part/1", 34), ("part/2", 34))
        assert await swept(stage) == []
        await stage.execute("CREATE TABLE parts_c PARTITION OF parts FOR VALUES IN ('c')")
        await hold_and_write(app, "INSERT INTO parts VALUES ('w', 3, 'c')", ("part/3", 34))
        await behind_its_back(stage, "UPDATE parts_b SET note = 'v' WHERE id = 1")
        assert await swept(stage) == [
            GuardFinding(
                "guard-removed", None, "public.parts", "sweep", 1
            ),  # the new partition has no trigger for statements
            GuardFinding("row-changed", "part/1", "public.parts", "sweep", 1),
        ]
        await stage.execute("ALTER TABLE parts DETACH PARTITION parts_c; DROP TABLE parts_b")
        assert await swept(stage) == []
        assert await stage.rows("SELECT count(*) FROM fencing.stamp") == [(0,)]


class TestDoesNotFind:
    async def test_what_went_through_the_guard_or_the_gateway(self, watched: Stage, app: Session) -> None:
        async with holding(app, "order/5", "order/6", "order/7", "order/8"):
            await app.execute("UPDATE shipments SET state = 'x'")
            await app.execute("DELETE FROM shipments WHERE id = 1; INSERT INTO shipments VALUES (7, 8)")
            await app.execute("UPDATE shipments SET id = id + 100, order_id = 8 WHERE id = 2")
            await app.execute("INSERT INTO shipments VALUES (7, 8) ON CONFLICT (id) DO UPDATE SET state = 'twice'")
        async with session(watched.gateway) as gateway:
            await gateway.execute("UPDATE shipments SET state = 'y'; DELETE FROM shipments WHERE id = 4")
        assert await swept(watched) == []
        assert await watched.rows("SELECT count(*) FROM fencing.stamp WHERE NOT suspect") == [(3,)]

    async def test_a_table_that_was_emptied(self, watched: Stage) -> None:
        async with session(watched.gateway) as gateway:
            await gateway.execute("TRUNCATE shipments")
        assert await swept(watched) == []

    async def test_rows_that_a_trigger_writes_again(self, watched: Stage, app: Session) -> None:
        """The inner write's triggers fire before the outer one's: a stamp must not depend on their order."""
        await watched.execute("""
            CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                UPDATE shipments SET state = state || '!' WHERE id = NEW.id AND state NOT LIKE '%!!';
                RETURN NULL;
            END $$;
            CREATE TRIGGER a_first AFTER INSERT OR UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION again();
        """)
        async with holding(app, "order/5", "order/6"):
            await app.execute(
                "UPDATE shipments SET state = 'x' WHERE order_id = 5; INSERT INTO shipments VALUES (8, 6)"
            )
        assert await watched.rows("SELECT state FROM shipments WHERE id IN (1, 8)") == [("x!!",), ("new!!",)]
        assert await watched.rows("SELECT count(*) FROM fencing.stamp WHERE suspect") == [(3,)], "or it shows nothing"
        assert await swept(watched) == []
        assert await watched.rows("SELECT count(*) FROM fencing.stamp WHERE suspect") == [(0,)]

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "ddl",
        [
            "ALTER TABLE shipments ADD COLUMN a integer DEFAULT 7",
            "ALTER TABLE shipments DROP COLUMN note",
            "ALTER TABLE shipments ALTER COLUMN amount TYPE numeric(12, 4)",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "VACUUM FULL shipments",
            "VACUUM FREEZE shipments",
            "CLUSTER shipments USING shipments_pkey",
            "ALTER TABLE shipments RENAME TO renamed",
        ],
    )
    async def test_what_becomes_of_the_table_itself(self, stage: Stage, app: Session, ddl: str) -> None:
        await stage.execute("""
            CREATE TYPE mood AS ENUM ('sad', 'glad');
            ALTER TABLE shipments ADD COLUMN note text DEFAULT 'n', ADD COLUMN amount numeric(10, 2) DEFAULT 1.5,
                ADD COLUMN feels mood DEFAULT 'sad';
        """)
        await stage.install("shipments", watch=True)
        assert await swept(stage) == []
        await stage.execute(ddl)
        table = "renamed" if "RENAME TO" in ddl else "shipments"
        await hold_and_write(app, f"UPDATE {table} SET state = 'x' WHERE order_id = 6", ("order/6", 34))
        assert await swept(stage) == []
        await behind_its_back(stage, f"UPDATE {table} SET state = 'z' WHERE order_id = 7")
        assert await swept(stage) == [GuardFinding("row-changed", "order/7", TABLE, "sweep", 1)]

    @pytest.mark.thorough
    async def test_writers_at_work_while_stamps_are_taken_and_passes_are_made(self, stage: Stage) -> None:
        """Rows come, go and move about in the table, in transactions that take their time or are undone."""
        await stage.execute("INSERT INTO shipments SELECT n, 5 FROM generate_series(100, 400) AS n")
        await stage.install("shipments", watch=True)
        over = asyncio.Event()

        async def write(number: int) -> None:
            async with session(stage.gateway) as gateway:
                turn = 0
                while not over.is_set():
                    turn += 1
                    spread = f"id BETWEEN 100 AND 400 AND id % 4 = {number} AND id % 7 = {turn % 7}"
                    transaction = gateway.transaction()
                    await transaction.start()
                    await gateway.execute(f"UPDATE shipments SET state = repeat('x', {turn % 50}) WHERE {spread}")
                    await gateway.execute(f"DELETE FROM shipments WHERE {spread} AND id % 3 = 0")
                    await gateway.execute(
                        f"INSERT INTO shipments SELECT n, 5, '{turn}' FROM generate_series(100, 400) AS s (n) "
                        f"WHERE n % 4 = {number} AND n % 7 = {turn % 7} AND n % 3 = 0 ON CONFLICT (id) DO NOTHING"
                    )
                    await asyncio.sleep(0)
                    await (transaction.rollback if turn % 5 == 0 else transaction.commit)()

        async with asyncio.TaskGroup() as group:
            writing = [group.create_task(write(number)) for number in range(4)]
            found = []
            for turn in range(6):
                found += await swept(stage, BLOCKS, 50)
                if turn == 3:
                    await stage.execute("ALTER TABLE shipments ADD COLUMN a integer DEFAULT 7")
            over.set()
            await asyncio.gather(*writing)
        assert found == []
        assert await swept(stage) == []
        assert await stage.rows("SELECT FROM fencing.stamp WHERE suspect") == []
        assert await stage.rows("SELECT count(*) FROM fencing.stamp") == await stage.rows(
            "SELECT count(*) FROM shipments"
        )


class TestStamps:
    async def test_nothing_is_found_before_they_are_taken(self, stage: Stage) -> None:
        await stage.install("shipments", watch=True)
        await behind_its_back(stage, "UPDATE shipments SET state = 'x'")
        assert await swept(stage) == []

    async def test_they_are_taken_anew(self, watched: Stage) -> None:
        await behind_its_back(watched, "UPDATE shipments SET state = 'x'")
        assert await guard.take_stamps(watched.config().default, "shipments", watched.owner) == 1
        assert await swept(watched) == []
        with pytest.raises(ConfigurationError, match="not watched"):
            await guard.take_stamps(watched.config().default, "settings", watched.owner)

    async def test_installing_it_again_keeps_them(self, watched: Stage) -> None:
        await behind_its_back(watched, "UPDATE shipments SET state = 'x'")
        await watched.install("shipments", watch=True)
        assert sorted(await swept(watched), key=str) == [
            GuardFinding("row-changed", f"order/{order}", TABLE, "sweep", rows)
            for order, rows in ((5, 2), (6, 1), (7, 1))
        ]

    @pytest.mark.parametrize("again", first([True, False]))
    async def test_they_go_with_the_watch(self, watched: Stage, *, again: bool) -> None:
        await (
            watched.install("shipments")
            if again
            else guard.remove(watched.config().default, "shipments", watched.owner)
        )
        assert await watched.rows("SELECT FROM fencing.stamp") == await watched.rows("SELECT FROM fencing.watch") == []
        assert await watched.rows("SELECT FROM pg_proc WHERE proname LIKE 'named\\_%'") == []
        assert await watched.rows("SELECT FROM pg_trigger WHERE tgname = 'fencing_guard_truncated'") == []
        assert await swept(watched) == []

    async def test_a_table_without_a_key_of_built_in_types_cannot_be_watched(self, stage: Stage) -> None:
        await stage.execute(
            "CREATE TABLE loose (id bigint); CREATE TYPE t AS ENUM ('a'); CREATE TABLE odd (id t PRIMARY KEY)"
        )
        for table, words in (("loose", "no primary key"), ("odd", "types that are not")):
            rule = [{"name": f"public.{table}", "resource": table}]
            with pytest.raises(ConfigurationError, match=words):
                await guard.prepare(
                    stage.config(tables=rule).default, guard.GuardRequest(table, dsn=stage.owner, watch=True)
                )

    async def test_the_schema_may_be_somebody_elses_than_the_table(self, stage: Stage) -> None:
        """The comparison runs with the rights of the schema's owner, who is no superuser."""
        keeper = stage.gateway_role.replace("gateway", "keeper")
        await stage.execute(f"""
            CREATE ROLE {keeper} LOGIN; GRANT USAGE ON SCHEMA fencing TO {keeper};
            GRANT ALL ON ALL TABLES IN SCHEMA fencing TO {keeper};
            GRANT ALL ON ALL FUNCTIONS IN SCHEMA fencing TO {keeper};
            ALTER TABLE fencing.stamp OWNER TO {keeper};
            ALTER FUNCTION fencing.watch_step_v1 OWNER TO {keeper};
        """)
        try:
            await stage.install("shipments", watch=True)
            assert await swept(stage) == []
            await behind_its_back(stage, "INSERT INTO shipments VALUES (9, 9)")
            assert await swept(stage) == [GuardFinding("row-appeared", "order/9", TABLE, "sweep", 1)]
        finally:
            await stage.execute(
                f"REASSIGN OWNED BY {keeper} TO CURRENT_USER; DROP OWNED BY {keeper}; DROP ROLE {keeper}"
            )
