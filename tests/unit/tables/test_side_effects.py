"""Side effects of a write are found, unless the rows that it reaches share its resources."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gateway.fencing.resource import Template
from gateway.tables.catalog import side_effects
from gateway.tables.catalog.snapshot import Cascade, Snapshot, Table, Trigger
from gateway.tables.naming.plan import Rule
from tests.unit.tables.samples import column, table

CASCADE = Cascade("items_order_fkey", "public", "items", ("order_id",), ("id",), "c", "a")
ORDERS = replace(table(column("id"), column("number"), name="orders"), cascades=(CASCADE,))
ITEMS = table(column("id"), column("order_id"), column("number"), name="items")


def texts(*tables: Table, **rules: str) -> Sequence[str]:
    known = {name: Rule(Template.parse(text)) for name, text in rules.items()}
    snapshot = Snapshot({(each.schema, each.name): each for each in tables})
    found = side_effects.find(snapshot, lambda schema, name: known.get(name, Rule()))
    assert all(one.advice for one in found)
    return [f"{one.table}: {one.text}" for one in found]


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
    assert bool(texts(ORDERS, ITEMS, **rules)) is warned


def test_a_cascade_is_described() -> None:
    (text,) = texts(replace(ORDERS, cascades=(replace(CASCADE, on_delete="n", on_update="c"),)), ITEMS)
    assert text.startswith("public.orders: writes reach rows of public.items by items_order_fkey")
    assert "(ON DELETE SET NULL, ON UPDATE CASCADE)" in text


def test_a_cascade_to_a_table_that_is_not_exposed_is_none() -> None:
    """The gateway writes only exposed tables, so no holder has a lock on rows of others."""
    assert texts(ORDERS) == []


def test_an_indirect_cascade_shares_no_resource() -> None:
    through = replace(ORDERS, cascades=(replace(CASCADE, direct=False),))
    assert len(texts(through, ITEMS, orders="order/{id}", items="order/{order_id}")) == 1


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
    assert len(texts(replace(ITEMS, rules=("also",), has_rules=True))) == 1


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
    parent = replace(ORDERS, cascades=(), children=(("public", "orders_1"),))
    child = replace(ORDERS, name="orders_1", cascades=())
    assert bool(texts(parent, child, **rules)) is warned
    assert texts(parent) == []
