"""A request as the caller means it: the object of a path, ranges, profiles, preferences, and media types."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.request import (
    OPENAPI,
    accepted,
    headings,
    name_of,
    parse,
    parse_preferences,
    profile_of,
    root_accepted,
)

PREFIXES = ("/v1/tables/", "/rest/v1/")


def test_paths(subtests: pytest.Subtests) -> None:
    for path, expected in (
        ("/v1/tables/users", ("table", "users")), ("/rest/v1/users/", ("table", "users")),
        ("/v1/tables/", ("root", "")), ("/v1/tables/rpc", ("table", "rpc")), ("/v1/tables/rpc/", ("table", "rpc")),
        ("/v1/tables/rpc/add", ("function", "add")), ("/rest/v1/rpc/rpc", ("function", "rpc")),
    ):  # fmt: skip
        with subtests.test(path=path):
            assert name_of(path, PREFIXES) == expected


@pytest.mark.parametrize(
    "path", ["/v1/tables/a/b", "/v1/tables/rpc/a/b", "/v1/tables/rpc//", "/v1/tables//", "/v1/tables/\0", "/elsewhere"]
)
def test_other_paths(path: str) -> None:
    with pytest.raises(DialectError) as caught:
        name_of(path, PREFIXES)
    assert (caught.value.code, caught.value.status) == ("PGRST125", 404)


@pytest.mark.parametrize(("query", "header"), [(b"", "9-0"), (b"limit=3", "5-"), (b"offset=20", "10-19")])
def test_a_range_without_a_row_is_refused(query: bytes, header: str) -> None:
    """It goes backward, or has no row in common with the limit."""
    with pytest.raises(DialectError) as caught:
        parse("GET", query, {b"range": header})
    assert (caught.value.code, caught.value.status) == ("PGRST103", 416)


def test_headers_by_name_whatever_their_case() -> None:
    found = headings(
        [(b"PREFER", b"count=exact"), (b"prefer", b"return=minimal"), (b"Accept-Profile", b"api"), (b"x", b"y")]
    )
    assert found == {b"prefer": "count=exact,return=minimal", b"accept-profile": "api"}
    assert profile_of("GET", found) == "api"
    assert profile_of("PATCH", found) is None


def test_what_needs_a_transaction_of_its_own(subtests: pytest.Subtests) -> None:
    for header, needed in (
        ("return=representation,count=exact,tx=commit", False), ("tx=rollback", False), ("timezone=UTC", True),
        ("handling=strict,max-affected=1", True),
    ):  # fmt: skip
        with subtests.test(header=header):
            assert parse_preferences(header).need_a_transaction is needed


@pytest.mark.parametrize(
    "accept", ["text/html", "application/geo+json", "application/vnd.pgrst.plan", "nonsense", "*/*;q=0", "text/csv;q=0"]
)
def test_other_media_types_are_not_available(accept: str) -> None:
    assert accepted(accept) is None


def test_the_root_is_an_openapi_document() -> None:
    for accept in ("", "*/*", "application/json", "application/openapi+json"):
        assert root_accepted(accept) == OPENAPI
    assert root_accepted("text/csv") is None
