"""Which resources a write claims: never a guess, never more than it can verify."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.errors import ResourceMalformed, ResourceMismatch, ResourceUnderivable
from gateway.fencing.resource import Template
from gateway.tables.catalog import Table, Trigger
from gateway.tables.dialect import body
from gateway.tables.dialect.query import parse_query, pins, pins_exactly
from gateway.tables.dialect.request import Request, parse
from gateway.tables.naming import (
    MAX_RESOURCES,
    DerivedNames,
    Explicit,
    Naming,
    Rule,
    derive,
    naming,
    questions,
    resources,
)
from tests.tables.asking import ACCOUNTS, column, table


def test_only_plain_root_equality_pins(subtests: pytest.Subtests) -> None:
    for query, pinned in (
        (b"id=eq.5", {"id": ("5",)}), (b"id=eq.5&balance=gt.0", {"id": ("5",)}), (b"id=in.(1,2)", {"id": ("1", "2")}),
        (b"id=in.(1,2)&id=eq.1", {"id": ("1",)}), (b"id=eq.1&id=eq.2", {"id": ("1",)}), (b"id=not.eq.5", {}),
        (b"id=neq.5", {}), (b"id->a=eq.5", {}), (b"or=(id.eq.5)", {}), (b"id=gt.5", {}), (b"id=is.null", {}),
        (b"id=eq(any).{1}", {}), (b"id=fts.1", {}), (b"id=isdistinct.1", {}), (b"id", {}),
    ):  # fmt: skip
        with subtests.test(query=query):
            assert pins(parse_query(query).filters) == pinned


def test_put_needs_exactly_the_key() -> None:
    key = ("id",)
    assert pins_exactly(parse_query(b"id=eq.1").filters, key)
    for other in (
        b"", b"id=eq.1&owner=eq.x", b"id=gt.1", b"id=not.eq.1", b"id=in.(1)", b"and=(id.eq.1)", b"id=eq(any).{1}",
        b"id=eq(all).{1}", b"owner=eq.1",
    ):  # fmt: skip
        assert not pins_exactly(parse_query(other).filters, key)


PAIRS = table(column("a", "text"), column("b", "text"), name="pairs", key=("a", "b"))
ORDER = Rule(Template.parse("order/{owner}"))
CONSTANT = Rule(Template.parse("ledger"))
MERGE = "resolution=merge-duplicates"
WATCHED = replace(ACCOUNTS, triggers=(Trigger("watch", "before", each_row=True),))


def claim_of(
    method: str, query: bytes, content: bytes | None = None, *, of: Table = ACCOUNTS, rule: Rule | None = None,
    explicit: str | None = None, pairs: tuple[str, ...] = (), prefer: str = "",
) -> tuple[DerivedNames, Naming]:  # fmt: skip
    request: Request = parse(method, query, {b"prefer": prefer})
    named = naming(of, rule or Rule())
    payload = None if content is None else body.parse(content, request.query.columns)
    names = Explicit(pairs, paired=True) if pairs else Explicit((explicit,) if explicit else ())
    return derive(request, payload, named, names), named


def claimed(method: str, query: bytes, content: bytes | None = None, **more: Any) -> tuple[str, ...]:
    claim, named = claim_of(method, query, content, **more)
    assert questions(claim, named) == {}
    return resources(claim, named, {})


@pytest.mark.parametrize(
    ("method", "query", "content", "more", "expected"),
    [
        ("PATCH", b"id=eq.5", b'{"note":"x"}', {}, ["public.accounts/5"]),
        ("PATCH", b"id=eq.5&balance=gt.0", b'{"note":"x"}', {}, ["public.accounts/5"]),
        ("PATCH", b"id=eq.5", b'{"id":5}', {}, ["public.accounts/5"]),
        ("DELETE", b"id=eq.-5", None, {}, ["public.accounts/-5"]),
        ("DELETE", b"id=in.(10,9,9)", None, {}, ["public.accounts/10", "public.accounts/9"]),
        ("DELETE", b"id=in.()", None, {}, []),
        ("POST", b"", b'{"id":5}', {}, ["public.accounts/5"]),
        ("POST", b"", b'{"id":"5"}', {}, ["public.accounts/5"]),
        ("POST", b"", b'[{"id":7},{"id":6},{"id":6}]', {}, ["public.accounts/6", "public.accounts/7"]),
        ("POST", b"", b"[]", {}, []),
        ("PUT", b"id=eq.5", b'{"id":5}', {}, ["public.accounts/5"]),
        # parts of a composite key cannot run into each other
        ("DELETE", b"a=eq.x%2Fy&b=eq.z", None, {"of": PAIRS}, ["public.pairs/x%2Fy/z"]),
        ("DELETE", b"a=eq.x&b=eq.y%2Fz", None, {"of": PAIRS}, ["public.pairs/x/y%2Fz"]),
        ("DELETE", b"a=eq.x&b=in.(1,2)", None, {"of": PAIRS}, ["public.pairs/x/1", "public.pairs/x/2"]),
        # templates over another column, and over none
        ("PATCH", b"owner=eq.7", b'{"note":"x"}', {"rule": ORDER}, ["order/7"]),
        ("POST", b"", b'{"owner":"a b"}', {"rule": ORDER}, ["order/a%20b"]),
        ("PATCH", b"balance=gt.0", b'{"note":"x"}', {"rule": CONSTANT}, ["ledger"]),
        ("POST", b"", b"{}", {"rule": CONSTANT}, ["ledger"]),
        # an explicit resource is claimed as it stands
        ("PATCH", b"balance=gt.0", b'{"note":"x"}', {"explicit": "job/1"}, ["job/1"]),
        ("POST", b"", b"{}", {"explicit": "job/1"}, ["job/1"]),
        # trap 3: a write that moves its row claims both names
        ("PATCH", b"id=eq.1", b'{"id":2}', {}, ["public.accounts/1", "public.accounts/2"]),
        ("PATCH", b"id=eq.1", b'[{"id":"2"}]', {}, ["public.accounts/1", "public.accounts/2"]),
        ("PATCH", b"id=in.(1,2)", b'{"id":3}', {}, ["public.accounts/1", "public.accounts/2", "public.accounts/3"]),
        ("PATCH", b"id=eq.1&columns=note", b'{"id":2,"note":"x"}', {}, ["public.accounts/1"]),
        ("PATCH", b"id=eq.1", b"[]", {}, ["public.accounts/1"]),
        ("PATCH", b"a=in.(x,y)&b=eq.1", b'{"a":"z"}', {"of": PAIRS}, [f"public.pairs/{a}/1" for a in "xyz"]),
    ],
)
def test_each_write_claims_the_names_of_its_rows(
    method: str, query: bytes, content: bytes | None, more: dict[str, Any], expected: list[str]
) -> None:
    assert list(claimed(method, query, content, **more)) == expected


def test_what_does_not_name_its_row_is_refused(subtests: pytest.Subtests) -> None:
    for method, query, content in (
        ("PATCH", b"owner=eq.x", b'{"note":"x"}'), ("PATCH", b"id=gt.5", b'{"note":"x"}'),
        ("PATCH", b"id=not.eq.5", b'{"note":"x"}'), ("PATCH", b"or=(id.eq.5)", b'{"note":"x"}'),
        ("DELETE", b"id->x=eq.5", None), ("POST", b"", b'{"owner":"x"}'), ("POST", b"", b'{"id":null}'),
        ("POST", b"", b'{"id":[5]}'), ("POST", b"columns=owner", b'{"id":5,"owner":"x"}'),
        ("PATCH", b"balance=gt.0", b'{"id":2}'), ("PATCH", b"id=eq.1", b'{"id":null}'),
    ):  # fmt: skip
        with subtests.test(method=method, query=query), pytest.raises(ResourceUnderivable):
            claimed(method, query, content)


def test_rows_whose_names_nothing_has_shown_are_looked_at_before(subtests: pytest.Subtests) -> None:
    """Traps 2 and 7: what RETURNING shows is the name a row has afterwards, and a trigger may have set that too."""
    for method, query, content, more, guarded in (
        ("PATCH", b"balance=gt.0", b'{"note":"x"}', {"explicit": "job/1"}, True),
        ("PATCH", b"id=eq.1", b'{"note":"x"}', {"explicit": "public.accounts/1"}, True),
        ("PATCH", b"balance=gt.0", b'{"note":"x"}', {"pairs": ("job/1", "job/2")}, True),
        ("PATCH", b"id=eq.1", b'{"note":"x"}', {"pairs": ("public.accounts/1",)}, False),
        ("PATCH", b"id=eq.1", b'{"note":"x"}', {}, False),
        ("PATCH", b"balance=gt.0", b'{"note":"x"}', {"rule": CONSTANT, "explicit": "ledger"}, False),
        ("DELETE", b"balance=gt.0", None, {"explicit": "job/1"}, False),
        ("POST", b"", b'{"id":1}', {"explicit": "public.accounts/1"}, False),
        ("POST", b"", b'{"id":1}', {"prefer": MERGE}, False),
        ("POST", b"on_conflict=owner", b'{"id":1,"owner":"x"}', {"prefer": MERGE}, True),
        ("POST", b"", b'{"id":1}', {"prefer": MERGE, "of": WATCHED}, True),
        ("PUT", b"id=eq.1", b'{"id":1}', {"of": WATCHED}, True),
        ("PATCH", b"id=eq.1", b'{"note":"x"}', {"of": WATCHED}, False),
    ):
        with subtests.test(method=method, query=query):
            claim, _ = claim_of(method, query, content, **more)
            assert claim.guarded is guarded


class TestPairs:
    """Several resources, each with a token of its own."""

    @pytest.mark.parametrize(
        ("method", "query", "content"),
        [
            ("PATCH", b"id=eq.5", b'{"note":"x"}'), ("PATCH", b"id=eq.5", b'{"id":6}'),
            ("PATCH", b"balance=gt.0", b'{"id":6}'), ("DELETE", b"id=in.(5,6)", None),
            ("DELETE", b"balance=gt.0", None), ("POST", b"", b'[{"id":5},{"id":6}]'), ("POST", b"", b'{"owner":"x"}'),
            ("POST", b"", b"[]"), ("PUT", b"id=eq.5", b'{"id":5}'),
        ],
    )  # fmt: skip
    def test_all_of_them_are_claimed(self, method: str, query: bytes, content: bytes | None) -> None:
        pairs = ("public.accounts/6", "job/1", "public.accounts/5")
        assert claimed(method, query, content, pairs=pairs) == tuple(sorted(pairs))

    def test_an_upsert_must_know_the_whole_name(self) -> None:
        with pytest.raises(ResourceUnderivable):
            claimed("POST", b"", b'{"id":1}', rule=ORDER, pairs=("order/7",), prefer=MERGE)

    def test_types_without_canonical_texts_are_left_to_the_touched_rows(self) -> None:
        odd = table(column("id", "double precision"))
        for method, query, content in (("DELETE", b"id=eq.5", None), ("POST", b"", b'{"id":5}')):
            assert claimed(method, query, content, of=odd, pairs=("public.accounts/5",)) == ("public.accounts/5",)


@pytest.mark.parametrize("content", [b'{"id":1}', b'[{"id":1,"owner":"8"},{"id":2,"owner":"7"}]'])
def test_an_upsert_must_know_the_whole_name(content: bytes) -> None:
    """It never overwrites columns of the name, so what it sends there must be what is claimed."""
    with pytest.raises((ResourceUnderivable, ResourceMismatch)):
        claimed("POST", b"", content, rule=ORDER, explicit="order/7", prefer="resolution=merge-duplicates")


def test_types_whose_equality_is_not_textual_name_nothing(subtests: pytest.Subtests) -> None:
    for key in (
        column("id", "double precision"), column("id", "numeric"), column("id", "citext"), column("id", "money"),
        column("id", "interval"), column("id", "jsonb", is_json=True), column("id", "text", deterministic=False),
    ):  # fmt: skip
        with subtests.test(key=key):
            odd = table(key)
            with pytest.raises(ResourceUnderivable, match="equal values can have different texts"):
                claimed("DELETE", b"id=eq.5", of=odd)
            assert claimed("DELETE", b"id=eq.5", of=odd, explicit="public.accounts/5") == ("public.accounts/5",)


def test_only_the_database_brings_values_into_canonical_form(subtests: pytest.Subtests) -> None:
    for type_, value, asked in (
        ("bigint", "5", False), ("bigint", "05", True), ("bigint", " 5 ", True), ("bigint", "+5", True),
        ("bigint", "-0", True), ("bigint", "٥", True), ("uuid", "6f1c3f0e-0b1a-4c8e-9f0a-111111111111", False),
        ("uuid", "6F1C3F0E-0B1A-4C8E-9F0A-111111111111", True), ("text", "anything / at all", False),
        ("date", "2024-01-02", False), ("date", "2024-1-2", True), ("boolean", "true", False), ("boolean", "t", True),
        ("bpchar", "ab", True), ("bytea", "\\x00ff", True),
        ("timestamp with time zone", "2024-01-02 03:04:05+00", True), ("inet", "10.0.0.1", True),
    ):  # fmt: skip
        with subtests.test(type=type_):
            named = naming(table(column("id", type_)), Rule())
            assert bool(questions(DerivedNames(rows=((value,),)), named)) is asked


def test_canonical_forms_go_into_the_name_as_they_come() -> None:
    named = naming(ACCOUNTS, Rule())
    assert resources(DerivedNames(rows=(("05",), ("5",))), named, {("id", "05"): "5"}) == ("public.accounts/5",)


def test_a_name_that_grows_too_long_is_malformed() -> None:
    with pytest.raises(ResourceMalformed):
        claimed("PATCH", b"owner=eq." + b"x" * 600, b'{"note":"x"}', rule=ORDER)


def test_one_write_claims_a_bounded_number_of_resources() -> None:
    many = b"id=in.(" + b",".join(b"%d" % number for number in range(MAX_RESOURCES + 1)) + b")"
    with pytest.raises(ResourceUnderivable, match="at most"):
        claimed("DELETE", many)
    with pytest.raises(ResourceUnderivable, match="at most"):
        claimed("DELETE", b"a=in.(" + b"1," * 99 + b"2)&b=in.(" + b"1," * 99 + b"2)", of=PAIRS)


def test_tables_that_name_nothing() -> None:
    with pytest.raises(ResourceUnderivable, match="no primary key"):
        naming(table(column("id"), key=()), Rule())
    with pytest.raises(ResourceUnderivable, match="does not have"):
        naming(ACCOUNTS, Rule(Template.parse("job/{nope}")))


def test_schema_and_table_are_escaped() -> None:
    odd = table(column("id"), name="my table")
    assert naming(odd, Rule()).template.join(["1"]) == "public.my%20table/1"
    assert isinstance(naming(odd, Rule()), Naming)
