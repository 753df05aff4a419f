"""Refusals of guards are on record, and so is what was written while a guard that watches was switched off."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.db import guards
from gateway.db.database import Database
from gateway.db.guards import GuardFinding, GuardRefusals
from gateway.demo.embedded import postgres
from gateway.errors import ConfigurationError, Unavailable
from gateway.guard import installation as guard
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


async def looked(dsn: str) -> list[GuardRefusals]:
    """Return the refusals that one run of the recorder puts on record."""
    async with opened(dsn) as database:
        return await guards.record_refusals(database, None)


async def entries(stage: Stage) -> list[tuple[Any, ...]]:
    """Target, reason, caller and details of what is on record."""
    rows = await stage.rows(
        "SELECT target, reason, caller, details::text FROM fencing.record WHERE kind = 'guard-refused' ORDER BY at"
    )
    return [(*row[:3], json.loads(row[3])) for row in rows]


async def refuse(app: Session, times: int = 1) -> None:
    for _ in range(times):
        async with refused("FN428"):
            await app.execute("UPDATE shipments SET state = 'x'")


async def test_an_entry_says_who_where_and_why(guarded: Stage) -> None:
    app = await asyncpg.connect(guarded.app, server_settings={"application_name": "nightly"})
    try:
        await refuse(app, 2)
        assert await looked(guarded.owner) == [GuardRefusals(TABLE, "token-required", 2)]
        ((started,),) = await guarded.rows(
            f"SELECT backend_start FROM pg_stat_activity WHERE pid = {app.get_server_pid()}"
        )
    finally:
        await app.close()
    ((target, reason, caller, details),) = await entries(guarded)
    assert (target, reason, caller) == (TABLE, "token-required", f"role:{guarded.app_role}")
    assert (details["count"], details["by"]) == (2, "guard")
    told = details["session"]
    assert (told["application_name"], told["user"]) == ("nightly", guarded.app_role)
    assert told["started"].startswith(f"{started:%Y-%m-%dT%H:%M:%S}")


async def test_reasons_tables_and_sessions_are_told_apart(guarded: Stage, app: Session, other: Session) -> None:
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
    found = await looked(guarded.owner)
    assert sorted(found, key=str) == sorted(
        [
            GuardRefusals(None, "token-stale", 1),  # by fencing.hold, which knows of no table
            GuardRefusals("public.settings", "token-required", 1),
            GuardRefusals(TABLE, "token-required", 1),
            GuardRefusals(TABLE, "token-required", 1),
            GuardRefusals(TABLE, "token-stale", 1),
        ],
        key=str,
    )
    by_hold = [details for target, _, _, details in await entries(guarded) if target is None]
    assert [details["by"] for details in by_hold] == ["fencing.hold"]


async def test_a_refusal_that_is_caught_counts(guarded: Stage, app: Session) -> None:
    """A session that catches the refusal and goes on has still made the attempt."""
    await app.execute("DO $$ BEGIN UPDATE shipments SET state = 'x'; EXCEPTION WHEN SQLSTATE 'FN428' THEN NULL; END $$")
    assert await looked(guarded.owner) == [GuardRefusals(TABLE, "token-required", 1)]


async def test_of_very_many_at_once_the_number_is_known(guarded: Stage, app: Session) -> None:
    await refuse(app, 50)
    found = await looked(guarded.owner)
    assert sorted(found, key=lambda each: each.count) == [
        GuardRefusals(TABLE, "token-required", 16),
        GuardRefusals(None, None, 34),
    ]


async def test_none_is_lost_and_none_is_counted_twice(guarded: Stage) -> None:
    """Four writers are refused while others look, all the time."""
    over = asyncio.Event()
    found: list[GuardRefusals] = []

    async def look() -> None:
        while not over.is_set():
            found.extend(await looked(guarded.owner))

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        writers = [await stack.enter_async_context(session(guarded.app)) for _ in range(4)]
        looking = [group.create_task(look()) for _ in range(4)]
        await asyncio.gather(*(refuse(writer, 40) for writer in writers))
        over.set()
        await asyncio.gather(*looking)
    for _ in range(2):
        found += await looked(guarded.owner)
    assert sum(each.count for each in found) == 160
    assert sum(details["count"] for *_, details in await entries(guarded)) == 160


async def test_nobody_can_make_refusals_up(guarded: Stage, app: Session) -> None:
    """A role that may call ``fencing.hold`` may also call the function that words a refusal.

    That function runs with the caller's own rights, so such a call leaves no trace.
    """
    forged = "SELECT fencing.refuse_v1('token-stale', 'order/5', '1', NULL, NULL, 'public.shipments')"
    async with refused("FN412"):
        await app.execute(forged)
    for statement in ("SELECT nextval('fencing.refusal')", "SELECT setval('fencing.refusal_00', 7)"):
        async with refused("42501"):
            await app.execute(statement)
    for function in ("record_refusals_v1(NULL)", "look_at_guards_v1()", "stamp_v1(1, '{}', 1, 1, NULL)"):
        async with refused("42501"):
            await app.execute(f"SELECT fencing.{function}")
    assert await looked(guarded.owner) == []


async def test_in_a_transaction_that_only_reads(guarded: Stage, app: Session) -> None:
    """The refusal is the answer, not that nothing may be counted."""
    async with refused("FN400"), app.transaction(readonly=True):
        await hold(app, "order/5", "x")
    assert await looked(guarded.owner) == []


async def test_a_guard_of_an_earlier_revision_counts_too(guarded: Stage, app: Session) -> None:
    """Its functions call the counter by its old name, and no operator has registered the table."""
    await guarded.execute("DELETE FROM fencing.guarded")
    await refuse(app)
    assert await looked(guarded.owner) == [GuardRefusals(None, "token-required", 1)]
    async with opened(guarded.owner) as database:
        assert await guards.check_guards(database) == []
        await refuse(app)
        assert await guards.record_refusals(database, None) == [GuardRefusals(TABLE, "token-required", 1)]


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
        assert [each.count for each in await looked(dsn)] == [1]
        await attempt(stage)
        before = await stage.rows("SELECT last_value FROM fencing.refusal")
        await crash(dsn)
        after = await stage.rows("SELECT last_value FROM fencing.refusal")
        assert after > before, "or the test shows nothing"
        await attempt(stage)
        # No session waited until the refusal before the crash was durable: it may be lost with the write-ahead log.
        assert len(await looked(dsn)) <= 1, "what is missing is waited for"
        await stage.execute("UPDATE fencing.refusals_counted SET at = at - interval '3 seconds'")
        await looked(dsn)
        assert 1 <= sum(details["count"] for *_, details in (await entries(stage))[1:]) <= 2
        assert await looked(dsn) == []


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
            stage.config(tables=rule),
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
        assert await guard.take_stamps(watched.config(), "shipments", watched.owner) == 1
        assert await swept(watched) == []
        with pytest.raises(ConfigurationError, match="not watched"):
            await guard.take_stamps(watched.config(), "settings", watched.owner)

    async def test_installing_it_again_keeps_them(self, watched: Stage) -> None:
        await behind_its_back(watched, "UPDATE shipments SET state = 'x'")
        await watched.install("shipments", watch=True)
        assert sorted(await swept(watched), key=str) == [
            GuardFinding("row-changed", f"order/{order}", TABLE, "sweep", rows)
            for order, rows in ((5, 2), (6, 1), (7, 1))
        ]

    @pytest.mark.parametrize("again", first([True, False]))
    async def test_they_go_with_the_watch(self, watched: Stage, *, again: bool) -> None:
        await (watched.install("shipments") if again else guard.remove(watched.config(), "shipments", watched.owner))
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
                await guard.prepare(stage.config(tables=rule), guard.GuardRequest(table, dsn=stage.owner, watch=True))

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
