"""A session beside the gateway may write the rows of resources that it holds, and no others, also in races."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from gateway.db.database import Database
from gateway.guard import installation as guard
from tests import ROOT
from tests.guard.stage import Session, Stage, declare_and_write, hold, hold_and_write, refused, session
from tests.tiers import first
from tests.waiting import waiting

SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"


async def states(stage: Stage) -> dict[int, str]:
    return dict(await stage.rows("SELECT id, state FROM shipments"))


async def test_who_holds_the_resource_writes_its_rows(guarded: Stage, app: Session) -> None:
    async with app.transaction():
        assert await hold(app, "order/5", 34, "ann") == "raised"
        assert await hold(app, "order/5", 34, "ann") == "held"
        assert await app.execute(SENT) == "UPDATE 2"
        await app.execute("INSERT INTO shipments VALUES (9, 5)")
        await app.execute("DELETE FROM shipments WHERE id = 1")
    assert await states(guarded) == {2: "sent", 3: "new", 4: "new", 9: "new"}
    (fence,) = await guarded.rows("SELECT resource, value, holder, caller FROM fencing.fence")
    assert fence == ("order/5", 34, "ann", f"role:{guarded.app_role}")


async def test_who_holds_nothing_writes_nothing(guarded: Stage, app: Session) -> None:
    for statement in (
        SENT,
        "INSERT INTO shipments VALUES (9, 5)",
        "DELETE FROM shipments WHERE id = 1",
        "INSERT INTO shipments VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET state = 'again'",
        "WITH held AS (SELECT 1) UPDATE shipments SET state = 'x' FROM held WHERE id = 3",
    ):
        async with refused("FN428", "holds no fencing token") as error:
            await app.execute(statement)
        assert "fencing.hold" in error.hint
        facts = json.loads(error.detail)
        assert (facts["code"], facts["target"]) == ("token-required", "public.shipments")
    assert await states(guarded) == dict.fromkeys((1, 2, 3, 4), "new")


async def test_a_held_token_ends_with_its_transaction(guarded: Stage, app: Session) -> None:
    await hold(app, "order/5", 34)
    async with refused("FN428"):
        await app.execute(SENT)
    undone = app.transaction()
    await undone.start()
    await hold(app, "order/5", 35)
    await undone.rollback()
    async with refused("FN428"):
        await app.execute(SENT)


async def test_several_resources_in_one_transaction(guarded: Stage, app: Session) -> None:
    async with app.transaction():
        await hold(app, "order/5", 34)
        await hold(app, "order/6", "2.12")
        await app.execute("UPDATE shipments SET order_id = 6 WHERE id = 1")
        await app.execute("UPDATE shipments SET state = 'sent' WHERE order_id IN (5, 6)")
    assert await states(guarded) == {1: "sent", 2: "sent", 3: "sent", 4: "new"}


async def test_a_row_without_a_name_belongs_to_nobody(guarded: Stage, app: Session) -> None:
    async with refused("FN422", "do not make up a resource name"):
        await hold_and_write(app, "UPDATE shipments SET order_id = NULL WHERE id = 1", ("order/5", 34))
    async with refused("FN428", "do not make up a resource name"):
        await app.execute("INSERT INTO shipments VALUES (9, NULL)")


async def test_an_overtaken_token_is_refused_for_good(guarded: Stage, app: Session) -> None:
    async with app.transaction():
        await hold(app, "order/5", 35, "bob")
    async with refused("FN412", "has been overtaken by 35, raised by bob") as error:
        await hold(app, "order/5", 34)
    assert "retrying cannot succeed" in error.hint
    facts = json.loads(error.detail)
    assert {name: facts[name] for name in ("code", "resource", "token", "fence", "raised_by")} == {
        "code": "token-stale", "resource": "order/5", "token": "34", "fence": "35", "raised_by": "bob",
    }  # fmt: skip
    async with refused("FN412", "Another holder, bob"):
        await hold(app, "order/5", 35, "ann")


async def test_each_driver_shows_a_refusal_as_the_guide_says(guarded: Stage, app: Session) -> None:
    await hold(app, "order/5", 35, "bob")
    statement = "SELECT fencing.hold('order/5', '34')"
    guide = (ROOT / "docs/guides/sql-writers.md").read_text()
    seen: dict[str, Any] = {}
    with pytest.raises(psycopg.OperationalError) as by_psycopg, psycopg.connect(guarded.app) as connection:
        connection.execute(statement)
    seen["psycopg"] = (by_psycopg.value, by_psycopg.value.sqlstate, by_psycopg.value.diag.message_detail)
    with pytest.raises(asyncpg.PostgresError) as by_asyncpg:
        await app.execute(statement)
    seen["asyncpg"] = (by_asyncpg.value, by_asyncpg.value.sqlstate, by_asyncpg.value.detail)
    for driver in ("psycopg", "asyncpg"):
        engine = create_async_engine(guarded.app.replace("postgresql", f"postgresql+{driver}", 1))
        with pytest.raises(sqlalchemy.exc.DBAPIError) as by_sqlalchemy:
            async with engine.begin() as work:
                await work.execute(sqlalchemy.text(statement))
        await engine.dispose()
        cause: Any = by_sqlalchemy.value.orig
        detail = cause.diag.message_detail if driver == "psycopg" else cause.__cause__.detail
        seen[f"SQLAlchemy with {driver}"] = (by_sqlalchemy.value, cause.sqlstate, detail)
    for driver, (error, sqlstate, detail) in seen.items():
        assert (sqlstate, json.loads(detail)["raised_by"]) == ("FN412", "bob")
        (named,) = re.findall(rf"\| {driver} \| `([\w.]+)`", guide)
        module, _, name = named.rpartition(".")
        assert isinstance(error, getattr(import_module(module), name))


async def test_a_refused_claim_raises_nothing(guarded: Stage, app: Session) -> None:
    await guarded.execute("""
        INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value)
        VALUES ('order/5', 'b', 'k', gen_random_uuid(), 1, 0, 33)
    """)
    async with refused("FN503", "An object write of an older holder is pending on order/5") as error:
        await hold(app, "order/5", 34)
    assert "POST /v1/fences/order/5/barrier" in error.hint
    assert await guarded.rows("SELECT FROM fencing.fence") == []
    await guarded.execute("INSERT INTO fencing.fence (resource, epoch, value) VALUES ('order/5', 0, 34)")
    async with refused("FN503"):
        await declare_and_write(app, SENT, "order/5", 34)


async def test_what_cannot_be_read_is_refused(guarded: Stage, app: Session, subtests: pytest.Subtests) -> None:
    for asked in (
        ("order/%41", "1", None), ("", "1", None), (None, "1", None), ("a b", "1", None), ("a" * 513, "1", None),
        ("a", "01", None), ("a", "", None), ("a", None, None), ("a", "9223372036854775808", None),
        ("a", "2147483648.1", None), ("a", "1", ""), ("a", "1", " x"), ("a", "1", "ä"), ("a", "1", "x" * 201),
    ):  # fmt: skip
        with subtests.test(asked=asked):
            async with refused("FN400"):
                await app.fetchval("SELECT fencing.hold($1, $2, $3)", *asked)
    assert await guarded.rows("SELECT FROM fencing.fence") == []


async def test_settings_are_believed_only_as_far_as_the_fence_says_so(
    guarded: Stage, app: Session, subtests: pytest.Subtests
) -> None:
    """Any session may set them. The holder of 34 is ann, and no holder has ever claimed order/6."""
    await hold(app, "order/5", 34, "ann")
    cases: list[tuple[dict[str, str], str | None]] = [
        ({"resource": "order/5", "token": "34"}, None),
        ({"resource": "order/5", "token": "34", "holder": "ann"}, None),
        ({"held": '{"order/5": {"token": "34"}}'}, None),
        ({"resource": "order/5", "token": "999999"}, "FN428"),
        ({"resource": "order/5", "token": "33"}, "FN412"),
        ({"resource": "order/5", "token": "34", "holder": "bob"}, "FN412"),
        ({"resource": "order/5", "token": "all"}, "FN400"),
        ({"resource": "order/5", "token": "-34"}, "FN400"),
        ({"resource": "order/5", "token": "34 "}, "FN400"),
        ({"resource": "order/5", "token": "9223372036854775808"}, "FN400"),
        ({"resource": "order/5", "token": ""}, "FN428"),
        ({"resource": "", "token": "34"}, "FN428"),
        ({"resource": "order/%", "token": "34"}, "FN428"),
        ({"resource": "order/6", "token": "34"}, "FN428"),
        ({"token": "34"}, "FN428"),
        ({"resource": "order/5"}, "FN428"),
        ({"resource": "order/9", "token": "1"}, "FN428"),
        ({"held": '{"order/5": {"token": "35"}}'}, "FN428"),
        ({"held": '{"order/5": "34"}'}, "FN400"),
        ({"held": '["order/5"]'}, "22023"),
        ({"held": "yes"}, "22P02"),
        ({"held": "{}"}, "FN428"),
    ]
    for settings, sqlstate in cases:
        with subtests.test(**settings):
            transaction = app.transaction()
            await transaction.start()
            for name, value in settings.items():
                await app.execute(f"SET LOCAL fencing.{name} = '{value}'")
            if sqlstate is None:
                assert await app.execute(SENT) == "UPDATE 2"
            else:
                async with refused(sqlstate):
                    await app.execute(SENT)
            await transaction.rollback()


async def test_a_held_token_outdoes_one_that_is_set(guarded: Stage, app: Session) -> None:
    await app.execute("SET fencing.resource = 'order/5'; SET fencing.token = '1'")
    assert await hold_and_write(app, SENT, ("order/5", 34)) == "UPDATE 2"


async def test_truncate_needs_the_name_of_the_whole_table(guarded: Stage, app: Session) -> None:
    await guarded.install("settings")
    async with refused("FN422", "touches every row"):
        await hold_and_write(app, "TRUNCATE shipments", ("order/5", 34))
    async with refused("FN428"):
        await app.execute("TRUNCATE settings")
    await hold_and_write(app, "TRUNCATE settings", ("settings", 1))
    assert await guarded.rows("SELECT FROM settings") == []


async def test_a_strict_resource_takes_one_transaction_a_token(guarded: Stage, app: Session) -> None:
    await guarded.install("once")
    write = "UPDATE once SET v = v + 1"
    async with app.transaction():
        await hold(app, "public.once/1", 1)
        await app.execute(write)
        await app.execute(write)
    async with refused("FN412", "has already written"):
        await hold_and_write(app, write, ("public.once/1", 1))
    async with refused("FN412", "has already written"):
        await app.fetchval("SELECT fencing.hold('public.once/1', '1', strict => true)")
    await guarded.execute("UPDATE fencing.fence SET value = 2, write_id = NULL")  # as a barrier leaves it
    async with refused("FN428", "had not been claimed"):
        await hold_and_write(app, write, ("public.once/1", 2))
    async with app.transaction():
        await app.fetchval("SELECT fencing.hold('public.once/1', '2', strict => true)")
        await app.execute(write)
    assert await guarded.rows("SELECT v FROM once") == [(4,)]


async def test_taking_on_the_role_of_the_gateway_does_not_help(guarded: Stage, app: Session) -> None:
    await guarded.execute(f"GRANT {guarded.gateway_role} TO {guarded.app_role}")
    await app.execute(f"SET ROLE {guarded.gateway_role}")
    async with refused("FN428") as error:
        await app.execute(SENT)
    assert json.loads(error.detail)["caller"] == f"role:{guarded.gateway_role}"


async def test_superusers_are_checked_as_well(guarded: Stage) -> None:
    async with refused("FN428"):
        await guarded.execute(SENT)


async def test_who_claims_needs_no_right_on_the_fences(guarded: Stage, app: Session) -> None:
    async with app.transaction():
        await hold(app, "order/5", 34)
    await app.execute("SET fencing.resource = 'order/5'; SET fencing.token = '34'")
    for statement in (
        "SELECT FROM fencing.fence",
        "UPDATE fencing.fence SET value = 0",
        "DELETE FROM fencing.fence",
        "SELECT FROM fencing.rejection",
        "SELECT fencing.claim_v1('order/5', 0, 99, NULL, 'x', false, NULL)",
        "SELECT fencing.guard_v1('order/5', 'x', 'x', true, false)",
        "SELECT fencing.guard_judge_v1('order/5', false)",
        "SELECT fencing.guard_lock_v1('order/5')",
        "SELECT fencing.guard_note_v1('x', 'order/5', '1', NULL, NULL, 'x', 'x')",
    ):
        async with refused("42501"):
            await app.execute(statement)


async def test_without_the_grant_nothing_can_be_claimed(stage: Stage, app: Session) -> None:
    await stage.install("shipments", grants=False)
    async with refused("42501", "schema fencing"):
        await hold(app, "order/5", 34)
    await stage.execute(f"GRANT USAGE ON SCHEMA fencing TO {stage.app_role}")
    async with refused("42501", "function hold"):
        await hold(app, "order/5", 34)
    async with refused("FN428", "holds no fencing token"):
        await app.execute(SENT)


async def test_a_refusal_is_in_the_log_of_the_server_even_where_the_session_catches_it(
    guarded: Stage, app: Session
) -> None:
    logged: list[str] = []
    app.add_log_listener(lambda _, message: logged.append(str(message)))
    await app.execute("SET client_min_messages = log")
    await app.execute(f"""
        DO $do$ BEGIN {SENT}; EXCEPTION WHEN SQLSTATE 'FN428' THEN NULL; END $do$
    """)
    assert len([line for line in logged if "fencing: refused" in line and "token-required" in line]) == 1
    assert await guarded.rows("SELECT FROM fencing.rejection") == []


async def test_names_are_those_of_the_gateway_whatever_the_session_is_set_to(
    stage: Stage, app: Session, database: Database
) -> None:
    """Dates, times and padded texts stand in names as the gateway's own sessions write them."""
    await stage.execute(f"""
        CREATE TYPE mood AS ENUM ('good', 'so so');
        CREATE DOMAIN code AS character(4);
        CREATE TABLE odd (day date, at timestamptz, code code, mood mood, yes boolean, n numeric(6, 2), x text,
            PRIMARY KEY (day, at, code, mood, yes, n, x));
        INSERT INTO odd VALUES ('2024-01-02', '2024-01-02 03:04:05+00', 'ab', 'so so', true, 1.5, 'a/b=');
        GRANT ALL ON odd TO {stage.app_role};
    """)
    await stage.install("odd")
    name = "public.odd/2024-01-02/2024-01-02%2003:04:05+00/ab/so%20so/true/1.50/a%2Fb%3D"
    await app.execute("SET datestyle = 'German'; SET timezone = 'Asia/Tokyo'; SET extra_float_digits = -15")
    async with refused("FN428", name):
        await app.execute("UPDATE odd SET x = 'other'")
    async with app.transaction():
        await hold(app, name, 1)
        await hold(app, name.replace("a%2Fb%3D", "other"), 1)
        assert await app.execute("UPDATE odd SET x = 'other'") == "UPDATE 1"


async def test_the_functions_of_the_guard_run_nobody_elses_code(stage: Stage, app: Session) -> None:
    """They run with their owner's rights: a cast that the owner of a type has made must not be called by them."""
    await stage.execute(f"""
        CREATE TYPE mood AS ENUM ('good');
        CREATE FUNCTION spy(mood) RETURNS text LANGUAGE sql AS $$ SELECT current_user::text $$;
        CREATE CAST (mood AS text) WITH FUNCTION spy(mood) AS IMPLICIT;
        CREATE TABLE moods (mood mood PRIMARY KEY);
        GRANT ALL ON moods TO {stage.app_role};
    """)
    await stage.install("moods")
    async with refused("FN428", "public.moods/good"):
        await app.execute("INSERT INTO moods VALUES ('good')")


async def test_a_column_that_has_changed_its_type_does_not_open_the_guard(guarded: Stage, app: Session) -> None:
    await guarded.execute("ALTER TABLE shipments ALTER order_id TYPE text USING 'n' || order_id")
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await app.execute("UPDATE shipments SET state = 'x' WHERE id = 1")


@pytest.mark.parametrize("observe", [False, True], ids=["enforced", "observed"])
async def test_no_token_passes_before_the_database_is_open(stage: Stage, app: Session, *, observe: bool) -> None:
    """It was put back, and shows a token that was overtaken. A session needs no claim of its own to hold that one."""
    await stage.install("shipments", observe=observe)
    await hold(app, "order/5", 34)
    await stage.execute("UPDATE fencing.opening SET started = started - interval '1 day'")
    if observe:
        assert await declare_and_write(app, SENT, "order/5", 34) == "UPDATE 2"
    else:
        async with refused("FN503", "not opened") as error:
            await declare_and_write(app, SENT, "order/5", 34)
        assert json.loads(error.detail) == {"code": "database-closed"}
        assert await states(stage) == dict.fromkeys((1, 2, 3, 4), "new")
    await stage.execute("UPDATE fencing.opening SET started = (fencing.run_v1()).started")
    assert await declare_and_write(app, SENT, "order/5", 34) == "UPDATE 2"


# A guard that only observes: everything passes, and what would be refused is on record with the write.


ON_RECORD = "SELECT resource, reason, value, method, target, fence_value FROM fencing.rejection ORDER BY at"


@pytest.fixture
async def watched(stage: Stage) -> Stage:
    await stage.install("shipments", observe=True)
    await stage.install("settings", observe=True)
    return stage


async def test_each_objection_is_noted_once_a_transaction(watched: Stage, app: Session) -> None:
    async with app.transaction():
        assert await app.execute("UPDATE shipments SET state = 'x'") == "UPDATE 4"
        await app.execute("DELETE FROM shipments WHERE order_id = 5")
    await app.execute("UPDATE shipments SET order_id = NULL WHERE order_id = 7")
    assert await watched.rows(ON_RECORD) == [
        ("order/5", "token-required", None, "UPDATE", "public.shipments", None),
        ("order/6", "token-required", None, "UPDATE", "public.shipments", None),
        ("order/7", "token-required", None, "UPDATE", "public.shipments", None),
        ("order/7", "token-required", None, "UPDATE", "public.shipments", None),
        ("public.shipments", "token-required", None, "UPDATE", "public.shipments", None),
    ]
    noted = await watched.rows(
        "SELECT DISTINCT enforced, caller, request_id LIKE 'transaction/%' FROM fencing.rejection"
    )
    assert noted == [(False, f"role:{watched.app_role}", True)]
    # Of a transaction, the first note has it: the copy of a long statement for each of its rows would cost too much.
    told = await watched.rows(
        "SELECT request_id, details ->> 'statement' FROM fencing.record WHERE details ->> 'statement' IS NOT NULL"
    )
    assert [statement for _, statement in told] == ["UPDATE shipments SET"] * 2
    assert len({transaction for transaction, _ in told}) == 2


async def test_what_passes_is_noted_with_the_fence_it_would_have_met(watched: Stage, app: Session) -> None:
    """A write under the token of its rows is not noted. A claim is refused all the same, because its caller asks."""
    await hold_and_write(app, "UPDATE shipments SET state = 'x' WHERE order_id = 5", ("order/5", 35))
    assert await watched.rows(ON_RECORD) == []
    async with refused("FN412"):
        await hold(app, "order/5", 34)
    both = "UPDATE shipments SET state = 'x' WHERE order_id IN (5, 6)"
    assert await declare_and_write(app, both, "order/5", 34) == "UPDATE 3"
    assert await watched.rows(ON_RECORD) == [
        ("order/5", "token-stale", 34, "UPDATE", "public.shipments", 35),
        ("order/6", "resource-mismatch", None, "UPDATE", "public.shipments", None),
    ]


async def test_truncate(watched: Stage, app: Session) -> None:
    await app.execute("TRUNCATE shipments, settings")
    assert sorted(await watched.rows(ON_RECORD)) == [
        ("public.shipments", "resource-underivable", None, "TRUNCATE", "public.shipments", None),
        ("settings", "token-required", None, "TRUNCATE", "public.settings", None),
    ]


async def test_a_name_of_any_length_is_noted(stage: Stage, app: Session) -> None:
    await stage.execute(f"CREATE TABLE long (name text); GRANT ALL ON long TO {stage.app_role}")
    rule = {"name": "public.long", "resource": "long/{name}"}
    await guard.install(stage.config(tables=[rule]).default, guard.GuardRequest("long", observe=True, dsn=stage.owner))
    await app.execute("INSERT INTO long SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) AS n")
    assert await stage.rows("SELECT length(resource) FROM fencing.rejection") == [(512,)]


async def test_the_guard_of_a_rule_that_observes_observes_too(stage: Stage, app: Session) -> None:
    rule = {"name": "public.settings", "resource": "settings", "mode": "observe"}
    await guard.install(stage.config(tables=[rule]).default, guard.GuardRequest("settings", dsn=stage.owner))
    assert await app.execute("UPDATE settings SET value = 'x'") == "UPDATE 1"
    assert await stage.rows("SELECT resource, enforced FROM fencing.rejection") == [("settings", False)]


async def test_installing_it_again_enforces(watched: Stage, app: Session) -> None:
    await watched.install("shipments")
    async with refused("FN428"):
        await app.execute("UPDATE shipments SET state = 'x'")
    async with session(watched.app) as another, another.transaction():
        await another.execute("UPDATE settings SET value = 'x'")


# Two sessions at a time: a newer holder sees all that the one before has written, and nothing of it comes later.


SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"


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

    async with asyncio.TaskGroup() as tasks:
        statement = tasks.create_task(declare_and_write(app, SENT, "order/5", 34))
        await waiting(owner)
        async with owner.transaction():
            await hold(owner, "order/5", 33)
            await owner.execute("SET LOCAL session_replication_role = replica")
            await owner.execute("INSERT INTO shipments VALUES (9, 5)")
        await hold(other, "order/5", 34)
        await owner.execute("SELECT pg_advisory_unlock(1)")
        return await statement


async def test_the_guard_refuses_a_statement_that_began_before_its_token_was_claimed(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await overtaken_between_snapshot_and_check(guarded, owner, app, other)
    (error,) = caught.value.exceptions
    assert isinstance(error, asyncpg.PostgresError)
    assert (error.sqlstate, "had not been claimed when this statement began" in str(error)) == ("FN428", True)
    assert await hold_and_write(app, SENT, ("order/5", 34)) == "UPDATE 3"


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
    async with refused("FN412"):
        await declare_and_write(app, SENT, "order/5", 34)


async def test_a_raise_under_way_decides_about_who_comes_meanwhile(
    guarded: Stage, owner: Session, app: Session, other: Session
) -> None:
    """Its statement saw its own token; the row it locks in the end is another version."""
    await hold(app, "order/5", 34)
    newer = other.transaction()
    await newer.start()
    await hold(other, "order/5", 35, "bob")

    async def write() -> None:
        async with refused("FN412", "overtaken by 35, raised by bob"):
            await declare_and_write(app, SENT, "order/5", 34)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write())
        await waiting(owner)
        await newer.commit()


@pytest.mark.parametrize("isolation", first(["repeatable_read", "serializable"]))
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
