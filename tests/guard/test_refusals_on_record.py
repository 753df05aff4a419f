"""Refusals of guards are on record, though an error undoes all that its transaction has written."""

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gateway.db import guards
from gateway.db.database import Database
from gateway.db.guards import GuardRefusals
from gateway.demo.embedded import postgres
from tests.guard.stage import Session, Stage, hold, logging_in_as, refused, session
from tests.postgres import install

TABLE = "public.shipments"


async def looked(dsn: str) -> list[GuardRefusals]:
    """Return the refusals that one run of the recorder puts on record."""
    database = Database(dsn)
    try:
        return await guards.record_refusals(database, None)
    finally:
        await database.close()


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


async def test_what_is_on_record_is_not_recorded_again(guarded: Stage, app: Session) -> None:
    assert await looked(guarded.owner) == []
    await refuse(app)
    assert len(await looked(guarded.owner)) == 1
    assert await looked(guarded.owner) == []
    await refuse(app, 3)
    assert await looked(guarded.owner) == [GuardRefusals(TABLE, "token-required", 3)]


async def test_reasons_tables_and_sessions_are_told_apart(guarded: Stage, app: Session, other: Session) -> None:
    await guarded.install("settings")
    await hold(app, "order/5", 35)
    async with refused("FN412"):
        await hold(app, "order/5", 34)
    async with refused("FN428"):
        await app.execute("DELETE FROM settings")
    await refuse(app)
    await refuse(other)
    async with refused("FN412"), other.transaction():
        await other.execute("SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '34'")
        await other.execute("UPDATE shipments SET state = 'x'")
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


@pytest.mark.parametrize("lookers", [1, 4])
async def test_none_is_lost_and_none_is_counted_twice(guarded: Stage, lookers: int) -> None:
    """Four writers are refused while others look, all the time."""
    over = asyncio.Event()
    found: list[GuardRefusals] = []

    async def look() -> None:
        while not over.is_set():
            found.extend(await looked(guarded.owner))

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        writers = [await stack.enter_async_context(session(guarded.app)) for _ in range(4)]
        looking = [group.create_task(look()) for _ in range(lookers)]
        await asyncio.gather(*(refuse(writer, 60) for writer in writers))
        over.set()
        await asyncio.gather(*looking)
    for _ in range(2):
        found += await looked(guarded.owner)
    assert sum(each.count for each in found) == 240
    assert sum(details["count"] for *_, details in await entries(guarded)) == 240


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
    database = Database(guarded.owner)
    try:
        assert await guards.check_guards(database) == []
        await refuse(app)
        assert await guards.record_refusals(database, None) == [GuardRefusals(TABLE, "token-required", 1)]
    finally:
        await database.close()


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
