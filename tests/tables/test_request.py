"""HTTP to what the caller wants: ranges, profiles, headers."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.request import headings, parse, profile_of


@pytest.mark.parametrize(
    ("method", "query", "header", "limit", "offset"),
    [
        ("GET", b"", "0-9", 10, 0),
        ("GET", b"", "5-", None, 5),
        ("GET", b"limit=3&offset=1", "0-9", 3, 1),
        ("GET", b"limit=30", "10-19", 10, 10),
        ("GET", b"limit=3&offset=1", "2-9", 2, 2),
        ("GET", b"limit=0", "0-9", 0, 0),
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


def test_headers_by_name_whatever_their_case() -> None:
    found = headings(
        [(b"PREFER", b"count=exact"), (b"prefer", b"return=minimal"), (b"Accept-Profile", b"api"), (b"x", b"y")]
    )
    assert found == {b"prefer": "count=exact,return=minimal", b"accept-profile": "api"}
    assert profile_of("GET", found) == "api"
    assert profile_of("PATCH", found) is None


def test_a_range_and_a_limit_without_a_row_in_common_are_refused() -> None:
    for query, header in ((b"limit=3", "5-"), (b"offset=20", "10-19")):
        with pytest.raises(DialectError) as caught:
            parse("GET", query, {b"range": header})
        assert (caught.value.code, caught.value.status) == ("PGRST103", 416)


@pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
@pytest.mark.parametrize(
    ("query", "code"),
    [
        (b"id=eq.1&select=*,directors(*)", "PGRST127"),
        (b"id=eq.1&select=*,directors!inner(*)&directors.name=eq.x", "PGRST127"),
        (b"id=eq.1&directors.name=eq.x", "PGRST108"),
        (b"id=eq.1&directors.or=(name.eq.x)", "PGRST108"),
        (b"id=eq.1&directors.limit=1", "PGRST108"),
    ],
)
def test_nothing_is_embedded_in_a_write(method: str, query: bytes, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse(method, query, {})
    assert (caught.value.code, caught.value.status) == (code, 400)
