"""Filters pin columns only to unambiguous values."""

import pytest

from gateway.tables.dialect.query import parse_query
from gateway.tables.naming.plan import pins, pins_exactly


@pytest.mark.parametrize(
    ("query", "pinned"),
    [
        (b"id=eq.5", {"id": ("5",)}),
        (b"id=eq.5&balance=gt.0", {"id": ("5",)}),
        (b"id=in.(1,2)", {"id": ("1", "2")}),
        (b"id=in.(1,2)&id=eq.1", {"id": ("1",)}),
        (b"id=eq.1&id=eq.2", {"id": ("1",)}),
        (b"id=not.eq.5", {}),
        (b"id=neq.5", {}),
        (b"id->a=eq.5", {}),
        (b"or=(id.eq.5)", {}),
        (b"id=gt.5", {}),
        (b"id=is.null", {}),
        (b"id", {}),
    ],
)
def test_only_plain_root_equality_pins(query: bytes, pinned: dict[str, tuple[str, ...]]) -> None:
    assert pins(parse_query(query).filters) == pinned


def test_put_needs_exactly_the_key() -> None:
    key = ("id",)
    assert pins_exactly(parse_query(b"id=eq.1").filters, key)
    for other in (
        b"",
        b"id=eq.1&owner=eq.x",
        b"id=gt.1",
        b"id=not.eq.1",
        b"id=in.(1)",
        b"and=(id.eq.1)",
        b"owner=eq.1",
    ):
        assert not pins_exactly(parse_query(other).filters, key)


def test_a_quantified_filter_pins_nothing() -> None:
    for query in (b"id=eq(any).{1}", b"id=eq(all).{1}", b"id=fts.1", b"or=(id.eq.1)", b"id=isdistinct.1"):
        assert pins(parse_query(query).filters) == {}
        assert not pins_exactly(parse_query(query).filters, ("id",))
