"""Two sessions at a time: a newer holder sees all that the one before has written, and nothing of it comes later."""

import asyncio
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.guard.stage import Session, Stage, hold, refused, session
from tests.waiting import waiting

SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"
HELD = "SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '34'"

# Triggers as one might write them at first.
NAIVE = {
    "claims": "decision := (fencing.claim_v1('order/5', 0, 34, NULL, 'naive', false, NULL)).decision;",
    "compares": "SELECT CASE value WHEN 34 THEN 'held' END INTO decision FROM fencing.fence FOR SHARE;",
}
NAIVE_TRIGGER = """
CREATE FUNCTION naive() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE decision text;
BEGIN
    {check}
    IF decision IS NULL OR decision NOT IN ('raised', 'held') THEN
        RAISE EXCEPTION 'refused';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER naive BEFORE UPDATE ON shipments FOR EACH STATEMENT EXECUTE FUNCTION naive();
"""

# Something that keeps a statement waiting between its snapshot and the checks: triggers fire in the order of names.
WAITING_TRIGGER = """
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END';
CREATE TRIGGER a_waits BEFORE UPDATE ON shipments FOR EACH STATEMENT EXECUTE FUNCTION waits();
"""


@pytest.fixture
async def owner(stage: Stage) -> AsyncIterator[Session]:
    async with session(stage.owner) as opened:
        yield opened


async def overtaken_between_snapshot_and_check(stage: Stage, owner: Session, app: Session, other: Session) -> str:
    """The statement of the new holder begins, the old one's last row is committed, the token raised: then the check.

    Returns what the statement has done, or raises what has refused it.
    """
    await stage.execute(WAITING_TRIGGER)
    async with other.transaction():
        await hold(other, "order/5", 33)
    await owner.execute("SELECT pg_advisory_lock(1)")

    async def write() -> str:
        async with app.transaction():
            await app.execute(HELD)
            return str(await app.execute(SENT))

    async with asyncio.TaskGroup() as tasks:
        statement = tasks.create_task(write())
        await waiting(owner)
        async with owner.transaction():
            await hold(owner, "order/5", 33)
            await owner.execute("SET LOCAL session_replication_role = replica")
            await owner.execute("INSERT INTO shipments VALUES (9, 5)")
        await hold(other, "order/5", 34)
        await owner.execute("SELECT pg_advisory_unlock(1)")
        return await statement


@pytest.mark.parametrize("check", NAIVE.values(), ids=NAIVE)
async def test_a_trigger_that_looks_at_the_newest_fence_loses_rows(
    stage: Stage, owner: Session, app: Session, other: Session, check: str
) -> None:
    """Show why the guard is not written this way: three rows exist, the UPDATE changes two, and no error reports it."""
    await stage.execute(NAIVE_TRIGGER.format(check=check))
    await stage.execute(f"GRANT USAGE ON SCHEMA fencing TO {stage.app_role}; "
                        f"GRANT EXECUTE ON FUNCTION fencing.hold TO {stage.app_role}")  # fmt: skip
    assert await overtaken_between_snapshot_and_check(stage, owner, app, other) == "UPDATE 2"
    assert await stage.rows("SELECT id, state FROM shipments WHERE order_id = 5 ORDER BY 1") == [
        (1, "sent"), (2, "sent"), (9, "new"),
    ]  # fmt: skip


async def test_the_guard_refuses_a_statement_that_began_before_its_token_was_claimed(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await overtaken_between_snapshot_and_check(guarded, owner, app, other)
    (error,) = caught.value.exceptions
    assert isinstance(error, asyncpg.PostgresError)
    assert (error.sqlstate, "had not been claimed when this statement began" in str(error)) == ("FN428", True)
    async with app.transaction():
        await hold(app, "order/5", 34)
        assert await app.execute(SENT) == "UPDATE 3"


async def test_it_would_let_it_through_if_its_functions_were_volatile(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    """All that stands between the guard and the lost row is whose snapshot they look at the fence with."""
    for (name,) in await guarded.rows("""
        SELECT oid::regprocedure::text FROM pg_proc
        WHERE pronamespace = 'fencing'::regnamespace AND starts_with(proname, 'guard') AND provolatile = 's'
    """):
        await guarded.execute(f"ALTER FUNCTION {name} VOLATILE")
    assert await overtaken_between_snapshot_and_check(guarded, owner, app, other) == "UPDATE 2"


async def test_who_holds_first_sees_what_the_holder_before_has_just_committed(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    old = other.transaction()
    await old.start()
    await hold(other, "order/5", 33)
    await other.execute("INSERT INTO shipments VALUES (9, 5)")
    async with asyncio.TaskGroup() as tasks, app.transaction():
        held = tasks.create_task(hold(app, "order/5", 34))
        await waiting(owner)
        await old.commit()
        assert await held == "raised"
        assert await app.execute(SENT) == "UPDATE 3"


async def test_a_statement_that_claims_the_token_it_writes_with_is_refused(guarded: Stage, app: Session) -> None:
    for statement in (
        "WITH h AS (SELECT fencing.hold('order/5', '34') AS d) UPDATE shipments SET state = h.d FROM h WHERE id = 1",
        "UPDATE shipments SET state = fencing.hold('order/5', '34') WHERE order_id = 5",
        "INSERT INTO shipments SELECT 9, 5 WHERE fencing.hold('order/5', '34') = 'raised'",
    ):
        async with refused("FN428", "had not been claimed when this statement began"):
            await app.execute(statement)
    assert await guarded.rows("SELECT FROM shipments WHERE state <> 'new' OR id = 9") == []


async def test_a_function_may_hold_and_write_in_two_statements(guarded: Stage, app: Session) -> None:
    await guarded.execute(f"""
        CREATE FUNCTION send() RETURNS bigint LANGUAGE plpgsql AS $$
        DECLARE n bigint;
        BEGIN
            PERFORM fencing.hold('order/5', '34');
            {SENT};
            GET DIAGNOSTICS n = ROW_COUNT;
            RETURN n;
        END $$
    """)
    assert await app.fetchval("SELECT send()") == 2


async def test_a_newer_holder_waits_for_the_transaction_that_holds(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    old = app.transaction()
    await old.start()
    await hold(app, "order/5", 34)
    async with asyncio.TaskGroup() as tasks:
        newer = tasks.create_task(hold(other, "order/5", 35))
        await waiting(owner)
        assert await app.execute(SENT) == "UPDATE 2"
        assert not newer.done()
        await old.commit()
    assert newer.result() == "raised"
    async with refused("FN412"), app.transaction():
        await app.execute(HELD)
        await app.execute(SENT)


async def test_a_raise_under_way_decides_about_who_comes_meanwhile(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    """Its statement saw its own token; the row it locks in the end is another version."""
    await hold(app, "order/5", 34)
    newer = other.transaction()
    await newer.start()
    await hold(other, "order/5", 35, "bob")

    async def write() -> None:
        async with refused("FN412", "overtaken by 35, raised by bob"), app.transaction():
            await app.execute(HELD)
            await app.execute(SENT)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await waiting(owner)
        await newer.commit()


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_snapshot_that_lasts_needs_a_token_that_is_claimed_already(
    guarded: Stage, app: Session, other: Session, isolation: str
) -> None:
    async with refused("FN409", "cannot be claimed in a"), app.transaction(isolation=isolation):  # type: ignore[arg-type]
        await hold(app, "order/5", 34)
    await hold(app, "order/5", 34)
    async with app.transaction(isolation=isolation):  # type: ignore[arg-type]
        assert await hold(app, "order/5", 34) == "held"
        assert await app.execute(SENT) == "UPDATE 2"
    late = app.transaction(isolation=isolation)  # type: ignore[arg-type]
    await late.start()
    await app.fetchval("SELECT count(*) FROM shipments")
    await hold(other, "order/5", 35)
    async with refused("40001"):
        await hold(app, "order/5", 34)
    await late.rollback()
    async with refused("FN412"), app.transaction(isolation=isolation):  # type: ignore[arg-type]
        await hold(app, "order/5", 34)


async def test_applied_tokens_never_go_backwards(guarded: Stage, app: Session) -> None:
    """Direct writers with all sorts of tokens at once; every version of the row is on record, in its order."""
    await guarded.execute(f"""
        CREATE TABLE applied (place bigint GENERATED ALWAYS AS IDENTITY, token bigint);
        GRANT ALL ON applied TO {guarded.app_role};
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO applied (token) VALUES (NEW.state::bigint); RETURN NEW; END';
        CREATE TRIGGER notes AFTER UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION note();
    """)
    tokens = [token for token in range(1, 31) for _ in range(3)]
    random.Random(7).shuffle(tokens)
    acknowledged: list[int] = []

    async def write(opened: Session, token: int) -> None:
        highest = max(acknowledged, default=0)
        try:
            async with opened.transaction():
                await hold(opened, "order/7", token)
                await opened.execute("UPDATE shipments SET state = $1 WHERE id = 4", str(token))
        except asyncpg.PostgresError as error:
            if error.sqlstate != "FN412":
                raise
        else:
            assert token >= highest
            acknowledged.append(token)

    async def writer() -> None:
        async with session(guarded.app) as opened:
            while tokens:
                await write(opened, tokens.pop())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(6):
            tasks.create_task(writer())
    applied = [token for (token,) in await guarded.rows("SELECT token FROM applied ORDER BY place")]
    assert applied == sorted(applied)
    assert len(applied) == len(acknowledged)
    assert applied[-1] == 30
