"""A write that reaches rows of other resources by foreign keys is refused, or needs their tokens. Real transactions."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, TypeAlias

import asyncpg
import httpx
import pytest

from gateway.db.database import Database
from gateway.errors import SideEffectRefused
from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.resource import Template
from gateway.observe.events import Event, StepReached
from gateway.tables import schema_cache
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.guard.stage import session
from tests.tables.asking import TESTER, answered, change, over_asgi, rows, send
from tests.tiers import first
from tests.waiting import waiting

SCHEMA = """
CREATE SCHEMA hidden;
CREATE TABLE orders (id int PRIMARY KEY, code text UNIQUE, note text, CHECK (note <> 'bad'));
CREATE TABLE items (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE, note text);
CREATE TABLE parts (id int PRIMARY KEY, item_id int REFERENCES items ON DELETE CASCADE, note text);
CREATE TABLE bills (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE SET NULL);
CREATE TABLE fines (id int PRIMARY KEY, order_id int DEFAULT 0 REFERENCES orders ON DELETE SET DEFAULT);
CREATE TABLE boxes (order_id int REFERENCES orders ON DELETE CASCADE, number int, PRIMARY KEY (order_id, number));
CREATE TABLE hidden.crates (id int PRIMARY KEY, order_id int REFERENCES orders ON DELETE CASCADE);
CREATE TABLE labels (id int PRIMARY KEY, crate_id int REFERENCES hidden.crates ON DELETE CASCADE);
CREATE TABLE codes (id int PRIMARY KEY, code text REFERENCES orders (code) ON UPDATE CASCADE);
CREATE TABLE nodes (id int PRIMARY KEY, parent_id int REFERENCES nodes ON DELETE CASCADE);
CREATE TABLE logs (id int, day int, PRIMARY KEY (id, day)) PARTITION BY LIST (day);
CREATE TABLE logs_1 PARTITION OF logs FOR VALUES IN (1);
CREATE TABLE logs_2 PARTITION OF logs FOR VALUES IN (2);
CREATE TABLE notes (id int, log_id int, day int, PRIMARY KEY (id, day),
    FOREIGN KEY (log_id, day) REFERENCES logs ON DELETE CASCADE) PARTITION BY LIST (day);
CREATE TABLE notes_1 PARTITION OF notes FOR VALUES IN (1);
CREATE TABLE notes_2 PARTITION OF notes FOR VALUES IN (2);
CREATE TABLE marks (id int PRIMARY KEY, log_id int, day int,
    FOREIGN KEY (log_id, day) REFERENCES logs_2 (id, day) ON DELETE CASCADE);
CREATE VIEW recent AS SELECT id, note FROM orders;
INSERT INTO orders VALUES (0, 'c0', NULL), (1, 'c1', NULL), (2, 'c2', NULL), (3, 'c3', NULL);
"""
REFUSE, CLAIM, ALLOW = (Rule(cascades=one) for one in Cascades)
RECENT = Rule(Template.parse("public.orders/{id}"))
ORDER, ITEM = Rule(Template.parse("order/{id}")), Rule(Template.parse("order/{order_id}"))
REFUSED = "side-effect-refused"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "_PAUSE_BETWEEN_RELOADS", 0.0)


class Shop:
    """A table plane in front of the shop, with rules of its own."""

    def __init__(self, database: Database, plane: TablePlane, client: httpx.AsyncClient, events: list[Event]) -> None:
        self.database, self.plane, self.client, self.events = database, plane, client, events

    async def write(self, method: str, target: str, body: object = None, **more: Any) -> httpx.Response:
        return await send(self.client, method, target, body, **more)

    async def execute(self, sql: str) -> None:
        await change(self.database, sql)

    async def names(self, sql: str) -> list[object]:
        return [found[0] for found in await rows(self.database, sql)]


Serve: TypeAlias = Callable[..., AbstractAsyncContextManager[Shop]]
"""``async with serve(default, table=rule) as shop``"""


@pytest.fixture
async def serve(database: Database) -> Serve:
    await change(database, SCHEMA)

    @asynccontextmanager
    async def opened(default: Rule = REFUSE, **rules: Rule) -> AsyncIterator[Shop]:
        events: list[Event] = []
        named = {f"public.{name}": rule for name, rule in {"recent": RECENT, **rules}.items()}
        exposure = Exposure(rules=named, default_rule=default)
        plane = TablePlane(database, exposure, authenticate=lambda _: TESTER, observe=events.append)
        async with over_asgi(plane) as client:
            yield Shop(database, plane, client, events)

    return opened


# SQL that makes rows; the table and the foreign key that are reached; the resource.
REACHED = {
    "cascade": ("INSERT INTO items VALUES (7, 1)", "items", "items_order_id_fkey", "public.items/7"),
    "set null": ("INSERT INTO bills VALUES (7, 1)", "bills", "bills_order_id_fkey", "public.bills/7"),
    "set default": ("INSERT INTO fines VALUES (7, 1)", "fines", "fines_order_id_fkey", "public.fines/7"),
    "wide key": ("INSERT INTO boxes VALUES (1, 7)", "boxes", "boxes_order_id_fkey", "public.boxes/1/7"),
    "through a hidden table": (
        "INSERT INTO hidden.crates VALUES (5, 1); INSERT INTO labels VALUES (7, 5)",
        *("labels", "labels_crate_id_fkey", "public.labels/7"),
    ),
}


@pytest.mark.parametrize("reached", first(REACHED))
async def test_a_delete_that_reaches_another_resource_is_refused(serve: Serve, reached: str) -> None:
    sql, table, key, _ = REACHED[reached]
    async with serve() as shop:
        await shop.execute(sql)
        before = await shop.names(f"SELECT to_jsonb(t)::text FROM {table} AS t")
        for _ in range(2):  # the second finds no recipe
            answer = await shop.write("DELETE", "/orders?id=eq.1", token=5)
            answered(answer, 422, REFUSED)
            assert f"public.{table}" in answer.json()["message"]
            assert key in answer.json()["message"]
            assert 'cascades = "claim"' in answer.json()["hint"]
        assert await shop.names(f"SELECT to_jsonb(t)::text FROM {table} AS t") == before
        assert await shop.names("SELECT resource FROM fencing.fence") == [], "the raise is taken back"
        answered(await shop.write("DELETE", "/orders?id=eq.2", token=5), 204)
        answered(await shop.write("DELETE", "/orders?id=eq.3", token=5), 204)
        assert await shop.names("SELECT id FROM orders ORDER BY id") == [0, 1]


@pytest.mark.parametrize("reached", first(REACHED))
async def test_with_claim_the_tokens_of_all_rows_are_needed(serve: Serve, reached: str) -> None:
    sql, _, _, resource = REACHED[reached]
    async with serve(CLAIM) as shop:
        await shop.execute(sql)
        answer = await shop.write("DELETE", "/orders?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        wanted = f"Fencing-Token: public.orders/1=5, {resource}=<its token>"
        assert wanted in answer.json()["hint"]
        assert f"missing: {resource}" in answer.json()["details"]
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=f"public.orders/1=5, {resource}=9"), 204)
        assert await shop.names("SELECT id FROM orders WHERE id = 1") == []
        fences = await rows(shop.database, "SELECT resource, value FROM fencing.fence ORDER BY value")
        assert fences == [("public.orders/1", 5), (resource, 9)]


async def test_with_claim_a_stale_token_of_a_reached_row_is_refused(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1)")
        answered(await shop.write("PATCH", "/items?id=eq.7", {"note": "x"}, token=10), 204)
        list_ = "public.orders/1=5, public.items/7=9"
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=list_), 412, "token-stale")
        assert await shop.names("SELECT id FROM items") == [7]


@pytest.mark.parametrize(
    ("rule", "noted"),
    [(ALLOW, []), (Rule(mode=Enforcement.OBSERVE), [("public.items/7", REFUSED, False)])],
    ids=["allowed", "observed"],
)
async def test_with_allow_or_observed_the_rows_go_unfenced(serve: Serve, rule: Rule, noted: list[object]) -> None:
    async with serve(orders=rule) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1)")
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=5), 204)
        assert await shop.names("SELECT id FROM items") == []
        assert await rows(shop.database, "SELECT resource, reason, enforced FROM fencing.rejection") == noted


async def test_every_level_is_looked_at(serve: Serve) -> None:
    """Items share the resource of their order, and parts have their own."""
    order = Rule(Template.parse("order/{id}"), cascades=Cascades.CLAIM)
    async with serve(orders=order, items=ITEM) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1), (8, 2); INSERT INTO parts VALUES (70, 7), (71, 7)")
        answer = await shop.write("DELETE", "/orders?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        assert "order/1=5, public.parts/70=<its token>, public.parts/71=<its token>" in answer.json()["hint"]
        answered(await shop.write("DELETE", "/orders?id=eq.2", token=5), 204)
        list_ = "order/1=5, public.parts/70=1, public.parts/71=1"
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=list_), 204)
        assert await shop.names("SELECT id FROM parts") == []


async def test_the_list_that_would_do_is_complete(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("""
            INSERT INTO items VALUES (7, 1), (8, 1); INSERT INTO parts VALUES (70, 7), (80, 8);
            INSERT INTO bills VALUES (9, 1); INSERT INTO boxes VALUES (1, 1);
        """)
        answer = await shop.write("DELETE", "/orders?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        list_ = answer.json()["hint"].partition("Fencing-Token: ")[2].replace("<its token>", "6")
        assert list_.count("=") == 7
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=list_), 204)
        await shop.execute("INSERT INTO items SELECT n, 2 FROM generate_series(1000, 1200) AS n")
        answer = await shop.write("DELETE", "/orders?id=eq.2", token=5)
        answered(answer, 422, REFUSED)
        assert "more than 100" in answer.json()["hint"]


async def test_rows_of_one_resource_go_together(serve: Serve) -> None:
    part = Rule(Template.parse("shop/{id}"), mode=Enforcement.OBSERVE)
    async with serve(orders=ORDER, items=ITEM, parts=part) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1); INSERT INTO parts VALUES (70, 7)")
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=5), 204)
        assert await shop.names("SELECT id FROM parts") == []
        refused = await rows(shop.database, "SELECT resource, reason, enforced FROM fencing.rejection")
        assert refused == [("shop/70", REFUSED, False)], "a rule that only observes notes it"


async def test_a_changed_key_takes_the_rows_that_refer_to_it(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("INSERT INTO codes VALUES (7, 'c1')")
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"code": "new"}, token=5), 422, REFUSED)
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"code": "c1", "note": "same key"}, token=5), 204)
        answered(await shop.write("PATCH", "/orders?id=eq.2", {"code": "free"}, token=5), 204)
        list_ = "public.orders/1=5, public.codes/7=1"
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"code": "new"}, token=list_), 204)
        assert await shop.names("SELECT code FROM codes") == ["new"]
        upsert = {"id": 1, "code": "newer"}
        answer = await shop.write("PUT", "/orders?id=eq.1", upsert, token=list_)
        answered(answer, 422, REFUSED)
        answered(await shop.write("PUT", "/orders?id=eq.1", {"id": 1, "note": "x"}, token=5), 204)


async def test_a_row_that_would_get_another_name_is_refused_with_any_token(serve: Serve) -> None:
    async with serve(CLAIM, bills=Rule(Template.parse("bill/{order_id}"))) as shop:
        await shop.execute("INSERT INTO bills VALUES (7, 1)")
        answer = await shop.write("DELETE", "/orders?id=eq.1", token="public.orders/1=5, bill/1=5")
        answered(answer, 422, REFUSED)
        assert "another name" in answer.json()["message"]


async def test_rows_are_compared_as_the_foreign_key_compares_them(serve: Serve) -> None:
    """With columns of two collations, of two types, and with a column that a delete leaves alone."""
    async with serve(CLAIM, visits=Rule(Template.parse("visit/{town}/{id}"))) as shop:
        await shop.execute("""
            CREATE TABLE towns (name text COLLATE "C" PRIMARY KEY);
            CREATE TABLE streets (id int PRIMARY KEY,
                "in" varchar(9) COLLATE "POSIX" REFERENCES towns ON DELETE CASCADE);
            CREATE TABLE halls (town text, id bigint, PRIMARY KEY (town, id));
            CREATE TABLE visits (id int PRIMARY KEY, town text, hall int,
                FOREIGN KEY (town, hall) REFERENCES halls ON DELETE SET NULL (hall));
            INSERT INTO towns VALUES ('a'), ('b'); INSERT INTO streets VALUES (7, 'a');
            INSERT INTO halls VALUES ('a', 1); INSERT INTO visits VALUES (8, 'a', 1);
        """)
        answered(await shop.write("DELETE", "/towns?name=eq.a", token=5), 422, REFUSED)
        answered(await shop.write("DELETE", "/towns?name=eq.b", token=5), 204)
        answered(await shop.write("DELETE", "/towns?name=eq.a", token="public.towns/a=5, public.streets/7=5"), 204)
        answered(await shop.write("DELETE", "/halls?town=eq.a&id=eq.1", token=5), 422, REFUSED)
        answered(await shop.write("DELETE", "/halls?town=eq.a&id=eq.1", token="public.halls/a/1=5, visit/a/8=5"), 204)
        assert await rows(shop.database, "SELECT id, town, hall FROM visits") == [(8, "a", None)]


async def test_a_strict_row_is_not_taken_along(serve: Serve) -> None:
    async with serve(CLAIM, items=Rule(equal=Equal.STRICT)) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1)")
        answer = await shop.write("DELETE", "/orders?id=eq.1", token="public.orders/1=5, public.items/7=5")
        answered(answer, 422, REFUSED)
        assert "writes once" in answer.json()["message"]


async def test_a_trigger_that_changes_a_key_is_found_out(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("""
            INSERT INTO codes VALUES (7, 'c1');
            CREATE FUNCTION recode() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN NEW.code := coalesce(NEW.note, NEW.code); RETURN NEW; END';
            CREATE TRIGGER recode BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION recode();
        """)
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"note": "other"}, token=5), 422, REFUSED)
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"note": "c1"}, token=5), 204)
        answered(await shop.write("PATCH", "/orders?id=eq.99", {"note": "c1"}, token=5), 204)
        assert await shop.names("SELECT code FROM codes") == ["c1"]


async def test_a_tree_is_taken_down_from_its_leaves(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("INSERT INTO nodes VALUES (1, NULL), (2, 1), (3, 2), (4, 4)")
        answer = await shop.write("DELETE", "/nodes?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        assert "public.nodes/2=<its token>" in answer.json()["hint"]
        answered(await shop.write("DELETE", "/nodes?id=eq.4", token=5), 204)
        three = "public.nodes/1=5, public.nodes/2=5, public.nodes/3=5"
        answered(await shop.write("DELETE", "/nodes?id=eq.1", token=three), 204)
        assert await shop.names("SELECT id FROM nodes") == []


async def test_partitions_on_both_sides(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("INSERT INTO logs VALUES (1, 1), (1, 2), (2, 1); INSERT INTO notes VALUES (7, 1, 1)")
        await shop.execute("INSERT INTO marks VALUES (8, 1, 2)")
        for target, missing in [
            ("/logs?id=eq.1&day=eq.1", "public.notes/7/1"),
            ("/logs?id=eq.1&day=eq.2", "public.marks/8"),
            ("/logs_1?id=eq.1&day=eq.1", "public.notes/7/1"),
            ("/logs_2?id=eq.1&day=eq.2", "public.marks/8"),
        ]:
            answer = await shop.write("DELETE", target, token=5)
            answered(answer, 422, REFUSED)
            assert f"{missing}=<its token>" in answer.json()["hint"], target
        answered(await shop.write("DELETE", "/logs?id=eq.2&day=eq.1", token=5), 204)
        list_ = "public.logs/1/1=5, public.notes/7/1=5"
        answered(await shop.write("DELETE", "/logs?id=eq.1&day=eq.1", token=list_), 204)
        assert await shop.names("SELECT id FROM notes") == []


async def test_partitions_that_come_and_go_are_followed(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("""
            INSERT INTO logs SELECT n, 1 FROM generate_series(1, 9) AS n; INSERT INTO notes VALUES (7, 1, 1);
            CREATE TABLE notes_3 (LIKE notes INCLUDING ALL,
                FOREIGN KEY (log_id, day) REFERENCES logs ON DELETE CASCADE);
        """)
        answered(await shop.write("DELETE", "/logs?id=eq.2", token=5, resource="public.logs/2/1"), 204)
        for number, change in enumerate(["ATTACH PARTITION notes_3 FOR VALUES IN (3)", "DETACH PARTITION notes_3"]):
            await shop.execute(f"ALTER TABLE notes {change}")
            one, other = 3 + 2 * number, 4 + 2 * number
            answered(await shop.write("DELETE", f"/logs?id=eq.{one}&day=eq.1", token=5), 204)
            answered(await shop.write("DELETE", f"/logs_1?id=eq.{other}&day=eq.1", token=5), 204)
            answered(await shop.write("DELETE", "/logs?id=eq.1&day=eq.1", token=5), 422, REFUSED)
        await shop.execute("INSERT INTO notes_3 VALUES (8, 9, 1)")
        answered(await shop.write("DELETE", "/logs?id=eq.9&day=eq.1", token=5), 422, REFUSED)


async def test_partitions_share_the_resource_of_their_table(serve: Serve) -> None:
    rules = {"logs": Rule(Template.parse("log/{id}")), "notes": Rule(Template.parse("log/{log_id}"))}
    async with serve(**rules) as shop:
        await shop.execute("INSERT INTO logs VALUES (1, 1), (2, 1); INSERT INTO notes VALUES (7, 1, 1), (8, 2, 1)")
        answered(await shop.write("DELETE", "/logs?id=eq.1", token=5), 204)
        await shop.execute("ALTER TABLE notes SET SCHEMA hidden; NOTIFY fencing_catalog")
        answer = await shop.write("DELETE", "/logs?id=eq.2", token=5)
        answered(answer, 422, REFUSED)
        assert "rows of public.notes_1" in answer.json()["message"], "a partition that is exposed alone names them"


async def test_a_view_does_not_go_round_it(serve: Serve) -> None:
    async with serve() as shop:
        answered(await shop.write("DELETE", "/recent?id=eq.1", token=5), 422, REFUSED)
        answered(await shop.write("PATCH", "/recent?id=eq.1", {"note": "x"}, token=5), 422, REFUSED)
    async with serve(recent=replace(RECENT, cascades=Cascades.ALLOW)) as shop:
        answered(await shop.write("PATCH", "/recent?id=eq.1", {"note": "x"}, token=5), 204)


async def test_a_list_of_writes_may_delete_the_rows_first(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1)")
        delete = {"method": "DELETE", "table": "orders", "query": "id=eq.1", "token": "5"}
        first = {"method": "DELETE", "table": "items", "query": "id=eq.7", "token": "5"}

        with pytest.raises(SideEffectRefused) as caught:
            await transact(shop.plane, [delete, first])
        assert caught.value.facts["write"] == 0
        assert await transact(shop.plane, [first, delete]) == 200
        assert await shop.names("SELECT id FROM items") == []


async def transact(plane: TablePlane, writes: object) -> int:
    body = json.dumps({"writes": writes}).encode()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/transaction", "raw_path": b"/v1/transaction",
        "query_string": b"", "state": {}, "headers": [(b"content-type", b"application/json")],
    }  # fmt: skip

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    return (await plane.transact(scope, receive, TESTER)).status


async def test_a_delete_without_foreign_keys_keeps_its_fast_path(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("INSERT INTO parts VALUES (1, NULL)")
        answered(await shop.write("POST", "/parts", {"id": 10, "note": "x"}, token=5), 201)
        answered(await shop.write("PATCH", "/parts?id=eq.10", {"note": "y"}, token=5), 204)
        shop.events.clear()
        answered(await shop.write("DELETE", "/parts?id=eq.10", token=5), 204)
        steps = [event.name for event in shop.events if isinstance(event, StepReached)]
        assert steps == ["tables.fast.before", "tables.fast.after"]


@pytest.mark.parametrize("verb", first(["DELETE", "PATCH"]))
async def test_a_foreign_key_that_the_gateway_has_not_seen_yet_is_heeded(serve: Serve, verb: str) -> None:
    async with serve() as shop:
        await shop.execute("INSERT INTO parts VALUES (1), (2); CREATE TABLE late (id int PRIMARY KEY, part_id int)")
        answered(await shop.write("PATCH", "/parts?id=eq.1", {"note": "y"}, token=5), 204)
        answered(await shop.write("PATCH", "/parts?id=eq.2", {"note": "y"}, token=5), 204)
        await shop.execute("""
            INSERT INTO late VALUES (7, 1);
            ALTER TABLE late ADD FOREIGN KEY (part_id) REFERENCES parts ON DELETE CASCADE ON UPDATE CASCADE;
        """)
        body = {"id": 9} if verb == "PATCH" else None
        tokens = "public.parts/1=5, public.parts/9=5" if verb == "PATCH" else 5
        answered(await shop.write(verb, "/parts?id=eq.1", body, token=tokens), 422, REFUSED)
        await shop.execute("ALTER TABLE late DROP CONSTRAINT late_part_id_fkey")
        answered(await shop.write(verb, "/parts?id=eq.1", body, token=tokens), 204)


async def test_a_foreign_key_behind_the_known_ones_is_heeded(serve: Serve) -> None:
    async with serve(orders=ORDER, items=ITEM) as shop:
        await shop.execute(
            "INSERT INTO items VALUES (7, 1), (8, 2); CREATE TABLE late (id int PRIMARY KEY, item_id int)"
        )
        answered(await shop.write("DELETE", "/orders?id=eq.2", token=5), 204)
        await shop.execute("""
            INSERT INTO late VALUES (70, 7);
            ALTER TABLE late ADD FOREIGN KEY (item_id) REFERENCES items ON DELETE CASCADE
        """)
        answered(await shop.write("DELETE", "/orders?id=eq.1", token=5), 422, REFUSED)


@asynccontextmanager
async def under_way(
    shop: Shop, dsn: str, sql: str, token: object, target: str = "/orders?id=eq.1"
) -> AsyncIterator["asyncio.Task[httpx.Response]"]:
    """A delete that waits for another session, which carries ``sql`` out and commits at the end of the block."""
    async with session(dsn) as stranger, asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute(sql)
        deletion = tasks.create_task(shop.write("DELETE", target, token=token))
        await waiting(shop.database)
        yield deletion


async def test_a_row_that_comes_while_the_delete_waits_is_seen(serve: Serve, dsn: str) -> None:
    async with serve() as shop:
        async with under_way(shop, dsn, "INSERT INTO items VALUES (7, 1)", 5) as late:
            pass
        answered(late.result(), 422, REFUSED)
        assert await shop.names("SELECT id FROM items") == [7]


async def test_a_row_that_leaves_while_the_delete_waits_is_not_counted(serve: Serve, dsn: str) -> None:
    """The delete claims both rows, so it looks at both, and waits for the one that is about to leave."""
    async with serve(CLAIM) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1), (8, 1)")
        list_ = "public.orders/1=5, public.items/7=5, public.items/8=5"
        async with under_way(shop, dsn, "UPDATE items SET order_id = 2 WHERE id = 8", list_) as late:
            pass
        answered(late.result(), 204)
        assert await shop.names("SELECT id FROM items") == [8]


async def test_a_row_that_gets_another_name_while_the_delete_waits_is_not_taken(serve: Serve, dsn: str) -> None:
    async with serve(orders=CLAIM, items=Rule(Template.parse("item/{note}"))) as shop:
        await shop.execute("INSERT INTO items VALUES (7, 1, 'mine')")
        list_ = "public.orders/1=5, item/mine=5"
        async with under_way(shop, dsn, "UPDATE items SET note = 'yours' WHERE id = 7", list_) as late:
            pass
        answered(late.result(), 422, REFUSED)
        assert await shop.names("SELECT id FROM items") == [7]


LOOKED_AT = "SELECT FROM items WHERE id = 7 FOR UPDATE"


async def test_no_row_comes_between_the_look_and_the_delete(serve: Serve, dsn: str) -> None:
    """An insert that starts after the parent is locked waits, and then fails: it never becomes a row to take along."""
    async with serve(CLAIM) as shop, session(dsn) as writer:
        await shop.execute("INSERT INTO items VALUES (7, 1)")
        answered(await shop.write("PATCH", "/items?id=eq.99", {"note": "x"}, token=1), 204)  # its naming is registered
        async with under_way(shop, dsn, LOOKED_AT, "public.orders/1=5, public.items/7=5") as late:
            insert = asyncio.ensure_future(writer.execute("INSERT INTO items VALUES (8, 1)"))
            await waiting(shop.database, 2)
        answered(late.result(), 204)
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await insert


async def test_a_row_that_comes_to_match_while_the_delete_looks_is_left(serve: Serve, dsn: str) -> None:
    """The delete writes the rows that it has looked at, and no others."""
    order = Rule(Template.parse("all"), cascades=Cascades.CLAIM)
    async with serve(orders=order) as shop, session(dsn) as writer:
        await shop.execute("INSERT INTO items VALUES (7, 1), (8, 2); UPDATE orders SET note = 'old' WHERE id = 1")
        answered(await shop.write("PATCH", "/items?id=eq.99", {"note": "x"}, token=1), 204)  # its naming is registered
        async with under_way(shop, dsn, LOOKED_AT, "all=5, public.items/7=5", "/orders?note=eq.old") as late:
            await writer.execute("UPDATE orders SET note = 'old' WHERE id = 2")
        answered(late.result(), 204)
        assert await shop.names("SELECT id FROM items") == [8]
        assert await shop.names("SELECT id FROM orders ORDER BY id") == [0, 2, 3]


WRITES_ITEMS = """
    CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE items SET note = 'also' WHERE order_id = OLD.id; RETURN OLD; END $$;
    CREATE TRIGGER also AFTER {} ON fines FOR EACH ROW EXECUTE FUNCTION also();
    INSERT INTO fines VALUES (1, 1), (2, 2);
"""


async def test_a_trigger_that_writes_another_resource_refuses_its_writes(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute(WRITES_ITEMS.format("DELETE"))
        answer = await shop.write("DELETE", "/fines?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        assert "the trigger also writes public.items" in answer.json()["message"]
        answered(await shop.write("PATCH", "/fines?id=eq.1", {"order_id": 2}, token=5), 204)
        await shop.execute(
            "CREATE OR REPLACE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'"
        )
        answered(await shop.write("DELETE", "/fines?id=eq.1", token=5), 204)


@pytest.mark.parametrize(
    "rules",
    [
        {"fines": ALLOW},
        {"items": Rule(mode=Enforcement.OBSERVE)},
        {"fines": ITEM, "items": ITEM},
    ],
    ids=["allowed", "not fenced", "one resource"],
)
async def test_a_trigger_may_write_what_no_other_holder_has(serve: Serve, rules: dict[str, Rule]) -> None:
    async with serve(**rules) as shop:
        await shop.execute(WRITES_ITEMS.format("UPDATE"))
        more = {"resource": "order/1"} if rules.get("fines", ALLOW).template else {}
        answered(await shop.write("PATCH", "/fines?id=eq.1", {"order_id": 1}, token=5, **more), 204)


async def test_a_trigger_of_a_reached_table_counts_too(serve: Serve) -> None:
    async with serve(CLAIM) as shop:
        await shop.execute("""
            CREATE FUNCTION also() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN INSERT INTO nodes VALUES (OLD.id); RETURN OLD; END';
            CREATE TRIGGER also AFTER DELETE ON items FOR EACH ROW EXECUTE FUNCTION also();
            INSERT INTO items VALUES (7, 1);
        """)
        answer = await shop.write("DELETE", "/orders?id=eq.1", token="public.orders/1=5, public.items/7=5")
        answered(answer, 422, REFUSED)
        assert "the trigger also writes public.nodes" in answer.json()["message"]
        answered(await shop.write("DELETE", "/orders?id=eq.2", token=5), 204)


async def test_a_rule_that_writes_another_resource_refuses_its_writes(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("""
            CREATE RULE also AS ON DELETE TO fines DO ALSO DELETE FROM items WHERE items.order_id = OLD.order_id;
        """)
        answer = await shop.write("DELETE", "/fines?id=eq.1", token=5)
        answered(answer, 422, REFUSED)
        assert "the rule also writes public.items" in answer.json()["message"]


async def test_triggers_that_touch_their_own_row_or_unfenced_tables_are_no_matter(serve: Serve) -> None:
    async with serve() as shop:
        await shop.execute("""
            CREATE TABLE hidden.history (at timestamptz DEFAULT now(), old jsonb);
            CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN INSERT INTO hidden.history (old) VALUES (to_jsonb(OLD)); RETURN NULL; END';
            CREATE TRIGGER keep AFTER UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION keep();
            CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.note := now(); RETURN NEW; END';
            CREATE TRIGGER stamp BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION stamp();
            INSERT INTO codes VALUES (7, 'c1');
        """)
        answered(await shop.write("PATCH", "/orders?id=eq.1", {"note": "x"}, token=5), 204)
        answered(await shop.write("DELETE", "/orders?id=eq.2", token=5), 204)
        assert await shop.names("SELECT count(*) FROM hidden.history") == [2]


@pytest.mark.thorough
async def test_no_row_ever_goes_without_its_token(serve: Serve, dsn: str) -> None:
    """Deletes of orders race with rows that come, go and change their order, through the gateway and beside it."""
    chance = random.Random(7)
    shown: dict[int, str] = {}
    async with serve(CLAIM) as shop, session(dsn) as stranger:
        await shop.execute("""
            CREATE TABLE hidden.gone (item int, order_id int);
            CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN INSERT INTO hidden.gone VALUES (OLD.id, OLD.order_id); RETURN OLD; END';
            CREATE TRIGGER note AFTER DELETE ON items FOR EACH ROW EXECUTE FUNCTION note();
            INSERT INTO orders SELECT n, 'x' || n FROM generate_series(10, 69) AS n;
            INSERT INTO items SELECT n, 10 + n % 60 FROM generate_series(100, 189) AS n;
        """)

        async def moves() -> None:
            """Move items to other orders, and add some."""
            for number in range(60):
                item, order = chance.randrange(100, 190), chance.randrange(10, 70)
                body = {"order_id": order}
                answer = await shop.write("PATCH", f"/items?id=eq.{item}", body, token=5)
                assert answer.status_code in (204, 409), answer.text
                with suppress(asyncpg.ForeignKeyViolationError):
                    async with stranger.transaction():
                        await stranger.execute("INSERT INTO items VALUES ($1, $2)", 200 + number, order)
                        await asyncio.sleep(0)

        async def deletes(orders: range) -> None:
            for order in orders:
                names = ""
                for _ in range(5):
                    answer = await shop.write(
                        "DELETE", f"/orders?id=eq.{order}", token=f"public.orders/{order}=5{names}"
                    )
                    if answer.status_code == 204:
                        shown[order] = names
                        break
                    answered(answer, 422, REFUSED)
                    missing = answer.json()["details"].partition("missing: ")[2].split(", ")
                    names += "".join(f", {name}=5" for name in missing)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(moves())
            for first in range(3):
                tasks.create_task(deletes(range(10 + first, 70, 3)))
        gone = await rows(shop.database, "SELECT item, order_id FROM hidden.gone")
        assert len(shown) > 30
        assert len(gone) > 30
        assert [(item, order) for item, order in gone if f"public.items/{item}=5" not in shown[order].split(", ")] == []
