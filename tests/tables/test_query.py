"""The query string: which parameters are filters, what belongs to an embedded table, and how much is taken."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import MAX_TERMS, Condition, Embedded, Field, Logic, Order
from gateway.tables.dialect.query import MAX_BYTES, Embed, Query, parse_query


@pytest.mark.parametrize(
    "query", [b"id", b"limit=1", b"select=id", b"order=id", b"apikey=x", b"", b"columns=id", b"&&"]
)
def test_what_looks_like_a_filter_but_is_none(query: bytes) -> None:
    assert parse_query(query).filters == ()


@pytest.mark.parametrize(
    ("query", "bare"), [(b"id", True), (b"id&a=eq.1", True), (b"limit=1&id", True), (b"", False), (b"a=eq.1&&", False)]
)
def test_a_key_without_a_value_is_noted(query: bytes, bare: bool) -> None:  # noqa: FBT001 - what is expected
    assert parse_query(query).has_bare_keys is bare


def test_percent_encoding_and_plus() -> None:
    (node,) = parse_query(b"owner=eq.a%20b+c%26").filters
    assert node == Condition(Field("owner"), "eq", "a b c&")


@pytest.mark.parametrize("query", [b"owner=eq.%FF", b"owner=eq.%00", b"%FF=eq.1"])
def test_undecodable_queries(query: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        parse_query(query)
    assert caught.value.code == "PGRST100"


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


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
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
        (b'&%22rel%22.%22order%22=eq.1', Embed(REL, (Condition(Field("order"), "eq", "1"),))),
    ],
)  # fmt: skip
def test_parameters_of_an_embedded_table(parameters: bytes, expected: Embed) -> None:
    query = parse_query(b"select=rel()" + parameters)
    assert query.embeds == (expected,)
    assert (query.filters, query.order, query.is_limited) == ((), (), False)


def test_an_embedded_table_goes_by_its_alias_and_by_its_name() -> None:
    condition = Condition(Field("x"), "eq", "1")
    assert embedded(b"select=a:rel()&a.x=eq.1").filters == (condition,)
    assert embedded(b"select=a:rel()&rel.x=eq.1").filters == (condition,)
    first, second = parse_query(b"select=a:rel(),b:rel()&b.x=eq.1").embeds
    assert (first.filters, second.filters) == ((), (condition,))


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (b"rel.a=eq.1", "rel"),
        (b"select=*,other(*)&rel.a=eq.1", "rel"),
        (b"rel.limit=1", "rel"),
        (b"rel.or=(a.eq.1)", "rel"),
        (b"rel.order=a", "rel"),
        (b"order=rel(a)", "rel"),
        (b"select=*,rel(*)&rel.other.a=eq.1", "other"),
        (b"select=*,rel(*)&rel.order=other(a)", "other"),
    ],
)
def test_parameters_of_what_is_not_embedded(query: bytes, name: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_query(query)
    assert (caught.value.code, caught.value.status) == ("PGRST108", 400)
    assert caught.value.message == f"'{name}' is not an embedded resource in this request"
    assert caught.value.hint == f"Verify that '{name}' is included in the 'select' query parameter."


@pytest.mark.parametrize(
    "query", [b"id->=eq.1", b".a=eq.1", b"a..b=eq.1", b"%22a=eq.1", b"a;b=eq.1", b"a(b=eq.1", b"=eq.1"]
)
def test_keys_that_are_no_names(query: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        parse_query(query)
    assert caught.value.code == "PGRST100"


@pytest.mark.parametrize(
    ("query", "terms"),
    [
        (b"id=eq.1", 1),
        (b"id->a->>b=eq.1", 3),
        (b"and=(id.eq.1,or(id.eq.1,id->a.eq.1))", 6),
        (b"select=id,a->b,r(id,*)", 6),
        (b"order=id,a->b", 3),
        (b"select=r()&r.id=eq.1&r.order=id&r.or=(id.eq.1)", 5),
    ],
)
def test_a_whole_query_string_has_a_limit(query: bytes, terms: int) -> None:
    """The limit holds for all kinds of terms, and for any number of parameters."""
    room = MAX_TERMS - terms
    parse_query(b"&".join([query, *[b"id=eq.1"] * room]))
    with pytest.raises(DialectError) as caught:
        parse_query(b"&".join([query, *[b"id=eq.1"] * (room + 1)]))
    assert (caught.value.code, caught.value.details) == ("PGRST100", f"at most {MAX_TERMS} terms are taken")


@pytest.mark.parametrize(
    ("query", "limit", "inner"),
    [
        (b"select=r()", 10, 10),
        (b"select=r()&limit=3&r.limit=4", 3, 4),
        (b"select=r()&limit=30&r.limit=40", 10, 10),
        (b"select=r()&limit=0&r.limit=0", 0, 0),
    ],
)
def test_the_most_rows_hold_for_embedded_tables_too(query: bytes, limit: int, inner: int) -> None:
    capped = parse_query(query).capped(10)
    assert (capped.limit, capped.embeds[0].limit) == (limit, inner)


def test_a_query_string_has_a_largest_size() -> None:
    parse_query(b"id=eq." + b"1" * (MAX_BYTES - 6))
    with pytest.raises(DialectError) as caught:
        parse_query(b"id=eq." + b"1" * (MAX_BYTES - 5))
    assert (caught.value.code, caught.value.details) == ("PGRST100", f"at most {MAX_BYTES} bytes are taken")
