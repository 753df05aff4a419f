"""A guard that only observes: everything passes, and what would be refused is on record with the write."""

import pytest

from gateway.guard import installation as guard
from tests.guard.stage import Session, Stage, hold, refused, session

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


async def test_who_holds_its_rows_is_not_noted(watched: Stage, app: Session) -> None:
    async with app.transaction():
        await hold(app, "order/5", 34)
        await app.execute("UPDATE shipments SET state = 'x' WHERE order_id = 5")
    assert await watched.rows(ON_RECORD) == []


async def test_what_passes_is_noted_with_the_fence_it_would_have_met(watched: Stage, app: Session) -> None:
    await hold(app, "order/5", 35)
    async with app.transaction():
        await app.execute("SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '34'")
        assert await app.execute("UPDATE shipments SET state = 'x' WHERE order_id IN (5, 6)") == "UPDATE 3"
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
    await guard.install(stage.config(tables=[rule]), guard.GuardRequest("long", observe=True, dsn=stage.owner))
    await app.execute("INSERT INTO long SELECT string_agg(md5(n::text), '') FROM generate_series(1, 200) AS n")
    assert await stage.rows("SELECT length(resource) FROM fencing.rejection") == [(512,)]


async def test_a_claim_is_refused_all_the_same(watched: Stage, app: Session) -> None:
    """A caller of ``fencing.hold`` asks whether it holds the resource, and gets an answer."""
    await hold(app, "order/5", 35)
    async with refused("FN412"):
        await hold(app, "order/5", 34)


async def test_the_guard_of_a_rule_that_observes_observes_too(stage: Stage, app: Session) -> None:
    rule = {"name": "public.settings", "resource": "settings", "mode": "observe"}
    await guard.install(stage.config(tables=[rule]), guard.GuardRequest("settings", dsn=stage.owner))
    assert await app.execute("UPDATE settings SET value = 'x'") == "UPDATE 1"
    assert await stage.rows("SELECT resource, enforced FROM fencing.rejection") == [("settings", False)]


async def test_installing_it_again_enforces(watched: Stage, app: Session) -> None:
    await watched.install("shipments")
    async with refused("FN428"):
        await app.execute("UPDATE shipments SET state = 'x'")
    async with session(watched.app) as another, another.transaction():
        await another.execute("UPDATE settings SET value = 'x'")
