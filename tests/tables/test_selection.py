"""The shape of an answer: columns, embedded tables, orders, names."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import MAX_TERMS, Embedded, Field, Order, Selected
from gateway.tables.dialect.selection import Selection, parse_names, parse_order, parse_select

ID = Selected(Field("id"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("*", ()),
        ("id, owner", (ID, Selected(Field("owner")))),
        ("*,id", (Selected(None), ID)),
        ("n:owner", (Selected(Field("owner"), alias="n"),)),
        ("id::text", (Selected(Field("id"), cast="text"),)),
        ("id::TEXT", (Selected(Field("id"), cast="TEXT"),)),
        ("n:id::numeric(10,2)", (Selected(Field("id"), alias="n", cast="numeric(10,2)"),)),
        ("id::text[]", (Selected(Field("id"), cast="text[]"),)),
        ("id::double precision", (Selected(Field("id"), cast="double precision"),)),
        ('"a b":extra->>"c d"', (Selected(Field("extra", (("->>", "c d"),)), alias="a b"),)),
        ("a:extra->b->0::text", (Selected(Field("extra", (("->", "b"), ("->", 0))), alias="a", cast="text"),)),
        ("count", (Selected(Field("count")),)),
        ('"count()"', (Selected(Field("count()")),)),
    ],
)
def test_columns(text: str, expected: tuple[Selected, ...]) -> None:
    assert parse_select(text) == Selection(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rel(id)", Embedded("rel", (ID,))),
        ("rel(*)", Embedded("rel", (Selected(None),))),
        ("rel()", Embedded("rel", ())),
        ("a:rel(id, n:id::text)", Embedded("rel", (ID, Selected(Field("id"), "n", "text")), alias="a")),
        ("rel!hint(id)", Embedded("rel", (ID,), hint="hint")),
        ("rel!inner(id)", Embedded("rel", (ID,), inner=True)),
        ("rel!left(id)", Embedded("rel", (ID,))),
        ("rel!hint!inner(id)", Embedded("rel", (ID,), hint="hint", inner=True)),
        ("a:rel!inner!hint(id)", Embedded("rel", (ID,), alias="a", hint="hint", inner=True)),
        ('"a b":"c d"!"e f"(id)', Embedded("c d", (ID,), alias="a b", hint="e f")),
    ],
)
def test_embedded_tables(text: str, expected: Embedded) -> None:
    assert parse_select(text) == Selection((), (expected,))
    assert parse_select(f"id,{text},*") == Selection((ID, Selected(None)), (expected,))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("id,", "PGRST100"),
        (",id", "PGRST100"),
        ("id::", "PGRST100"),
        ("id::int4;drop", "PGRST100"),
        ("id::Robert'); DROP", "PGRST100"),
        ("id::int--x", "PGRST100"),
        ("id::'x'", "PGRST100"),
        ('id::"x"', "PGRST100"),
        ("id::numeric(1,2,3)", "PGRST100"),
        ("*x", "PGRST100"),
        ("id.", "PGRST100"),
        ("id.median()", "PGRST100"),
        ("rel(id", "PGRST100"),
        ("rel!(id)", "PGRST100"),
        ("rel!hint", "PGRST100"),
        ("rel!a!b!c(id)", "PGRST100"),
        ("rel->a(id)", "PGRST100"),
        ("rel(id)x", "PGRST100"),
        ("a:b:c", "PGRST100"),
        ("...directors(name)", "PGRST127"),
        ("id,rel(id,...directors(name))", "PGRST127"),
        ("rel(id,other(id))", "PGRST127"),
        ("rel(a:other!inner(id))", "PGRST127"),
        ("balance.sum()", "PGRST123"),
        ("id,x:balance.max()", "PGRST123"),
        ("count()", "PGRST123"),
        ("n:count()", "PGRST123"),
        ("rel(count())", "PGRST123"),
    ],
)
def test_unreadable_select(text: str, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_select(text)
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_order() -> None:
    assert parse_order("id.desc.nullslast, owner,extra->>a.asc.nullsfirst,b.nullsfirst") == (
        Order(Field("id"), descending=True, nulls="last"),
        Order(Field("owner")),
        Order(Field("extra", (("->>", "a"),)), nulls="first"),
        Order(Field("b"), nulls="first"),
    )
    assert parse_order("rel(name).desc,id,a(extra->b)") == (
        Order(Field("name"), descending=True, relation="rel"),
        Order(Field("id")),
        Order(Field("extra", (("->", "b"),)), relation="a"),
    )


@pytest.mark.parametrize(
    "text",
    ["id.down", "id,", "(id)", "rel(id", "rel(a,b)", "id.nullslast.desc", "id.descc", "id desc;", "rel->a(id)", ""],
)
def test_unreadable_order(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse order"):
        parse_order(text)


def test_names_come_sorted_because_clients_send_them_in_random_order() -> None:
    assert parse_names('"b c",a, d', "columns") == ("a", "b c", "d")


def test_limits() -> None:
    assert parse_select(",".join(["id"] * MAX_TERMS)).terms == MAX_TERMS
    assert parse_select(",".join(["r(id)"] * (MAX_TERMS // 2))).terms == MAX_TERMS
    for text in (",".join(["id"] * (MAX_TERMS + 1)), ",".join(["id->a"] * MAX_TERMS), ",".join(["r(*)"] * MAX_TERMS)):
        with pytest.raises(DialectError, match="failed to parse") as caught:
            parse_select(text)
        assert caught.value.code == "PGRST100"
    with pytest.raises(DialectError, match="failed to parse"):
        parse_order(",".join(["id"] * (MAX_TERMS + 1)))


@pytest.mark.parametrize(
    "piece",
    ["a", "a:", "a::", "a->", '"', '"a', '\\"', "(", "a(", "a!", "*,", " ", "a ", "a-", "a-,", "::a", ".", '"",', "a,"],
)
def test_long_texts_take_time_in_proportion_to_their_length(piece: str) -> None:
    text = piece * (60_000 // len(piece))
    began = time.thread_time()
    for parse in (parse_select, parse_order, lambda text: parse_names(text, "columns")):
        try:
            parse(text)
        except DialectError as error:
            assert error.code in ("PGRST100", "PGRST127")  # noqa: PT017 - most of these are refused, some are not
    assert time.thread_time() - began < 2


@given(text=st.text(max_size=60) | st.text('ab(),:!.->"*\\ count', max_size=40))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_select, parse_order, lambda text: parse_names(text, "columns")):
        try:
            parse(text)
        except DialectError as error:
            assert error.code in ("PGRST100", "PGRST123", "PGRST127")  # noqa: PT017 - most are refused, some are not
