"""What a write changes beyond its own rows is found, unless the rows it reaches go by the very same name."""

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
def test_a_cascade_is_warned_of_unless_both_ends_go_by_one_name(*, rules: dict[str, str], warned: bool) -> None:
    assert bool(texts(ORDERS, ITEMS, **rules)) is warned


def test_a_cascade_is_described() -> None:
    (text,) = texts(replace(ORDERS, cascades=(replace(CASCADE, on_delete="n", on_update="c"),)), ITEMS)
    assert text.startswith("public.orders: writes reach rows of public.items by items_order_fkey")
    assert "(ON DELETE SET NULL, ON UPDATE CASCADE)" in text


def test_rows_without_a_fence_need_none() -> None:
    """Nobody can write a table that is not exposed, so nobody can hold a lock on its rows."""
    assert texts(ORDERS) == []


def test_what_is_reached_through_tables_in_between_has_no_name_in_common() -> None:
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
def test_triggers_that_may_write_elsewhere(*, trigger: Trigger, warned: bool) -> None:
    assert bool(texts(replace(ITEMS, triggers=(trigger,)))) is warned


def test_rules() -> None:
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
def test_children_under_names_of_their_own(*, rules: dict[str, str], warned: bool) -> None:
    parent = replace(ORDERS, cascades=(), children=(("public", "orders_1"),))
    child = replace(ORDERS, name="orders_1", cascades=())
    assert bool(texts(parent, child, **rules)) is warned
    assert texts(parent) == []
