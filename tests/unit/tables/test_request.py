"""HTTP to what the caller wants: preferences, media types, ranges, and which filters pin a column."""

import pytest

from gateway.errors import DialectError
from gateway.tables.request import (
    OBJECT,
    Preferences,
    Query,
    check_content_type,
    headings,
    media_type,
    parse,
    parse_preferences,
    parse_query,
    pins,
    pins_exactly,
    profile_of,
)


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


@pytest.mark.parametrize(
    "query", [b"id", b"limit=1", b"select=id", b"order=id", b"apikey=x", b"", b"columns=id", b"&&"]
)
def test_what_looks_like_a_filter_but_is_none(query: bytes) -> None:
    assert parse_query(query).filters == ()


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


def test_percent_encoding_and_plus() -> None:
    (node,) = parse_query(b"owner=eq.a%20b+c%26").filters
    assert pins((node,)) == {"owner": ("a b c&",)}


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


@pytest.mark.parametrize(
    ("method", "query", "header", "limit", "offset"),
    [
        ("GET", b"", "0-9", 10, 0),
        ("GET", b"", "5-", None, 5),
        ("GET", b"limit=3&offset=1", "0-9", 3, 1),
        ("GET", b"limit=30", "10-19", 10, 10),
        ("GET", b"", "bytes=0-9", None, 0),
        ("HEAD", b"", "0-9", None, 0),
        ("PATCH", b"id=eq.1", "0-9", None, 0),
    ],
)
def test_range_narrows_reads_only(method: str, query: bytes, header: str, limit: int | None, offset: int) -> None:
    wanted = parse(method, query, {b"range": header})
    assert (wanted.query.limit, wanted.query.offset) == (limit, offset)


def test_a_backward_range_is_refused() -> None:
    with pytest.raises(DialectError) as caught:
        parse("GET", b"", {b"range": "9-0"})
    assert caught.value.code == "PGRST103"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Preferences()),
        ("return=representation", Preferences(returns="representation")),
        ("return=minimal,return=representation", Preferences(returns="minimal")),
        (
            " resolution=merge-duplicates , missing=default",
            Preferences(resolution="merge-duplicates", missing="default"),
        ),
        ("count=exact,tx=rollback,foo", Preferences(count="exact")),
        ("handling=strict,max-affected=3", Preferences(strict=True, max_affected=3)),
        ("max-affected=3", Preferences()),
    ],
)
def test_preferences(header: str, expected: Preferences) -> None:
    assert parse_preferences(header) == expected


def test_strict_handling_refuses_what_is_unknown() -> None:
    with pytest.raises(DialectError) as caught:
        parse_preferences("handling=strict, tx=rollback, return=most")
    assert caught.value.code == "PGRST122"
    assert caught.value.details == "Invalid preferences: tx=rollback, return=most"


@pytest.mark.parametrize(
    ("accept", "singular"),
    [
        ("", False),
        ("*/*", False),
        ("application/json; charset=utf-8", False),
        ("application/vnd.pgrst.object+json", True),
        ("text/csv, application/vnd.pgrst.object", True),
        ("application/json;q=0.5, application/vnd.pgrst.object+json", True),
    ],
)
def test_media_types(accept: str, *, singular: bool) -> None:
    assert (media_type(accept) == OBJECT) is singular


@pytest.mark.parametrize("accept", ["text/csv", "application/geo+json", "application/vnd.pgrst.plan", "nonsense"])
def test_other_media_types_are_not_available(accept: str) -> None:
    with pytest.raises(DialectError) as caught:
        media_type(accept)
    assert (caught.value.code, caught.value.status) == ("PGRST107", 406)


@pytest.mark.parametrize(
    ("content_type", "code"),
    [("text/csv", "PGRST127"), ("application/x-www-form-urlencoded", "PGRST127"), ("text/plain", "PGRST102")],
)
def test_other_bodies(content_type: str, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        check_content_type({b"content-type": content_type})
    assert (caught.value.code, caught.value.status) == (code, 400)


def test_headers_by_name_whatever_their_case() -> None:
    found = headings(
        [(b"PREFER", b"count=exact"), (b"prefer", b"return=minimal"), (b"Accept-Profile", b"api"), (b"x", b"y")]
    )
    assert found == {b"prefer": "count=exact,return=minimal", b"accept-profile": "api"}
    assert profile_of("GET", found) == "api"
    assert profile_of("PATCH", found) is None
