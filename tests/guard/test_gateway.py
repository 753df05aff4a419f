"""The gateway and writers beside it, on one guarded table: one fence for both, and the gateway is never weaker."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db import rights
from gateway.guard import installation
from gateway.observe.events import GuardRefused, StepReached, WriteRefused
from tests.guard.stage import RULES, Session, Stage, declare_and_write, hold, hold_and_write, refused, session
from tests.record.receiver import SECRET, receiving
from tests.running import API_KEY, Events, running
from tests.tiers import first
from tests.waiting import PATIENCE

SENT = "UPDATE shipments SET state = 'sent' WHERE order_id = 5"


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def gateway(guarded: Stage, events: Events) -> AsyncIterator[httpx.AsyncClient]:
    async with running(guarded.config(), events) as origin, calling(origin) as client:
        yield client


def calling(origin: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE)


async def patch(gateway: httpx.AsyncClient, token: int, state: str = "by the gateway") -> httpx.Response:
    target = "/v1/tables/shipments?order_id=eq.5"
    return await gateway.patch(target, headers={"fencing-token": str(token)}, json={"state": state})


async def test_each_side_is_fenced_by_the_other(guarded: Stage, gateway: httpx.AsyncClient, app: Session) -> None:
    assert (await patch(gateway, 34)).status_code == 204
    async with refused("FN412", "overtaken by 34, raised by writer"):
        await hold(app, "order/5", 33)
    assert await hold_and_write(app, SENT, ("order/5", 35)) == "UPDATE 2"
    late = await patch(gateway, 34)
    assert (late.status_code, late.json()["code"]) == (412, "token-stale")
    assert await guarded.rows("SELECT DISTINCT state FROM shipments WHERE order_id = 5") == [("sent",)]
    (record,) = await guarded.rows("SELECT fence_value, fence_caller FROM fencing.rejection")
    assert record == (35, f"role:{guarded.app_role}")


async def test_a_barrier_ends_the_writes_of_older_holders(
    guarded: Stage, gateway: httpx.AsyncClient, app: Session
) -> None:
    await hold(app, "order/5", 34)
    assert (await gateway.post("/v1/fences/order/5/barrier", json={"token": "35"})).status_code == 200
    async with refused("FN412"):
        await declare_and_write(app, SENT, "order/5", 34)
    assert await declare_and_write(app, SENT, "order/5", 35) == "UPDATE 2"


async def test_the_gateway_keeps_its_fast_path(gateway: httpx.AsyncClient, events: Events) -> None:
    await patch(gateway, 34)
    events.clear()
    assert (await patch(gateway, 34)).status_code == 204
    steps = [event.name for event in events if isinstance(event, StepReached)]
    assert steps == ["tables.fast.before", "tables.fast.after"]


async def test_a_gateway_of_another_role_is_refused_and_not_let_through(guarded: Stage) -> None:
    await guarded.execute(f"""
        GRANT ALL ON ALL TABLES IN SCHEMA fencing TO {guarded.app_role};
        GRANT USAGE ON SCHEMA fencing TO {guarded.app_role};
    """)
    misled = guarded.config(postgres={"dsn": guarded.app}, tables=RULES)
    async with running(misled) as origin, calling(origin) as client:
        answer = await patch(client, 34)
    assert (answer.status_code, answer.json()["code"]) == (400, "FN428")
    assert await guarded.rows("SELECT FROM shipments WHERE state <> 'new'") == []


# The gateway is never weaker than a guard: the same writes, directly under guards and through the gateway.


SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, code text UNIQUE, note text);
CREATE TABLE items (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE CASCADE, note text);
CREATE TABLE parts (id int PRIMARY KEY, item_id int REFERENCES items ON DELETE CASCADE);
CREATE TABLE bills (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE SET NULL);
CREATE TABLE boxes (order_id int REFERENCES orders ON DELETE CASCADE, number int, PRIMARY KEY (order_id, number));
CREATE TABLE codes (id int PRIMARY KEY, code text REFERENCES orders (code) ON UPDATE CASCADE);
CREATE TABLE nodes (id int PRIMARY KEY, parent_id int REFERENCES nodes ON DELETE CASCADE);
CREATE TABLE lines (order_id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, line int,
    PRIMARY KEY (order_id, line));
"""
GUARDED = ("orders", "items", "parts", "bills", "boxes", "codes", "nodes", "lines")
SHOP_RULES = [
    {"name": "public.orders", "resource": "order/{id}"},
    {"name": "public.lines", "resource": "order/{order_id}"},
]
ROWS = """
SET session_replication_role = replica;
DELETE FROM orders; DELETE FROM items; DELETE FROM parts; DELETE FROM bills; DELETE FROM boxes; DELETE FROM codes;
DELETE FROM nodes; DELETE FROM lines;
INSERT INTO orders VALUES (1, 'c1'), (2, 'c2'), (3, 'c3'), (4, 'c4'), (5, 'c5'), (6, 'c6');
INSERT INTO items VALUES (10, 1), (11, 1); INSERT INTO parts VALUES (100, 10);
INSERT INTO bills VALUES (20, 2); INSERT INTO boxes VALUES (3, 1); INSERT INTO codes VALUES (40, 'c4');
INSERT INTO nodes VALUES (1, NULL), (2, 1), (3, 2), (4, 4); INSERT INTO lines VALUES (5, 1), (5, 2);
RESET session_replication_role;
"""

# The held resources, the write as a request, and the same write as SQL.
WRITES: list[tuple[list[str], tuple[str, str, Any], str]] = [
    (held, ("DELETE", f"orders?id=eq.{number}", None), f"DELETE FROM orders WHERE id = {number}")
    for number, lists in {
        1: [
            ["order/1"],
            ["order/1", "public.items/10", "public.items/11"],
            ["order/1", "public.items/10", "public.parts/100"],
            ["order/1", "public.items/10", "public.items/11", "public.parts/100"],
        ],
        2: [["order/2"], ["order/2", "public.bills/20"]],
        3: [["order/3"], ["order/3", "public.boxes/3/1"]],
        5: [["order/5"]],
        6: [["order/6"]],
    }.items()
    for held in lists
]
WRITES += [
    (held, ("PATCH", "orders?id=eq.4", body), f"UPDATE orders SET {sql} WHERE id = 4")
    for held in (["order/4"], ["order/4", "public.codes/40"])
    for body, sql in (({"code": "x"}, "code = 'x'"), ({"code": "c4"}, "code = 'c4'"), ({"note": "x"}, "note = 'x'"))
]
WRITES += [
    (held, ("DELETE", f"nodes?id=eq.{number}", None), f"DELETE FROM nodes WHERE id = {number}")
    for number, lists in {
        1: [["public.nodes/1"], [f"public.nodes/{one}" for one in (1, 2, 3)]],
        2: [["public.nodes/2"], ["public.nodes/2", "public.nodes/3"]],
        4: [["public.nodes/4"]],
    }.items()
    for held in lists
]
WRITES += [
    (held, ("PATCH", "orders?id=eq.5", {"id": 7}), "UPDATE orders SET id = 7 WHERE id = 5")
    for held in (["order/5", "order/7"],)
]


@asynccontextmanager
async def shop(stage: Stage, guarded: Sequence[str] = GUARDED, **fencing: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Guard the tables, and open a gateway in front of them."""
    await stage.execute(f"{SHOP} GRANT ALL ON ALL TABLES IN SCHEMA public TO {stage.gateway_role}, {stage.app_role}")
    rules = {"tables": SHOP_RULES, "fencing": fencing}
    for table in guarded:
        request = installation.GuardRequest(table, dsn=stage.owner, grants=(stage.app_role,))
        await installation.install(stage.config(**rules).default, request)
    async with running(stage.config(**rules)) as origin, calling(f"{origin}/v1/tables") as client:
        yield client


async def directly(app: Session, held: list[str], sql: str) -> bool:
    """Whether the guards let it pass."""
    try:
        async with app.transaction():
            for name in held:
                await app.execute("SELECT fencing.hold($1, '5')", name)
            await app.execute(sql)
    except asyncpg.UnknownPostgresError as error:
        if not error.sqlstate.startswith("FN"):
            raise
        return False
    return True


async def state(stage: Stage) -> list[tuple[Any, ...]]:
    parts = (f"SELECT '{table}' AS t, to_jsonb(r)::text AS r FROM {table} AS r" for table in GUARDED)
    return await stage.rows(" UNION ALL ".join(parts) + " ORDER BY 1, 2")


@pytest.mark.parametrize("cascades", first(["allow", "refuse", "claim"]))
async def test_the_gateway_refuses_what_a_guard_refuses(stage: Stage, app: Session, cascades: str) -> None:
    """A guard also judges the cascades of a gateway that allows them."""
    async with shop(stage, cascades=cascades) as gateway:
        for held, (method, target, body), sql in WRITES:
            await stage.execute(ROWS)
            passed = await directly(app, held, sql)
            expected = await state(stage)
            await stage.execute(ROWS)
            tokens = ", ".join(f"{name}=5" for name in held)
            answer = await gateway.request(method, f"/{target}", json=body, headers={"fencing-token": tokens})
            assert answer.status_code in ((200, 204) if passed else (422,)), (held, sql, passed, answer.text)
            assert await state(stage) == expected, (held, sql)


async def test_a_guard_judges_what_triggers_of_the_gateways_writes_change(stage: Stage) -> None:
    """By dynamic SQL, which no text shows. A watching guard judges it as well."""
    async with shop(stage, cascades="refuse") as gateway:
        await stage.execute(f"""{ROWS}
            CREATE TABLE arrivals (id int PRIMARY KEY, item int);
            GRANT ALL ON arrivals TO {stage.gateway_role};
            CREATE FUNCTION arrive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                EXECUTE format('UPDATE %I SET note = $1 WHERE id = $2', 'it' || 'ems') USING 'there', NEW.item;
                RETURN NEW; END $$;
            CREATE CONSTRAINT TRIGGER arrive AFTER INSERT ON arrivals DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION arrive();
        """)
        for watches in (False, True):
            if watches:
                request = installation.GuardRequest("items", dsn=stage.owner, watch=True)
                await installation.install(stage.config(tables=SHOP_RULES).default, request)
            one = {"id": 1 + watches, "item": 10}
            own = f"public.arrivals/{1 + watches}=5"
            answer = await gateway.post("/arrivals", json=one, headers={"fencing-token": own})
            assert (answer.status_code, answer.json()["code"]) == (422, "resource-mismatch"), answer.text
            assert "public.items/10" in json.dumps(answer.json())
            both = {"fencing-token": f"{own}, public.items/10=5"}
            assert (await gateway.post("/arrivals", json=one, headers=both)).status_code == 201
        patched = await gateway.patch("/items?id=eq.10", json={"note": "x"}, headers={"fencing-token": "5"})
        assert patched.status_code == 204, "its own statement is not judged"


async def test_rows_that_the_gateway_may_not_see_refuse_the_write(stage: Stage) -> None:
    async with shop(stage, (), cascades="claim") as gateway:

        async def delete(number: int, *held: str) -> tuple[int, str]:
            tokens = ", ".join(f"{name}=5" for name in (f"order/{number}", *held))
            answer = await gateway.delete(f"/orders?id=eq.{number}", headers={"fencing-token": tokens})
            return answer.status_code, answer.text

        all_ = ("public.items/10", "public.items/11", "public.parts/100")
        await stage.execute(f"{ROWS} REVOKE ALL ON parts FROM {stage.gateway_role}")
        assert (await delete(6))[0] == 204, "no item leads to parts"
        status, text = await delete(1, *all_)
        assert (status, "right-missing" in text, "denied for table parts" in text) == (503, True, True)
        await stage.execute(
            f"GRANT SELECT ON parts TO {stage.gateway_role}; REVOKE UPDATE ON bills FROM {stage.gateway_role}"
        )
        assert (await delete(1, *all_))[0] == 503, "a row that is found has to be locked"
        await stage.execute(
            f"GRANT UPDATE ON parts TO {stage.gateway_role}; ALTER TABLE parts ENABLE ROW LEVEL SECURITY"
        )
        status, text = await delete(1, *all_)
        assert (status, "policies hide rows of public.parts" in text) == (503, True)
        await stage.execute("""
            ALTER TABLE parts DISABLE ROW LEVEL SECURITY;
            ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
            CREATE POLICY all_of_them ON orders USING (true);
        """)
        assert (await delete(1, *all_))[0] == 204, "to find that there are no bills takes no right to change them"
        assert await stage.rows("SELECT id FROM parts") == []


async def test_triggers_of_reached_tables_leave_no_settings_behind(stage: Stage) -> None:
    """Also those that run at the end of the transaction. They still find what the write holds."""
    async with shop(stage, cascades="claim") as gateway:
        await stage.execute(f"""{ROWS}
            CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM set_config('datestyle', 'German', false);
                UPDATE orders SET note = 'late' WHERE id = 6;
                RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER late AFTER DELETE ON boxes DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION late();
            CREATE TABLE days (day date PRIMARY KEY, v int);
            INSERT INTO days VALUES ('2024-01-02', 1);
            GRANT ALL ON days TO {stage.gateway_role};
        """)
        held = "order/3=5, public.boxes/3/1=5"
        answer = await gateway.delete("/orders?id=eq.3", headers={"fencing-token": held})
        assert (answer.status_code, "trigger late writes public.orders" in answer.text) == (422, True)
        await stage.execute("DROP TRIGGER late ON boxes; ALTER FUNCTION late() RENAME TO later")
        await stage.execute("""
            CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                PERFORM set_config('datestyle', 'German', false);
                EXECUTE 'UPDATE ' || 'orders SET note = $1 WHERE id = 6' USING 'late';
                RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER late AFTER DELETE ON boxes DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION late();
            NOTIFY fencing_catalog;
        """)
        for tokens, status in ((held, 422), (f"{held}, order/6=5", 204)):
            answer = await gateway.delete("/orders?id=eq.3", headers={"fencing-token": tokens})
            assert answer.status_code == status, answer.text
        for _ in range(8):  # more than there are sessions
            answer = await gateway.patch("/days?day=eq.2024-01-02", json={"v": 2}, headers={"fencing-token": "5"})
            assert answer.headers["fencing-resource"] == "public.days/2024-01-02"
        assert await stage.rows("SELECT note FROM orders WHERE id = 6") == [("late",)]


async def test_every_place_tells_of_a_zombie_that_a_guard_refused_while_no_gateway_ran(guarded: Stage) -> None:
    """Its session has ended before the gateway starts. Each place has resource, token, holder, successor and time."""
    await rights.grant(guarded.owner, guarded.gateway_role)
    async with receiving() as receiver:
        hook = {"name": "ops", "url": receiver.url, "secret": SECRET}
        told = guarded.config(webhooks=[hook])
        async with running(told) as origin, calling(origin) as client:
            await until_registered(guarded)
            assert "no write was refused" in await shown(origin, "/ui/")
        async with session(guarded.app) as successor:
            await hold(successor, "order/5", 35, "bob")
        async with session(guarded.app) as zombie:
            await zombie.execute(
                "SET fencing.resource = 'order/5'; SET fencing.token = '34'; SET fencing.holder = 'ann'"
            )
            async with refused("FN412"):
                await zombie.execute(SENT)
        over = datetime.now(UTC)
        events = Events()
        async with running(told, events) as origin, calling(origin) as client:
            await receiver.until(receiver.entries)
            (sent,) = receiver.entries()
            facts = (sent["resource"], sent["token"], sent["holder"], sent["fence"], sent["fence_holder"])
            assert facts == ("order/5", "34", "ann", "35", "bob")
            at = datetime.fromisoformat(sent["at"])
            assert over - timedelta(seconds=PATIENCE) < at < over, "when it was refused, not when a gateway looked"

            (listed,) = (await client.get("/v1/rejections", params={"resource": "order/5"})).json()["rejections"]
            assert (listed["token"], listed["holder"], listed["fence"], listed["at"]) == ("34", "ann", "35", sent["at"])
            assert listed["statement"] == "UPDATE shipments SET"
            assert "UPDATE shipments SET" in await shown(origin, f"/ui/rejections/{listed['id']}")
            (incident,) = (await client.get("/v1/incidents")).json()["incidents"]
            assert (incident["resource"], incident["token"], incident["holder"]) == ("order/5", "34", "ann")
            assert (incident["fence"], incident["overtaken_by"], incident["first"]) == ("35", "bob", sent["at"])

            clock = at.strftime("%H:%M:%S")
            page = await shown(origin, "/ui/resource?name=order/5")
            report = (await client.get("/v1/reports/order/5")).text
            for place in (page, report):
                for fact in ("ann", "token 34", "bob", "token 35", clock):
                    assert fact in place, fact
            for place in (page, report, await shown(origin, "/ui/")):
                assert not re.search("(?i)no write was refused|held the newest token that", place)
            metrics = (await client.get("/v1/metrics")).text
            sample = 'gateway_writes_refused_total{plane="tables",reason="token-stale",rule="public.shipments"} 1.0'
            assert sample in metrics
            assert "gateway_guard_refusals_total 1.0" in metrics
            assert [one.rejection.resource for one in events if isinstance(one, WriteRefused)] == ["order/5"]


async def test_a_refused_claim_has_a_page_and_is_counted_without_a_table(guarded: Stage, app: Session) -> None:
    await rights.grant(guarded.owner, guarded.gateway_role)
    await hold(app, "order/5", 35)
    for _ in range(2):
        async with refused("FN412"):
            await hold(app, "order/5", 34, "ann")
    events = Events()
    async with running(guarded.config(), events) as origin, calling(origin) as client:
        async with asyncio.timeout(PATIENCE):
            while len(told := [one.rejection for one in events if isinstance(one, WriteRefused)]) < 2:
                await asyncio.sleep(0.01)
        page = await shown(origin, f"/ui/rejections/{told[0].id}")
        assert "fencing.hold" in page
        metrics = (await client.get("/v1/metrics")).text
        assert re.search(r"gateway_writes_refused_total\{.*token-stale.*\} 2", metrics)


async def test_no_place_says_that_nothing_was_refused_where_only_the_number_is_known(
    guarded: Stage, app: Session
) -> None:
    await rights.grant(guarded.owner, guarded.gateway_role)
    await guarded.execute("DROP SEQUENCE fencing.refusal_end_0")  # as if a guard of version 1.0 had made no room
    await hold(app, "order/5", 35)
    for _ in range(3):
        async with refused("FN412"):
            await declare_and_write(app, SENT, "order/5", 34)
    events = Events()
    async with running(guarded.config(), events) as origin, calling(origin) as client:
        async with asyncio.timeout(PATIENCE):
            while not any(isinstance(event, GuardRefused) for event in events):
                await asyncio.sleep(0.01)
        report = (await client.get("/v1/reports/order/5")).text
        pages = ("/ui/resource?name=order/5", "/ui/", "/ui/incidents", "/ui/resources")
        for text in (report, *[await shown(origin, page) for page in pages]):
            assert "3 refusals by the guard of which only the count is known" in text
            assert not re.search("(?i)no write was refused|every writer", text)


async def shown(origin: str, page: str) -> str:
    """Return the text of a page, after a login."""
    async with httpx.AsyncClient(base_url=origin, headers={"origin": origin}, timeout=PATIENCE) as client:
        assert (await client.post("/ui/login", data={"api_key": API_KEY})).status_code == 303
        answer = await client.get(page)
        assert answer.status_code == 200, answer.text
        return answer.text


async def until_registered(stage: Stage) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await stage.rows("SELECT FROM fencing.webhook"):
            await asyncio.sleep(0.01)
