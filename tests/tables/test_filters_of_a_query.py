"""Filters: what is read, and that everything else is PGRST100, never a guess."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.dialect.filters import PLAIN, QUANTIFIABLE, SEARCHES, parse_filter, parse_tree, terms
from gateway.tables.dialect.grammar import MAX_DEPTH, MAX_TERMS, MAX_VALUES, Condition, Field, Logic, Node

COLUMN = Field("c")


def condition(
    operator: str, value: str | tuple[str, ...], name: str = "c", *, negated: bool = False, language: str | None = None
) -> Condition:
    return Condition(Field(name), operator, value, negated, language)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("eq.5", condition("eq", "5")),
        ("eq.", condition("eq", "")),
        ("not.eq.5", condition("eq", "5", negated=True)),
        ("eq.a.b,(c)", condition("eq", "a.b,(c)")),
        ('eq."5"', condition("eq", '"5"')),
        ("eq.not.null", condition("eq", "not.null")),
        ("like.*an*", condition("like", "*an*")),
        ("eq(any).{1,2}", condition("eq(any)", "{1,2}")),
        ("not.like(all).{a*,*b}", condition("like(all)", "{a*,*b}", negated=True)),
        ("isdistinct.5", condition("isdistinct", "5")),
        ("fts.cat", condition("fts", "cat")),
        ("fts(english).cat & dog", condition("fts", "cat & dog", language="english")),
        ("not.wfts(simple).-cat", condition("wfts", "-cat", negated=True, language="simple")),
        ("in.(1,2)", condition("in", ("1", "2"))),
        ("in.()", condition("in", ())),
        ("in.( )", condition("in", ())),
        ("in.(1, 2)", condition("in", ("1", " 2"))),
        ("in.(,)", condition("in", ("", ""))),
        ('in.("")', condition("in", ("",))),
        ('in.("a,b","c\\"d","e\\\\f",g)', condition("in", ("a,b", 'c"d', "e\\f", "g"))),
        ('in.("a"b,c)', condition("in", ('"a"b', "c"))),
        ("in.(a(b,c)", condition("in", ("a(b", "c"))),
        ("in.({1,2})", condition("in", ("{1", "2}"))),
        ("not.in.(1)", condition("in", ("1",), negated=True)),
        ("is.null", condition("is", "null")),
        ("is.NULL", condition("is", "null")),
        ("is.Not_Null", condition("is", "not_null")),
        ("is.unknown", condition("is", "unknown")),
        ("not.is.TRUE", condition("is", "true", negated=True)),
        ("cs.{a,b}", condition("cs", "{a,b}")),
    ],
)
def test_filters(text: str, expected: Condition) -> None:
    assert parse_filter(COLUMN, text) == expected


@pytest.mark.parametrize("operator", sorted(QUANTIFIABLE | PLAIN | SEARCHES))
def test_every_operator_takes_any_value_and_a_negation(operator: str) -> None:
    assert parse_filter(COLUMN, f"{operator}.x.y") == condition(operator, "x.y")
    assert parse_filter(COLUMN, f"not.{operator}.x") == condition(operator, "x", negated=True)
    assert parse_tree("or", f"(c.{operator}.x)", negated=False).children == (condition(operator, "x"),)


@pytest.mark.parametrize(
    "text",
    [
        "5", "", "almost.5", "not.5", "not", "not.not.eq.5", "EQ.5", "eq5", "eq ", "eq", "eq().5", "eq(some).5",
        "neq(any).{1}", "in(any).(1)", "is(any).null", "cs(any).{1}", "fts().x", "fts(a'b).x", "fts(a;b).x",
        "in.1,2", "in.(1,2", "in.(1,2)x", "in.", "is.5", "is.", "is.nullx", "is.not null",
    ],
)  # fmt: skip
def test_unreadable_filters(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse filter") as caught:
        parse_filter(COLUMN, text)
    assert (caught.value.code, caught.value.status) == ("PGRST100", 400)


def test_an_unknown_operator_is_told_as_the_reference_does() -> None:
    with pytest.raises(DialectError) as caught:
        parse_filter(COLUMN, "val")
    assert caught.value.message == '"failed to parse filter (val)" (line 1, column 1)'
    assert caught.value.details == 'unexpected "v" expecting "not" or operator (eq, gt, ...)'


def test_an_unreadable_tree_is_told_as_the_reference_does() -> None:
    """Columns are counted from the operator in the key."""
    for negated, position in ((False, 4), (True, 8)):
        with pytest.raises(DialectError) as caught:
            parse_tree("or", "()", negated=negated)
        assert caught.value.message == f'"failed to parse logic tree (())" (line 1, column {position})'
        assert caught.value.details == (
            'unexpected ")" expecting field name (* or [a..z0..9_$]), negation operator (not) '
            "or logic operator (and, or)"
        )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(id.eq.1,id.eq.2)", (condition("eq", "1", "id"), condition("eq", "2", "id"))),
        ("( id.eq.1 , id.eq.2)", (condition("eq", "1 ", "id"), condition("eq", "2", "id"))),
        (
            '(a.not.in.(1,2),not.or(b.eq."x,y)",c.is.null))',
            (
                condition("in", ("1", "2"), "a", negated=True),
                Logic("or", (condition("eq", "x,y)", "b"), condition("is", "null")), negated=True),
            ),
        ),
        ("(tags.cs.{a,b},id.gt.1)", (condition("cs", "{a,b}", "tags"), condition("gt", "1", "id"))),
        ('(tags.cs.{"a}",b},id.gt.1)', (condition("cs", '{"a}",b}', "tags"), condition("gt", "1", "id"))),
        ("(id.eq(any).{1,2},id.eq.3)", (condition("eq(any)", "{1,2}", "id"), condition("eq", "3", "id"))),
        ("(c.fts(english).cat,c.plfts.dog)", (
            condition("fts", "cat", language="english"), condition("plfts", "dog"),
        )),
        ("(c.is.NOT_NULL)", (condition("is", "not_null"),)),
        ('(c.eq."a"b)', (condition("eq", '"a"b'),)),
        ("(c.eq.a(b)", (condition("eq", "a(b"),)),
        ("(c.eq.)", (condition("eq", ""),)),
        ("(and.eq.1)", (condition("eq", "1", "and"),)),
        ("(not.eq.1)", (condition("eq", "1", "not"),)),
        ('("or".eq.1)', (condition("eq", "1", "or"),)),
        ("(c->a->>0.eq.1)", (Condition(Field("c", (("->", "a"), ("->>", 0))), "eq", "1"),)),
        ("(and (c.eq.1))", (Logic("and", (condition("eq", "1"),)),)),
    ],
)  # fmt: skip
def test_trees(text: str, expected: tuple[Node, ...]) -> None:
    assert parse_tree("or", text, negated=False) == Logic("or", expected)
    assert parse_tree("and", text, negated=True) == Logic("and", expected, negated=True)


@pytest.mark.parametrize(
    "text",
    [
        "", "()", "id.eq.1", "(id.eq.1", "(id.eq.1))", "(id.huh.1)", "(id)", "(,)", "(id.eq.1,)", "(xor(id.eq.1))",
        "(id.in.1,2)", "(id.is.5)", "(id.eq.1)x", "(not.xor(id.eq.1))", "(rel.id.eq.1)",
    ],
)  # fmt: skip
def test_unreadable_trees(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse"):
        parse_tree("or", text, negated=False)


def test_limits() -> None:
    deepest = "and(" * (MAX_DEPTH - 1) + "id.eq.1" + ")" * (MAX_DEPTH - 1)
    assert terms(parse_tree("and", f"({deepest})", negated=False)) == MAX_DEPTH + 1
    most = "(" + ",".join(["id->a.eq.1"] * (MAX_TERMS // 2)) + ")"
    assert terms(parse_tree("or", most, negated=False)) == MAX_TERMS + 1
    values = "in.(" + ",".join("1" * MAX_VALUES) + ")"
    assert len(parse_filter(COLUMN, values).value) == MAX_VALUES
    for what, parse in (
        ("levels of conditions", lambda: parse_tree("and", f"(and({deepest}))", negated=False)),
        ("terms", lambda: parse_tree("or", most[:-1] + ",id.eq.1)", negated=False)),
        ("values", lambda: parse_filter(COLUMN, values[:-1] + ",1)")),
    ):
        with pytest.raises(DialectError, match="failed to parse") as caught:
            parse()
        assert caught.value.code == "PGRST100"
        assert caught.value.details is not None
        assert caught.value.details.endswith(f"{what} are taken")


@pytest.mark.parametrize(
    "piece",
    ["(", "(and", "and(", '"', '"\\', '("', '{"', "{", "{,", '{"\\",', "a.eq.", 'a.eq."', "a.eq.{", "a,", "->", "not.",
     'a.eq."x",', "a.in.(", 'a.in.("', "1,", '"1"x,', "c->a", "(" * 40, ".", "a.not."],
)  # fmt: skip
@pytest.mark.parametrize("start", ["in.(", "eq(any).", "(", "(a.eq.", "(a.in.("])
def test_long_texts_take_time_in_proportion_to_their_length(start: str, piece: str) -> None:
    text = start + piece * (60_000 // len(piece))
    began = time.thread_time()
    for parse in (lambda: parse_filter(COLUMN, text), lambda: parse_tree("or", text, negated=False)):
        try:
            parse()
        except DialectError as error:
            assert error.code == "PGRST100"  # noqa: PT017 - most of these are refused, some are not
    assert time.thread_time() - began < 2


@given(text=st.text('()"\\,.{}noteqandori.1s', max_size=60))
def test_no_text_breaks_filters_and_trees(text: str) -> None:
    for parse in (lambda: parse_filter(COLUMN, text), lambda: parse_tree("or", text, negated=False)):
        try:
            parse()
        except DialectError as error:
            assert error.code == "PGRST100"  # noqa: PT017 - most texts are refused, some are not


def written(node: Node) -> str:
    """A node as a careful client would write it: everything quoted that can be."""
    negation = "not." if node.negated else ""
    if isinstance(node, Logic):
        return f"{negation}{node.operator}({','.join(map(written, node.children))})"
    if isinstance(node.value, tuple):
        value = f"({','.join(map(quoted, node.value))})"
    else:
        value = node.value if node.operator == "is" else quoted(node.value)
    operator = f"{node.operator}({node.language})" if node.language else node.operator
    return f"{quoted(node.field.name)}.{negation}{operator}.{value}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


names = st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=8)
values = st.text(max_size=8)
conditions = st.one_of(
    st.builds(
        condition,
        st.sampled_from(sorted(QUANTIFIABLE | PLAIN | SEARCHES | {"eq(any)", "like(all)"})),
        values,
        names,
        negated=st.booleans(),
    ),
    st.builds(
        condition, st.sampled_from(sorted(SEARCHES)), values, names, language=st.sampled_from(["english", "x y"])
    ),
    st.builds(condition, st.just("in"), st.lists(values, min_size=1, max_size=4).map(tuple), names),
    st.builds(condition, st.just("is"), st.sampled_from(["null", "not_null", "true"]), names, negated=st.booleans()),
)
trees = st.recursive(
    conditions,
    lambda inner: st.builds(
        lambda operator, children, negated: Logic(operator, tuple(children), negated),
        st.sampled_from(["and", "or"]),
        st.lists(inner, min_size=1, max_size=3),
        st.booleans(),
    ),
    max_leaves=8,
)


@given(children=st.lists(trees, min_size=1, max_size=3))
def test_what_is_written_with_care_is_read_as_meant(children: list[Node]) -> None:
    text = f"({','.join(map(written, children))})"
    assert parse_tree("and", text, negated=False) == Logic("and", tuple(children))
