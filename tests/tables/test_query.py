"""The query string: everything that cannot be read is refused, never a guess, and there is a limit to each part.

The rows of ``tests/conformance/tables`` show what it means.
"""

import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import (
    MAX_TERMS,
    PLAIN,
    QUANTIFIABLE,
    SEARCHES,
    Condition,
    Cursor,
    Embedded,
    Field,
    Logic,
    Node,
    parse_filter,
    parse_tree,
    read_field,
    read_name,
    read_quoted,
)
from gateway.tables.dialect.query import MAX_BYTES, Embed, parse_names, parse_order, parse_query, parse_select


@pytest.mark.parametrize("text", ["", ":", "-a", "(", '""', '"a', "  ", ";", "%"])
def test_no_names(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse name"):
        read_name(Cursor(text, "name"))


@pytest.mark.parametrize("text", ["c->", "c->>", "c->->a", "c->a->", "c->)"])
def test_unreadable_paths(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse field"):
        read_field(Cursor(text, "field"))


@given(name=st.text(min_size=1).filter(lambda name: "\0" not in name))
def test_any_name_can_be_quoted(name: str) -> None:
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    cursor = Cursor(quoted, "name")
    assert read_name(cursor) == name
    assert cursor.at_end
    assert read_quoted(Cursor(quoted, "name")) == name


COLUMN = Field("c")


def condition(
    operator: str, value: str | tuple[str, ...], name: str = "c", *, negated: bool = False, language: str | None = None
) -> Condition:
    return Condition(Field(name), operator, value, negated, language)


def test_unreadable_filters(subtests: pytest.Subtests) -> None:
    for text in (
        "5", "", "almost.5", "not.5", "not", "not.not.eq.5", "EQ.5", "eq5", "eq ", "eq", "eq().5", "eq(some).5",
        "neq(any).{1}", "in(any).(1)", "is(any).null", "cs(any).{1}", "fts().x", "fts(a'b).x", "fts(a;b).x", "in.1,2",
        "in.(1,2", "in.(1,2)x", "in.", "is.5", "is.", "is.nullx", "is.not null",
    ):  # fmt: skip
        with subtests.test(text=text):
            with pytest.raises(DialectError, match="failed to parse filter") as caught:
                parse_filter(COLUMN, text)
            assert (caught.value.code, caught.value.status) == ("PGRST100", 400)


def test_unreadable_trees(subtests: pytest.Subtests) -> None:
    for text in (
        "", "()", "id.eq.1", "(id.eq.1", "(id.eq.1))", "(id.huh.1)", "(id)", "(,)", "(id.eq.1,)", "(xor(id.eq.1))",
        "(id.in.1,2)", "(id.is.5)", "(id.eq.1)x", "(not.xor(id.eq.1))", "(rel.id.eq.1)",
    ):  # fmt: skip
        with subtests.test(text=text), pytest.raises(DialectError, match="failed to parse"):
            parse_tree("or", text, negated=False)


FILTERS = (lambda text: parse_filter(COLUMN, text), lambda text: parse_tree("or", text, negated=False))
SHAPES = (parse_select, parse_order, lambda text: parse_names(text, "columns"))


def is_read_or_refused(text: str, parsers: Iterable[Callable[[str], object]]) -> None:
    for parse in parsers:
        try:
            parse(text)
        except DialectError as error:
            assert error.code in ("PGRST100", "PGRST123", "PGRST127")  # noqa: PT017 - most texts are refused


PIECES = (
    "(", "(and", "and(", '"', '"\\', '("', '{"', "{", "{,", '{"\\",', "a.eq.", 'a.eq."', "a.eq.{", "a,", "->",
    "not.", 'a.eq."x",', "a.in.(", 'a.in.("', "1,", '"1"x,', "c->a", "(" * 40, ".", "a.not.", "a", "a:", "a::",
    "a->", '"a', '\\"', "a(", "a!", "*,", " ", "a ", "a-", "a-,", "::a", '"",',
)  # fmt: skip


def test_long_texts_take_time_in_proportion_to_their_length(subtests: pytest.Subtests) -> None:
    for start, parsers in (
        *((start, FILTERS) for start in ("in.(", "eq(any).", "(", "(a.eq.", "(a.in.(")), ("", SHAPES),
    ):  # fmt: skip
        with subtests.test(start=start):
            for piece in PIECES:
                began = time.thread_time()
                is_read_or_refused(start + piece * (60_000 // len(piece)), parsers)
                assert time.thread_time() - began < 2, piece


@given(text=st.text('()"\\,.{}noteqandori.1s', max_size=60) | st.text('ab(),:!.->"*\\ count', max_size=40) | st.text())
def test_no_text_breaks_the_parsers(text: str) -> None:
    is_read_or_refused(text, (*FILTERS, *SHAPES))


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


UNREADABLE = {
    "PGRST100": (
        "id,", ",id", "id::", "id::int4;drop", "id::Robert'); DROP", "id::int--x", "id::'x'", 'id::"x"',
        "id::numeric(1,2,3)", "*x", "id.", "id.median()", "rel(id", "rel!(id)", "rel!hint", "rel!a!b!c(id)",
        "rel->a(id)", "rel(id)x", "a:b:c",
    ),
    "PGRST127": (
        "...directors(name)", "id,rel(id,...directors(name))", "rel(id,other(id))", "rel(a:other!inner(id))",
    ),
    "PGRST123": ("balance.sum()", "id,x:balance.max()", "count()", "n:count()", "rel(count())"),
}  # fmt: skip


@pytest.mark.parametrize(("code", "text"), [(code, text) for code, texts in UNREADABLE.items() for text in texts])
def test_unreadable_select(code: str, text: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_select(text)
    assert (caught.value.code, caught.value.status) == (code, 400)


@pytest.mark.parametrize(
    "text",
    ["id.down", "id,", "(id)", "rel(id", "rel(a,b)", "id.nullslast.desc", "id.descc", "id desc;", "rel->a(id)", ""],
)
def test_unreadable_order(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse order"):
        parse_order(text)


def test_names_come_sorted_because_clients_send_them_in_random_order() -> None:
    assert parse_names('"b c",a, d', "columns") == ("a", "b c", "d")


REL = Embedded("rel", ())


def test_parameters_of_an_embedded_table(subtests: pytest.Subtests) -> None:
    for parameters, expected in (
        (b"&rel.%22x.y%22=in.(1)", Embed(REL, (Condition(Field("x.y"), "in", ("1",)),))),
        (b"&rel.not.and=(a.eq.1)", Embed(REL, (Logic("and", (Condition(Field("a"), "eq", "1"),), negated=True),))),
        (b"&not.rel.and=(a.eq.1)", Embed(REL, (Logic("and", (Condition(Field("a"), "eq", "1"),), negated=True),))),
        (b"&rel.limit=many&rel.offset=-2", Embed(REL)),
        (b"&%22rel%22.%22order%22=eq.1", Embed(REL, (Condition(Field("order"), "eq", "1"),))),
    ):
        with subtests.test(parameters=parameters):
            query = parse_query(b"select=rel()" + parameters)
            assert query.embeds == (expected,)
            assert (query.filters, query.order, query.is_limited) == ((), (), False)


def test_unreadable_queries(subtests: pytest.Subtests) -> None:
    for query in (
        b"id->=eq.1", b".a=eq.1", b"a..b=eq.1", b"%22a=eq.1", b"a;b=eq.1", b"a(b=eq.1", b"=eq.1", b"owner=eq.%FF",
        b"owner=eq.%00", b"%FF=eq.1",
    ):  # fmt: skip
        with subtests.test(query=query):
            with pytest.raises(DialectError) as caught:
                parse_query(query)
            assert caught.value.code == "PGRST100"


def test_a_whole_query_string_has_a_limit(subtests: pytest.Subtests) -> None:
    """The limit holds for all kinds of terms, and for any number of parameters."""
    for query, terms in (
        (b"id=eq.1", 1), (b"id->a->>b=eq.1", 3), (b"and=(id.eq.1,or(id.eq.1,id->a.eq.1))", 6),
        (b"select=id,a->b,r(id,*)", 6), (b"order=id,a->b", 3), (b"select=r()&r.id=eq.1&r.order=id&r.or=(id.eq.1)", 5),
    ):  # fmt: skip
        with subtests.test(query=query):
            room = MAX_TERMS - terms
            parse_query(b"&".join([query, *[b"id=eq.1"] * room]))
            with pytest.raises(DialectError) as caught:
                parse_query(b"&".join([query, *[b"id=eq.1"] * (room + 1)]))
            assert (caught.value.code, caught.value.details) == ("PGRST100", f"at most {MAX_TERMS} terms are taken")


def test_the_most_rows_hold_for_embedded_tables_too(subtests: pytest.Subtests) -> None:
    for query, limit, inner in (
        (b"select=r()", 10, 10), (b"select=r()&limit=3&r.limit=4", 3, 4), (b"select=r()&limit=30&r.limit=40", 10, 10),
        (b"select=r()&limit=0&r.limit=0", 0, 0),
    ):  # fmt: skip
        with subtests.test(query=query):
            capped = parse_query(query).capped(10)
            assert (capped.limit, capped.embeds[0].limit) == (limit, inner)


def test_a_query_string_has_a_largest_size() -> None:
    parse_query(b"id=eq." + b"1" * (MAX_BYTES - 6))
    with pytest.raises(DialectError) as caught:
        parse_query(b"id=eq." + b"1" * (MAX_BYTES - 5))
    assert (caught.value.code, caught.value.details) == ("PGRST100", f"at most {MAX_BYTES} bytes are taken")


@pytest.mark.parametrize(
    "piece", ['a.eq.{"\\",', 'a.eq.{"\\', "a.eq.{", 'a.eq.{"",', 'a.eq."\\', "a.eq.{x", "a.eq.{}x,", 'a.eq.{"x"}x,']
)
@pytest.mark.parametrize("end", ["", "\\", "}", '"}', "\\\n"])
def test_values_that_begin_like_arrays_take_no_time(piece: str, end: str) -> None:
    """Sixty thousand characters, for which a head has room, took three seconds."""
    text = f"({piece * (60_000 // len(piece) // 150 * 150)}{end}"
    long = f"({(piece + 'x' * 100) * 400}{end}"
    began = time.process_time()
    for one in (text, long):
        with pytest.raises(DialectError):
            parse_tree("or", one, negated=False)
    assert time.process_time() - began < 0.2


def test_a_few_values_may_begin_like_arrays() -> None:
    parsed = parse_tree("or", '(a.eq.{x,b.eq.{"y"},c.eq.{}z,d.cs.{1,2})', negated=False)
    assert isinstance(parsed, Logic)
    assert [one.value for one in parsed.children if isinstance(one, Condition)] == ["{x", '{"y"}', "{}z", "{1,2}"]
