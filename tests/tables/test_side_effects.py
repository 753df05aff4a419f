"""Side effects of a write are found, unless the rows that it reaches share its resources."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gateway.fencing.decision import Cascades, Enforcement
from gateway.fencing.resource import Template
from gateway.tables.catalog import side_effects
from gateway.tables.catalog.reach import Reach
from gateway.tables.catalog.references import Graph, Reference, Relation
from gateway.tables.catalog.side_effects import SideEffect
from gateway.tables.catalog.snapshot import RewriteRule, Snapshot, Table, Trigger
from gateway.tables.naming.plan import Rule
from tests.tables.samples import column, table

ORDERS = replace(table(column("id"), column("number"), name="orders"), oid=1)
ITEMS = replace(table(column("id"), column("order_id"), column("number"), name="items"), oid=2)
PARTS = replace(table(column("id"), column("item_id"), name="parts"), oid=3)
HIDDEN = Relation(9, "hidden", "crates", "r")


def relation(of: Table) -> Relation:
    return Relation(of.oid, of.schema, of.name, of.kind)


def reference(
    oid: int, source: Relation, target: Relation, column: str, *, deletes: str = "c", updates: str = "a"
) -> Reference:
    name = f"{source.name}_{column}_fkey"
    operators, collations = ("OPERATOR(pg_catalog.=)",), (None,)
    return Reference(oid, 0, name, source, target, (column,), ("id",), operators, collations, deletes, updates, ())


TO_ORDERS = reference(11, relation(ITEMS), relation(ORDERS), "order_id")
TO_ITEMS = reference(12, relation(PARTS), relation(ITEMS), "item_id")


DIRECT = Graph((TO_ORDERS,))
ALLOW = Rule(cascades=Cascades.ALLOW)


def found(tables: Sequence[Table], graph: Graph, default: Rule, rules: Mapping[str, str]) -> list[SideEffect]:
    known = {name: replace(default, template=Template.parse(text)) for name, text in rules.items()}
    snapshot = Snapshot({(each.schema, each.name): each for each in tables}, graph)
    effects = side_effects.find(snapshot, lambda schema, name: known.get(name, default))
    assert all(one.advice for one in effects)
    return effects


def texts(*tables: Table, graph: Graph = DIRECT, rules: Mapping[str, str] | None = None) -> Sequence[str]:
    return [f"{one.table}: {one.text}" for one in found(tables, graph, ALLOW, rules or {})]


@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        ({}, True),
        ({"items": "order/{order_id}"}, True),
        ({"orders": "order/{id}", "items": "order/{order_id}"}, False),
        ({"items": "public.orders/{order_id}"}, False),
        ({"orders": "order/{id}", "items": "order/{id}"}, True),
        ({"orders": "order/{number}", "items": "order/{order_id}"}, True),
        ({"orders": "order/{number}", "items": "order/{number}"}, True),
        ({"orders": "shop", "items": "shop"}, False),
        ({"orders": "shop", "items": "other"}, True),
        ({"orders": "order/{id}/{number}", "items": "order/{order_id}/{number}"}, True),
    ],
)
def test_a_cascade_is_a_side_effect_unless_both_tables_share_resources(*, rules: dict[str, str], warned: bool) -> None:
    assert bool(texts(ORDERS, ITEMS, rules=rules)) is warned


def test_a_cascade_is_described() -> None:
    (text,) = texts(ORDERS, ITEMS, graph=Graph((replace(TO_ORDERS, on_delete="n", on_update="c"),)))
    assert text.startswith("public.orders: writes reach rows of public.items by items_order_id_fkey")
    assert "(ON DELETE SET NULL, ON UPDATE CASCADE)" in text


def test_a_cascade_to_a_table_that_is_not_exposed_is_none() -> None:
    """The gateway writes only exposed tables, so no holder has a lock on rows of others."""
    assert texts(ORDERS) == []


def test_an_indirect_cascade_shares_no_resource() -> None:
    through = (
        reference(21, HIDDEN, relation(ORDERS), "order_id"),
        reference(22, relation(ITEMS), HIDDEN, "order_id"),
    )
    rules = {"orders": "order/{id}", "items": "order/{order_id}"}
    assert len(found([ORDERS, ITEMS], Graph(through), ALLOW, rules)) == 1


def test_a_cascade_that_clears_a_column_of_the_shared_name_is_a_side_effect() -> None:
    clears = Graph((replace(TO_ORDERS, on_delete="n"),))
    shared = {"orders": "order/{id}", "items": "order/{order_id}"}
    assert len(texts(ORDERS, ITEMS, graph=clears, rules=shared)) == 1
    assert len(texts(ORDERS, ITEMS, graph=clears, rules={"orders": "shop", "items": "shop"})) == 0


@pytest.mark.parametrize(
    ("default", "refused"),
    [
        (Rule(), True),
        (Rule(cascades=Cascades.CLAIM), True),
        (Rule(cascades=Cascades.ALLOW), False),
        (Rule(mode=Enforcement.OBSERVE), False),
    ],
)
def test_a_refused_effect_needs_no_operator(*, default: Rule, refused: bool) -> None:
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


def test_a_table_that_refers_to_itself_has_an_end() -> None:
    tree = Graph((reference(31, relation(ITEMS), relation(ITEMS), "order_id"),))
    nodes = reach(ITEMS, graph=tree)
    (step,) = nodes.steps("DELETE", frozenset())
    assert step.place is not None
    assert nodes.beyond(step.place) == (step,)
    assert nodes.relations("DELETE", frozenset()) == {ITEMS.oid}


@pytest.mark.parametrize(
    ("source", "writes"),
    [
        ("INSERT INTO items VALUES (1)", True),
        ('delete  from only public . "items"', True),
        ("Update public.items set x = 1", True),
        ("MERGE INTO items AS i", True),
        ("INSERT INTO other.items VALUES (1)", False),
        ("INSERT INTO items_2 VALUES (1)", False),
        ("SELECT * FROM items FOR UPDATE", False),
        ("IF TG_OP = 'UPDATE' THEN items := 1; END IF", False),
        ("-- UPDATE items\nNEW.x := 1;", False),
        ("/* DELETE FROM items */ NEW.x := 1;", False),
        ("EXECUTE 'something'", False),
        ("UPDATE orders SET number = 1 WHERE id = NEW.id", False),
    ],
)
def test_the_text_of_a_trigger_tells_which_table_it_writes(*, source: str, writes: bool) -> None:
    triggered = replace(ORDERS, triggers=(Trigger("t", "after", each_row=True, events=("delete",), source=source),))
    watched = reach(triggered, ITEMS, graph=Graph())
    assert list(watched.written_by_code("delete")) == (["the trigger t writes public.items"] if writes else [])
    assert list(watched.written_by_code("insert")) == []
    shared = reach(triggered, ITEMS, graph=Graph(), orders="order/{id}", items="order/{order_id}")
    assert list(shared.written_by_code("delete")) == [], "rows of both may have one resource"


@pytest.mark.parametrize(
    ("trigger", "warned"),
    [
        (Trigger("t", "after", each_row=True), True),
        (Trigger("t", "after", each_row=False, writes=False), True),
        (Trigger("t", "instead", each_row=True), True),
        (Trigger("t", "before", each_row=True), True),
        (Trigger("t", "before", each_row=True, writes=False), False),
    ],
)
def test_a_trigger_that_may_write_other_rows_is_a_side_effect(*, trigger: Trigger, warned: bool) -> None:
    assert bool(texts(replace(ITEMS, triggers=(trigger,)))) is warned


def test_a_rule_is_a_side_effect() -> None:
    assert len(texts(replace(ITEMS, rules=(RewriteRule("also"),), has_rules=True))) == 1


@pytest.mark.parametrize(
    ("rules", "warned"),
    [
        ({}, True),
        ({"orders_1": "public.orders/{id}"}, False),
        ({"orders": "order/{id}", "orders_1": "order/{id}"}, False),
        ({"orders": "order/{id}", "orders_1": "order/{number}"}, True),
    ],
)
def test_an_exposed_child_is_a_side_effect_unless_it_shares_resources(*, rules: dict[str, str], warned: bool) -> None:
    parent, child = replace(ORDERS, children=(("public", "orders_1"),)), replace(ORDERS, name="orders_1", oid=4)
    assert bool(texts(parent, child, rules=rules)) is warned
    assert texts(parent) == []
