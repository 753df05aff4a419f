"""The query string: names, filters, what is selected, embedded tables, and how much is taken.

Everything that cannot be read is refused, never a guess.
"""

import time
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.dialect.filters import PLAIN, QUANTIFIABLE, SEARCHES, parse_filter, parse_tree
from gateway.tables.dialect.grammar import (
    MAX_TERMS,
    Condition,
    Cursor,
    Embedded,
    Field,
    Logic,
    Node,
    Order,
    Selected,
    read_field,
    read_name,
    read_quoted,
)
from gateway.tables.dialect.query import MAX_BYTES, Embed, Query, parse_query
from gateway.tables.dialect.selection import Selection, parse_names, parse_order, parse_select


def test_names(subtests: pytest.Subtests) -> None:
    for text, name, left in (
        ("id", "id", ""), ("id,x", "id", ",x"), ("123", "123", ""), ("_", "_", ""), ("$", "$", ""),
        ("größe", "größe", ""), (" no spaces around ", "no spaces around", ""),
        ("with-dashes-inside", "with-dashes-inside", ""), ("data->a", "data", "->a"), ('":"', ":", ""),
        ('" kept "', " kept ", ""), ('"a\\"b\\\\c"', 'a"b\\c', ""), ('"a"b', "a", "b"),
    ):  # fmt: skip
        with subtests.test(text=text):
            cursor = Cursor(text, "name")
            assert read_name(cursor) == name
            assert text[cursor.position :] == left


@pytest.mark.parametrize("text", ["", ":", "-a", "(", '""', '"a', "  ", ";", "%"])
def test_no_names(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse name"):
        read_name(Cursor(text, "name"))


def test_paths(subtests: pytest.Subtests) -> None:
    for text, path in (
        ("c->text", (("->", "text"),)), ("c->>text", (("->>", "text"),)), ("c->!@#$%^&*_a", (("->", "!@#$%^&*_a"),)),
        ("c->1", (("->", 1),)), ("c->>-1", (("->>", -1),)), ("c->0->>b", (("->", 0), ("->>", "b"))),
        ("c->1a", (("->", "1a"),)), ('c->"a.b, c"->>"->"', (("->", "a.b, c"), ("->>", "->"))),
        ("c->a-b", (("->", "a-b"),)), ("c->a' OR true", (("->", "a' OR true"),)),
    ):  # fmt: skip
        with subtests.test(text=text):
            cursor = Cursor(text, "field")
            assert read_field(cursor) == Field("c", path)  # type: ignore[arg-type]  # arrows are literals there
            assert cursor.at_end


@pytest.mark.parametrize("text", ["c->", "c->>", "c->->a", "c->a->", "c->)"])
def test_unreadable_paths(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse field"):
        read_field(Cursor(text, "field"))


def test_an_error_tells_where_and_what() -> None:
    cursor = Cursor("id!", "select parameter")
    read_name(cursor)
    with pytest.raises(DialectError) as caught:
        cursor.finish()
    assert caught.value.message == '"failed to parse select parameter (id!)" (line 1, column 3)'
    assert caught.value.details == "unexpected '!' expecting end of input"


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


def test_filters(subtests: pytest.Subtests) -> None:
    for text, expected in (
        ("eq.5", condition("eq", "5")), ("eq.", condition("eq", "")), ("not.eq.5", condition("eq", "5", negated=True)),
        ("eq.a.b,(c)", condition("eq", "a.b,(c)")), ('eq."5"', condition("eq", '"5"')),
        ("eq.not.null", condition("eq", "not.null")), ("like.*an*", condition("like", "*an*")),
        ("eq(any).{1,2}", condition("eq(any)", "{1,2}")),
        ("not.like(all).{a*,*b}", condition("like(all)", "{a*,*b}", negated=True)),
        ("isdistinct.5", condition("isdistinct", "5")), ("fts.cat", condition("fts", "cat")),
        ("fts(english).cat & dog", condition("fts", "cat & dog", language="english")),
        ("not.wfts(simple).-cat", condition("wfts", "-cat", negated=True, language="simple")),
        ("in.(1,2)", condition("in", ("1", "2"))), ("in.()", condition("in", ())), ("in.( )", condition("in", ())),
        ("in.(1, 2)", condition("in", ("1", " 2"))), ("in.(,)", condition("in", ("", ""))),
        ('in.("")', condition("in", ("",))),
        ('in.("a,b","c\\"d","e\\\\f",g)', condition("in", ("a,b", 'c"d', "e\\f", "g"))),
        ('in.("a"b,c)', condition("in", ('"a"b', "c"))), ("in.(a(b,c)", condition("in", ("a(b", "c"))),
        ("in.({1,2})", condition("in", ("{1", "2}"))), ("not.in.(1)", condition("in", ("1",), negated=True)),
        ("is.null", condition("is", "null")), ("is.NULL", condition("is", "null")),
        ("is.Not_Null", condition("is", "not_null")), ("is.unknown", condition("is", "unknown")),
        ("not.is.TRUE", condition("is", "true", negated=True)), ("cs.{a,b}", condition("cs", "{a,b}")),
    ):  # fmt: skip
        with subtests.test(text=text):
            assert parse_filter(COLUMN, text) == expected


def test_every_operator_takes_any_value_and_a_negation() -> None:
    for operator in QUANTIFIABLE | PLAIN | SEARCHES:
        assert parse_filter(COLUMN, f"{operator}.x.y") == condition(operator, "x.y")
        assert parse_filter(COLUMN, f"not.{operator}.x") == condition(operator, "x", negated=True)


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


def test_unreadable_conditions_are_told_as_the_reference_does() -> None:
    """Columns of a tree are counted from the operator in the key."""
    with pytest.raises(DialectError) as caught:
        parse_filter(COLUMN, "val")
    assert caught.value.message == '"failed to parse filter (val)" (line 1, column 1)'
    assert caught.value.details == 'unexpected "v" expecting "not" or operator (eq, gt, ...)'
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


ID = Selected(Field("id"))


def test_columns(subtests: pytest.Subtests) -> None:
    for text, expected in (
        ("", ()), ("*", ()), ("id, owner", (ID, Selected(Field("owner")))), ("*,id", (Selected(None), ID)),
        ("n:owner", (Selected(Field("owner"), alias="n"),)), ("id::text", (Selected(Field("id"), cast="text"),)),
        ("id::TEXT", (Selected(Field("id"), cast="TEXT"),)),
        ("n:id::numeric(10,2)", (Selected(Field("id"), alias="n", cast="numeric(10,2)"),)),
        ("id::text[]", (Selected(Field("id"), cast="text[]"),)),
        ("id::double precision", (Selected(Field("id"), cast="double precision"),)),
        ('"a b":extra->>"c d"', (Selected(Field("extra", (("->>", "c d"),)), alias="a b"),)),
        ("a:extra->b->0::text", (Selected(Field("extra", (("->", "b"), ("->", 0))), alias="a", cast="text"),)),
        ("count", (Selected(Field("count")),)), ('"count()"', (Selected(Field("count()")),)),
    ):  # fmt: skip
        with subtests.test(text=text):
            assert parse_select(text) == Selection(expected)


def test_embedded_tables(subtests: pytest.Subtests) -> None:
    for text, expected in (
        ("rel(id)", Embedded("rel", (ID,))), ("rel(*)", Embedded("rel", (Selected(None),))),
        ("rel()", Embedded("rel", ())),
        ("a:rel(id, n:id::text)", Embedded("rel", (ID, Selected(Field("id"), "n", "text")), alias="a")),
        ("rel!hint(id)", Embedded("rel", (ID,), hint="hint")), ("rel!inner(id)", Embedded("rel", (ID,), inner=True)),
        ("rel!left(id)", Embedded("rel", (ID,))),
        ("rel!hint!inner(id)", Embedded("rel", (ID,), hint="hint", inner=True)),
        ("a:rel!inner!hint(id)", Embedded("rel", (ID,), alias="a", hint="hint", inner=True)),
        ('"a b":"c d"!"e f"(id)', Embedded("c d", (ID,), alias="a b", hint="e f")),
    ):  # fmt: skip
        with subtests.test(text=text):
            assert parse_select(text) == Selection((), (expected,))
            assert parse_select(f"id,{text},*") == Selection((ID, Selected(None)), (expected,))


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


def test_what_looks_like_a_filter_but_is_none(subtests: pytest.Subtests) -> None:
    """A key without a value is noted."""
    for query, bare in (
        (b"", False), (b"&&", False), (b"limit=1", False), (b"select=id", False), (b"order=id", False),
        (b"apikey=x", False), (b"columns=id", False), (b"id", True), (b"limit=1&id", True),
    ):  # fmt: skip
        with subtests.test(query=query):
            found = parse_query(query)
            assert (found.filters, found.has_bare_keys) == ((), bare)
            assert parse_query(query + b"&a=eq.1").has_bare_keys is bare


def test_percent_encoding_and_plus() -> None:
    (node,) = parse_query(b"owner=eq.a%20b+c%26").filters
    assert node == Condition(Field("owner"), "eq", "a b c&")


def test_limits() -> None:
    assert parse_query(b"limit=5&offset=2") == Query(limit=5, offset=2, is_limited=True)
    assert parse_query(b"limit=many") == Query(is_limited=True)
    with pytest.raises(DialectError) as caught:
        parse_query(b"limit=-1")
    assert (caught.value.code, caught.value.status) == ("PGRST103", 416)


def embedded(query: bytes) -> Embed:
    (embed,) = parse_query(query).embeds
    return embed


REL = Embedded("rel", ())


def test_parameters_of_an_embedded_table(subtests: pytest.Subtests) -> None:
    for parameters, expected in (
        (b"", Embed(REL)),
        (b"&rel.a=eq.1", Embed(REL, (Condition(Field("a"), "eq", "1"),))),
        (b"&rel.a->>b=not.is.null", Embed(REL, (Condition(Field("a", (("->>", "b"),)), "is", "null", negated=True),))),
        (b"&rel.%22x.y%22=in.(1)", Embed(REL, (Condition(Field("x.y"), "in", ("1",)),))),
        (b"&rel.or=(a.eq.1)", Embed(REL, (Logic("or", (Condition(Field("a"), "eq", "1"),)),))),
        (b"&rel.not.and=(a.eq.1)", Embed(REL, (Logic("and", (Condition(Field("a"), "eq", "1"),), negated=True),))),
        (b"&not.rel.and=(a.eq.1)", Embed(REL, (Logic("and", (Condition(Field("a"), "eq", "1"),), negated=True),))),
        (b"&rel.order=a.desc", Embed(REL, order=(Order(Field("a"), descending=True),))),
        (b"&rel.limit=3&rel.offset=2", Embed(REL, limit=3, offset=2)),
        (b"&rel.limit=many&rel.offset=-2", Embed(REL)),
        (b"&%22rel%22.%22order%22=eq.1", Embed(REL, (Condition(Field("order"), "eq", "1"),))),
    ):
        with subtests.test(parameters=parameters):
            query = parse_query(b"select=rel()" + parameters)
            assert query.embeds == (expected,)
            assert (query.filters, query.order, query.is_limited) == ((), (), False)


def test_an_embedded_table_goes_by_its_alias_and_by_its_name() -> None:
    condition = Condition(Field("x"), "eq", "1")
    assert embedded(b"select=a:rel()&a.x=eq.1").filters == (condition,)
    assert embedded(b"select=a:rel()&rel.x=eq.1").filters == (condition,)
    first, second = parse_query(b"select=a:rel(),b:rel()&b.x=eq.1").embeds
    assert (first.filters, second.filters) == ((), (condition,))


def test_parameters_of_what_is_not_embedded(subtests: pytest.Subtests) -> None:
    for query, name in (
        (b"rel.a=eq.1", "rel"), (b"select=*,other(*)&rel.a=eq.1", "rel"), (b"rel.limit=1", "rel"),
        (b"rel.or=(a.eq.1)", "rel"), (b"rel.order=a", "rel"), (b"order=rel(a)", "rel"),
        (b"select=*,rel(*)&rel.other.a=eq.1", "other"), (b"select=*,rel(*)&rel.order=other(a)", "other"),
    ):  # fmt: skip
        with subtests.test(query=query):
            with pytest.raises(DialectError) as caught:
                parse_query(query)
            assert (caught.value.code, caught.value.status) == ("PGRST108", 400)
            assert caught.value.message == f"'{name}' is not an embedded resource in this request"
            assert caught.value.hint == f"Verify that '{name}' is included in the 'select' query parameter."


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
