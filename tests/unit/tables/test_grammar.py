"""The query-string grammar: what is read, and that everything else is PGRST100 or PGRST127, never a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.grammar import (
    MAX_DEPTH,
    Condition,
    Field,
    Logic,
    Order,
    Selected,
    parse_field,
    parse_filter,
    parse_names,
    parse_order,
    parse_select,
    parse_tree,
)


def condition(name: str, operator: str, value: str | tuple[str, ...], *, negated: bool = False) -> Condition:
    return Condition(Field(name), operator, value, negated)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("id", "eq.5", condition("id", "eq", "5")),
        ("id", "eq.", condition("id", "eq", "")),
        ("id", "not.eq.5", condition("id", "eq", "5", negated=True)),
        ("id", "eq.a.b,(c)", condition("id", "eq", "a.b,(c)")),
        ("name", "like.*an*", condition("name", "like", "*an*")),
        ("id", "in.(1,2)", condition("id", "in", ("1", "2"))),
        ("id", "in.()", condition("id", "in", ())),
        ("id", 'in.("a,b","c\\"d",e)', condition("id", "in", ("a,b", 'c"d', "e"))),
        ("id", "not.in.(1)", condition("id", "in", ("1",), negated=True)),
        ("note", "is.NULL", condition("note", "is", "null")),
        ("note", "not.is.null", condition("note", "is", "null", negated=True)),
        ("tags", "cs.{a,b}", condition("tags", "cs", "{a,b}")),
        ('"odd name"', "eq.1", condition("odd name", "eq", "1")),
        ("in-ner", "eq.1", condition("in-ner", "eq", "1")),
        ("größe", "eq.1", condition("größe", "eq", "1")),
        ("extra->a->>b", "eq.1", Condition(Field("extra", (("->", "a"), ("->>", "b"))), "eq", "1")),
        ("extra->0", "eq.1", Condition(Field("extra", (("->", 0),)), "eq", "1")),
    ],
)
def test_filters(key: str, text: str, expected: Condition) -> None:
    assert parse_filter(key, text) == expected


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("id", "5", "PGRST100"),
        ("id", "", "PGRST100"),
        ("id", "almost.5", "PGRST100"),
        ("id", "not.5", "PGRST100"),
        ("id", "in.1,2", "PGRST100"),
        ("id", "in.(1,2", "PGRST100"),
        ("id", "in.(1,2)x", "PGRST100"),
        ("id", "is.5", "PGRST100"),
        ("", "eq.5", "PGRST100"),
        ('"id', "eq.5", "PGRST100"),
        ("id;drop", "eq.5", "PGRST100"),
        ("id->", "eq.5", "PGRST100"),
        ("films.id", "eq.5", "PGRST127"),
        ("id", "eq(any).{5}", "PGRST127"),
        ("body", "fts(english).cat", "PGRST127"),
    ],
)
def test_unreadable_filters(key: str, text: str, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_filter(key, text)
    assert (caught.value.code, caught.value.status) == (code, 400)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("or", "(id.eq.1,id.eq.2)", Logic("or", (condition("id", "eq", "1"), condition("id", "eq", "2")))),
        ("not.and", "(id.eq.1)", Logic("and", (condition("id", "eq", "1"),), negated=True)),
        (
            "and",
            '(a.not.in.(1,2),not.or(b.eq."x,y)",c.is.null))',
            Logic(
                "and",
                (
                    condition("a", "in", ("1", "2"), negated=True),
                    Logic("or", (condition("b", "eq", "x,y)"), condition("c", "is", "null")), negated=True),
                ),
            ),
        ),
        (
            "and",
            "(tags.cs.{a,b},id.gt.1)",
            Logic("and", (condition("tags", "cs", "{a,b}"), condition("id", "gt", "1"))),
        ),
    ],
)
def test_trees(key: str, text: str, expected: Logic) -> None:
    assert parse_tree(key, text) == expected


@pytest.mark.parametrize("text", ["", "()", "id.eq.1", "(id.eq.1", "(id.eq.1))", "(id.huh.1)", "(id)", "(,)"])
def test_unreadable_trees(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse"):
        parse_tree("or", text)


def test_nesting_is_bounded() -> None:
    deep = "(" + "and(" * MAX_DEPTH + "id.eq.1" + ")" * MAX_DEPTH + ")"
    with pytest.raises(DialectError) as caught:
        parse_tree("and", deep)
    assert caught.value.code == "PGRST100"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("*", ()),
        ("id, owner", (Selected(Field("id")), Selected(Field("owner")))),
        ("*,id", (Selected(None), Selected(Field("id")))),
        ("n:owner", (Selected(Field("owner"), alias="n"),)),
        ("id::text", (Selected(Field("id"), cast="text"),)),
        ("n:id::numeric(10,2)", (Selected(Field("id"), alias="n", cast="numeric(10,2)"),)),
        ("id::text[]", (Selected(Field("id"), cast="text[]"),)),
        ('"a b":extra->>"c d"', (Selected(Field("extra", (("->>", "c d"),)), alias="a b"),)),
    ],
)
def test_select(text: str, expected: tuple[Selected, ...]) -> None:
    assert parse_select(text) == expected


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("id,", "PGRST100"),
        ("id::", "PGRST100"),
        ("id::int4;drop", "PGRST100"),
        ("id::Robert'); DROP", "PGRST100"),
        ("directors(name)", "PGRST127"),
        ("d:directors!inner(name)", "PGRST127"),
        ("...directors(name)", "PGRST127"),
        ("balance.sum()", "PGRST127"),
        ("count()", "PGRST127"),
    ],
)
def test_unreadable_select(text: str, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_select(text)
    assert caught.value.code == code


def test_order() -> None:
    assert parse_order("id.desc.nullslast,owner,extra->>a.asc.nullsfirst") == (
        Order(Field("id"), descending=True, nulls="last"),
        Order(Field("owner")),
        Order(Field("extra", (("->>", "a"),)), nulls="first"),
    )


@pytest.mark.parametrize("text", ["id.down", "id,", "(id)", "rel(id)"])
def test_unreadable_order(text: str) -> None:
    with pytest.raises(DialectError, match=r"failed to parse|not implemented"):
        parse_order(text)


def test_names_come_sorted_because_clients_send_them_in_random_order() -> None:
    assert parse_names('"b c",a', "columns") == ("a", "b c")


@given(text=st.text(max_size=60))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_field, parse_select, parse_order):
        try:
            parse(text)
        except DialectError as error:
            assert error.code in ("PGRST100", "PGRST127")  # noqa: PT017 - most texts are refused, some are not


@given(text=st.text('()"\\,.{}noteqandori.1s', max_size=60))
def test_no_text_breaks_filters_and_trees(text: str) -> None:
    for parse in (lambda: parse_filter("id", text), lambda: parse_tree("or", text)):
        try:
            parse()
        except DialectError as error:
            assert error.code in ("PGRST100", "PGRST127")  # noqa: PT017 - as above
