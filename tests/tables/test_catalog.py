"""The snapshot of the catalog has what the table plane needs, and the side effects of writes are found in it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.db import catalog
from gateway.db.database import Database
from gateway.fencing.decision import Cascades, Enforcement
from gateway.fencing.resource import Template
from gateway.tables.catalog import ForeignKey, Graph, Reference, Relation, RewriteRule, Snapshot, Table, Trigger
from gateway.tables.naming import Rule
from gateway.tables.side_effects import Reach, SideEffect, find_side_effects
from tests.tables.asking import change, column, table

DDL = """
CREATE SCHEMA shop; CREATE SCHEMA hidden;
CREATE TYPE shop.state AS ENUM ('new', 'sent');
CREATE TABLE shop.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, region int NOT NULL, state shop.state DEFAULT 'new',
    parent bigint REFERENCES shop.orders ON DELETE SET NULL, twice bigint GENERATED ALWAYS AS (region * 2) STORED,
    UNIQUE (id, region)
);
COMMENT ON TABLE shop.orders IS 'What was ordered';
COMMENT ON COLUMN shop.orders.state IS 'How far it is';
CREATE TABLE shop.items (
    id bigint PRIMARY KEY, order_id bigint, region int,
    CONSTRAINT of_order FOREIGN KEY (region, order_id) REFERENCES shop.orders (region, id) ON UPDATE CASCADE
);
CREATE TABLE shop.bills (order_id bigint PRIMARY KEY REFERENCES shop.orders);
CREATE TABLE hidden.parcels (order_id bigint PRIMARY KEY REFERENCES shop.orders ON DELETE CASCADE);
CREATE TABLE shop.labels (id int PRIMARY KEY, parcel bigint REFERENCES hidden.parcels ON DELETE CASCADE);
CREATE TABLE shop.logs (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE shop.logs_1 PARTITION OF shop.logs FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE shop.notes (id int PRIMARY KEY, log int, day date,
    FOREIGN KEY (log, day) REFERENCES shop.logs ON DELETE CASCADE);
CREATE VIEW shop.recent AS SELECT id, state FROM shop.orders;
CREATE VIEW shop.counted AS SELECT count(*) AS n FROM shop.orders;
CREATE FUNCTION shop.loud() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.region := 1; RETURN NEW; END';
CREATE FUNCTION shop.busy() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO hidden.parcels VALUES (1); RETURN NEW; END';
CREATE FUNCTION fencing.look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER a_loud BEFORE INSERT ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.loud();
CREATE TRIGGER b_busy AFTER UPDATE ON shop.items FOR EACH STATEMENT EXECUTE FUNCTION shop.busy();
CREATE TRIGGER c_off AFTER UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.busy();
ALTER TABLE shop.items DISABLE TRIGGER c_off;
CREATE TRIGGER d_look BEFORE INSERT ON shop.bills FOR EACH STATEMENT EXECUTE FUNCTION fencing.look();
CREATE TRIGGER e_emptied AFTER TRUNCATE ON shop.bills FOR EACH STATEMENT EXECUTE FUNCTION shop.busy();
CREATE RULE also AS ON DELETE TO shop.notes DO ALSO SELECT 1;
ALTER TABLE shop.notes ENABLE ROW LEVEL SECURITY;
"""


@pytest.fixture
async def shop(database: Database) -> dict[str, Table]:
    await change(database, DDL)
    snapshot = Snapshot.from_rows(await catalog.relations(database, ["shop"]), await catalog.references(database))
    assert {schema for schema, _ in snapshot.tables} == {"shop"}
    found = {name: table for (_, name), table in snapshot.tables.items()}
    references(snapshot.graph, found)
    return found


async def test_a_snapshot_has_all_of_the_catalog(shop: dict[str, Table]) -> None:
    """One test, because each database costs more than what is looked at in it."""
    orders, items = shop["orders"], shop["items"]
    columns(orders)
    keys(shop)
    loud, busy = (
        "BEGIN NEW.region := 1; RETURN NEW; END",
        "BEGIN INSERT INTO hidden.parcels VALUES (1); RETURN NEW; END",
    )
    assert items.triggers == (
        Trigger("a_loud", "before", each_row=True, writes=False, events=("insert",), source=loud),
        Trigger("b_busy", "after", each_row=False, writes=True, events=("update",), source=busy),
    )
    assert (items.has_statement_triggers, items.has_row_triggers) == (True, True)
    assert (orders.has_statement_triggers, orders.has_row_triggers) == (False, False)
    assert shop["bills"].triggers == ()
    (also,) = shop["notes"].rules
    assert (also.name, also.events, "DO  SELECT 1" in also.source) == ("also", ("delete",), True)
    assert (shop["notes"].has_rules, shop["notes"].row_security) == (True, True)
    logs = shop["logs"]
    assert (logs.kind, logs.children, logs.has_row_triggers) == ("p", (("shop", "logs_1"),), True)
    views = shop["recent"], shop["counted"]
    assert [(view.insertable, view.changeable, view.deletable) for view in views] == [(True,) * 3, (False,) * 3]
    assert all(view.runs_code_when_read and view.has_statement_triggers for view in views)
    assert not orders.runs_code_when_read


def references(graph: Graph, shop: dict[str, Table]) -> None:
    def referring(table: Table) -> list[tuple[str, str, str, str]]:
        found = graph.referring_to(table.oid)
        return sorted((one.name, one.source.name, one.on_delete, one.on_update) for one in found)

    orders = [
        ("of_order", "items", "a", "c"), ("orders_parent_fkey", "orders", "n", "a"),
        ("parcels_order_id_fkey", "parcels", "c", "a"),
    ]  # fmt: skip
    assert referring(shop["orders"]) == orders
    (of_order,) = (one for one in graph.references if one.name == "of_order")
    assert (of_order.columns, of_order.target_columns) == (("region", "order_id"), ("region", "id"))
    assert (of_order.operators[0], of_order.collations) == ("OPERATOR(pg_catalog.=)", (None, None))
    assert referring(shop["logs"]) == [("notes_log_day_fkey", "notes", "c", "a")], "once, not for each partition"
    assert [source for _, source, *_ in referring(shop["logs_1"])] == ["notes"]
    assert graph.family(shop["logs"].oid) == [shop["logs"].oid, shop["logs_1"].oid]
    assert referring(shop["recent"]) == orders, "a view writes the table behind it"
    (labels,) = (one for one in graph.references if one.source.name == "labels")
    assert labels.target.schema == "hidden"


def columns(orders: Table) -> None:
    assert (orders.description, orders.columns["state"].description) == ("What was ordered", "How far it is")
    assert [name for name, column in orders.columns.items() if column.nullable] == ["state", "parent", "twice"]
    state = orders.columns["state"]
    assert (state.type, state.default, state.is_enum) == ("shop.state", "'new'::shop.state", True)
    assert orders.columns["id"].default == "nextval('shop.orders_id_seq'::regclass)"
    assert orders.columns["twice"].generated


def keys(shop: dict[str, Table]) -> None:
    orders, items = shop["orders"], shop["items"]
    assert (orders.primary_key, orders.unique_keys) == (("id",), (("id", "region"),))
    assert orders.oid
    assert orders.primary_key_index
    assert items.foreign_keys == (
        ForeignKey("of_order", ("region", "order_id"), "shop", "orders", ("region", "id"), unique=False),
    )
    (bill,) = shop["bills"].foreign_keys
    assert (bill.unique, bill.target_table) == (True, "orders")
    assert [(key.name, key.target_table) for key in shop["notes"].foreign_keys] == [("notes_log_day_fkey", "logs")]
    assert [key.target_schema for key in shop["labels"].foreign_keys] == ["hidden"]


ORDERS = replace(table(column("id"), column("number"), name="orders"), oid=1)

ITEMS = replace(table(column("id"), column("order_id"), column("number"), name="items"), oid=2)

PARTS = replace(table(column("id"), column("item_id"), name="parts"), oid=3)

HIDDEN = Relation(9, "hidden", "crates", "r")


def relation(of: Table) -> Relation:
    return Relation(of.oid, of.schema, of.name, of.kind)


def foreign_key(
    oid: int, source: Relation, target: Relation, column: str, *, deletes: str = "c", updates: str = "a"
) -> Reference:
    name = f"{source.name}_{column}_fkey"
    operators, collations = ("OPERATOR(pg_catalog.=)",), (None,)
    return Reference(oid, 0, name, source, target, (column,), ("id",), operators, collations, deletes, updates, ())


TO_ORDERS = foreign_key(11, relation(ITEMS), relation(ORDERS), "order_id")

TO_ITEMS = foreign_key(12, relation(PARTS), relation(ITEMS), "item_id")

DIRECT = Graph((TO_ORDERS,))

ALLOW = Rule(cascades=Cascades.ALLOW)


def found(tables: Sequence[Table], graph: Graph, default: Rule, rules: Mapping[str, str]) -> list[SideEffect]:
    known = {name: replace(default, template=Template.parse(text)) for name, text in rules.items()}
    snapshot = Snapshot({(each.schema, each.name): each for each in tables}, graph)
    effects = find_side_effects(snapshot, lambda schema, name: known.get(name, default))
    assert all(one.advice for one in effects)
    return effects


def texts(*tables: Table, graph: Graph = DIRECT, rules: Mapping[str, str] | None = None) -> Sequence[str]:
    return [f"{one.table}: {one.text}" for one in found(tables, graph, ALLOW, rules or {})]


def test_a_cascade_is_a_side_effect_unless_both_tables_share_resources(subtests: pytest.Subtests) -> None:
    for rules, warned in (
        ({}, True), ({"items": "order/{order_id}"}, True),
        ({"orders": "order/{id}", "items": "order/{order_id}"}, False), ({"items": "public.orders/{order_id}"}, False),
        ({"orders": "order/{id}", "items": "order/{id}"}, True),
        ({"orders": "order/{number}", "items": "order/{order_id}"}, True),
        ({"orders": "order/{number}", "items": "order/{number}"}, True), ({"orders": "shop", "items": "shop"}, False),
        ({"orders": "shop", "items": "other"}, True),
        ({"orders": "order/{id}/{number}", "items": "order/{order_id}/{number}"}, True),
    ):  # fmt: skip
        with subtests.test(rules=rules):
            assert bool(texts(ORDERS, ITEMS, rules=rules)) is warned


def test_a_cascade_is_described() -> None:
    (text,) = texts(ORDERS, ITEMS, graph=Graph((replace(TO_ORDERS, on_delete="n", on_update="c"),)))
    assert text.startswith("public.orders: writes reach rows of public.items by items_order_id_fkey")
    assert "(ON DELETE SET NULL, ON UPDATE CASCADE)" in text
    assert texts(ORDERS) == [], "the gateway writes only exposed tables, so no holder has a lock on rows of others"


def test_an_indirect_cascade_shares_no_resource() -> None:
    through = (
        foreign_key(21, HIDDEN, relation(ORDERS), "order_id"),
        foreign_key(22, relation(ITEMS), HIDDEN, "order_id"),
    )
    rules = {"orders": "order/{id}", "items": "order/{order_id}"}
    assert len(found([ORDERS, ITEMS], Graph(through), ALLOW, rules)) == 1


def test_a_cascade_that_clears_a_column_of_the_shared_name_is_a_side_effect() -> None:
    clears = Graph((replace(TO_ORDERS, on_delete="n"),))
    shared = {"orders": "order/{id}", "items": "order/{order_id}"}
    assert len(texts(ORDERS, ITEMS, graph=clears, rules=shared)) == 1
    assert len(texts(ORDERS, ITEMS, graph=clears, rules={"orders": "shop", "items": "shop"})) == 0


def test_a_refused_effect_needs_no_operator(subtests: pytest.Subtests) -> None:
    for default, refused in (
        (Rule(), True), (Rule(cascades=Cascades.CLAIM), True), (Rule(cascades=Cascades.ALLOW), False),
        (Rule(mode=Enforcement.OBSERVE), False),
    ):  # fmt: skip
        with subtests.test(default=default):
            (effect,) = found([ORDERS, ITEMS], DIRECT, default, {})
            assert effect.refused is refused


def reach(*tables: Table, graph: Graph, **rules: str) -> Reach:
    known = {name: Rule(Template.parse(text)) for name, text in rules.items()}
    snapshot = Snapshot({(each.schema, each.name): each for each in tables}, graph)
    return Reach(snapshot, tables[0], lambda schema, name: known.get(name, Rule()))


def test_only_a_delete_or_a_new_key_reaches_rows() -> None:
    graph = Graph((replace(TO_ORDERS, on_update="c"), TO_ITEMS))
    orders = reach(ORDERS, ITEMS, PARTS, graph=graph)
    assert orders.concerns("DELETE", frozenset())
    assert orders.concerns("PATCH", frozenset(("id",)))
    assert not orders.concerns("PATCH", frozenset(("number",)))
    assert not reach(PARTS, ITEMS, graph=graph).concerns("DELETE", frozenset())


def test_steps_go_on_through_rows_of_the_same_resource() -> None:
    rules = {"orders": "order/{id}", "items": "order/{order_id}"}
    graph = Graph((TO_ORDERS, TO_ITEMS))
    (step,) = reach(ORDERS, ITEMS, PARTS, graph=graph, **rules).steps("DELETE", frozenset())
    assert (step.relation.name, step.decides) == ("items", False)
    assert reach(ORDERS, ITEMS, graph=graph, **rules).steps("DELETE", frozenset()) == (), "nothing is behind them"


def test_the_text_of_a_trigger_tells_which_table_it_writes(subtests: pytest.Subtests) -> None:
    for source, writes in (
        ("INSERT INTO items VALUES (1)", True), ('delete  from only public . "items"', True),
        ("Update public.items set x = 1", True), ("MERGE INTO items AS i", True),
        ("INSERT INTO other.items VALUES (1)", False), ("INSERT INTO items_2 VALUES (1)", False),
        ("SELECT * FROM items FOR UPDATE", False), ("IF TG_OP = 'UPDATE' THEN items := 1; END IF", False),
        ("-- UPDATE items\nNEW.x := 1;", False), ("/* DELETE FROM items */ NEW.x := 1;", False),
        ("EXECUTE 'something'", False), ("UPDATE orders SET number = 1 WHERE id = NEW.id", False),
    ):  # fmt: skip
        with subtests.test(source=source):
            triggered = replace(
                ORDERS, triggers=(Trigger("t", "after", each_row=True, events=("delete",), source=source),)
            )
            watched = reach(triggered, ITEMS, graph=Graph())
            assert list(watched.written_by_code("delete")) == (["the trigger t writes public.items"] if writes else [])
            assert list(watched.written_by_code("insert")) == []
            shared = reach(triggered, ITEMS, graph=Graph(), orders="order/{id}", items="order/{order_id}")
            assert list(shared.written_by_code("delete")) == [], "rows of both may have one resource"


def test_a_trigger_or_rule_that_may_write_other_rows_is_a_side_effect(subtests: pytest.Subtests) -> None:
    for trigger, warned in (
        (Trigger("t", "after", each_row=True), True), (Trigger("t", "after", each_row=False, writes=False), True),
        (Trigger("t", "instead", each_row=True), True), (Trigger("t", "before", each_row=True), True),
        (Trigger("t", "before", each_row=True, writes=False), False),
    ):  # fmt: skip
        with subtests.test(trigger=trigger):
            assert bool(texts(replace(ITEMS, triggers=(trigger,)))) is warned
            assert len(texts(replace(ITEMS, rules=(RewriteRule("also"),), has_rules=True))) == 1


def test_an_exposed_child_is_a_side_effect_unless_it_shares_resources(subtests: pytest.Subtests) -> None:
    for rules, warned in (
        ({}, True), ({"orders_1": "public.orders/{id}"}, False),
        ({"orders": "order/{id}", "orders_1": "order/{id}"}, False),
        ({"orders": "order/{id}", "orders_1": "order/{number}"}, True),
    ):  # fmt: skip
        with subtests.test(rules=rules):
            parent, child = replace(ORDERS, children=(("public", "orders_1"),)), replace(ORDERS, name="orders_1", oid=4)
            assert bool(texts(parent, child, rules=rules)) is warned
            assert texts(parent) == []
