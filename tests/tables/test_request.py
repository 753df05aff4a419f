"""A request as the caller means it: the object of a path, ranges, profiles, preferences, and media types."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.media import (
    ARRAY_STRIPPED,
    CSV,
    JSON,
    OBJECT,
    OBJECT_STRIPPED,
    OPENAPI,
    accepted,
    body_type,
    root_accepted,
)
from gateway.tables.dialect.preferences import Preferences, honoured, parse_preferences
from gateway.tables.dialect.request import Target, headings, name_of, parse, profile_of, target

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


def test_schemas() -> None:
    assert target("t", None, ("api",)) == Target("api", "t", shown_schema=False)
    assert target("t", None, ("api", "more")) == Target("api", "t", shown_schema=True)
    assert target("t", "more", ("api", "more")) == Target("more", "t", shown_schema=True)
    with pytest.raises(DialectError) as caught:
        target("t", "other", ("api", "more"))
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST106", 406, "Invalid schema: other")
    assert caught.value.hint == "Only the following schemas are exposed: api, more"


def test_range_narrows_reads_only(subtests: pytest.Subtests) -> None:
    for method, query, header, limit, offset in (
        ("GET", b"", "0-9", 10, 0), ("GET", b"", "5-", None, 5), ("GET", b"limit=3&offset=1", "0-9", 3, 1),
        ("GET", b"limit=30", "10-19", 10, 10), ("GET", b"limit=3&offset=1", "2-9", 2, 2),
        ("GET", b"limit=0", "0-9", 0, 0), ("GET", b"", "bytes=0-9", None, 0), ("HEAD", b"", "0-9", None, 0),
        ("PATCH", b"id=eq.1", "0-9", None, 0),
    ):  # fmt: skip
        with subtests.test(method=method, query=query):
            wanted = parse(method, query, {b"range": header})
            assert (wanted.query.limit, wanted.query.offset) == (limit, offset)


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


def test_preferences(subtests: pytest.Subtests) -> None:
    for header, expected in (
        ("", Preferences()),
        ("return=representation", Preferences(returns="representation")),
        ("return=minimal,return=representation", Preferences(returns="minimal")),
        (
            " resolution=merge-duplicates , missing=default",
            Preferences(resolution="merge-duplicates", missing="default"),
        ),
        ("count=exact,tx=rollback,foo", Preferences(count="exact", tx="rollback", invalid=("foo",))),
        ("tx = commit , tx=rollback", Preferences(tx="commit")),
        ("timezone=America/Los_Angeles", Preferences(timezone="America/Los_Angeles")),
        ("timezone=Etc/GMT+5,timezone=UTC", Preferences(timezone="Etc/GMT+5")),
        ("timezone='; DROP", Preferences(invalid=("timezone='; DROP",))),
        ("timezone=", Preferences(invalid=("timezone=",))),
        ("handling=strict,max-affected=3", Preferences(strict=True, max_affected=3)),
        ("handling=strict,max-affected=-3", Preferences(strict=True, invalid=("max-affected=-3",))),
        ("max-affected=3", Preferences()),
        ("handling=lenient,max-affected=3", Preferences(strict=False)),
    ):
        with subtests.test(header=header):
            assert parse_preferences(header) == expected


def test_strict_handling_refuses_what_is_not_served(subtests: pytest.Subtests) -> None:
    """It never commits what was to be rolled back."""
    for asked, tx_override, refused in (
        ("tx=rollback, return=most", True, "return=most"), ("tx=rollback", False, "tx=rollback"),
        ("timezone=Mars/Base", False, "timezone=Mars/Base"),
    ):  # fmt: skip
        with subtests.test(asked=asked):
            with pytest.raises(DialectError) as caught:
                honoured(parse_preferences(f"handling=strict, {asked}"), tx_override=tx_override, zones={"UTC"})
            assert (caught.value.code, caught.value.status) == ("PGRST122", 400)
            assert caught.value.details == f"Invalid preferences: {refused}"


def test_who_is_not_strict_gets_what_there_is() -> None:
    asked = parse_preferences("tx=rollback, nonsense, return=minimal")
    assert honoured(asked, tx_override=True, zones=()) == asked
    assert honoured(asked, tx_override=False, zones=()).tx is None
    assert honoured(asked, tx_override=False, zones=()).returns == "minimal"
    assert honoured(parse_preferences("handling=strict, tx=commit"), tx_override=False, zones=()).tx is None
    asked = parse_preferences("timezone=Mars/Base, count=exact")
    assert honoured(asked, tx_override=False, zones={"UTC"}) == Preferences(count="exact")
    assert honoured(parse_preferences("timezone=UTC"), tx_override=False, zones={"UTC"}).timezone == "UTC"


def test_what_needs_a_transaction_of_its_own(subtests: pytest.Subtests) -> None:
    for header, needed in (
        ("return=representation,count=exact,tx=commit", False), ("tx=rollback", True), ("timezone=UTC", True),
        ("handling=strict,max-affected=1", True),
    ):  # fmt: skip
        with subtests.test(header=header):
            assert parse_preferences(header).need_a_transaction is needed


def test_the_best_form_of_rows(subtests: pytest.Subtests) -> None:
    for accept, expected in (
        ("", JSON), ("*/*", JSON), ("application/*", JSON), ("application/json; charset=utf-8", JSON),
        ("application/vnd.pgrst.object+json", OBJECT), ("ApplicatIon/vnd.PgRsT.object+json", OBJECT),
        ("application/vnd.pgrst.object;nulls=stripped", OBJECT_STRIPPED),
        ("application/vnd.pgrst.object+json; nulls=stripped", OBJECT_STRIPPED),
        ("application/vnd.pgrst.array+json", JSON), ("application/vnd.pgrst.array+json;nulls=stripped", ARRAY_STRIPPED),
        ("application/vnd.pgrst.array;nulls=stripped", ARRAY_STRIPPED), ("application/json;nulls=stripped", JSON),
        ("text/csv", CSV), ("text/csv, application/vnd.pgrst.object", CSV), ("text/html, text/csv", CSV),
        ("application/json;q=0.5, application/vnd.pgrst.object+json", OBJECT), ("text/csv;q=0.1, */*;q=0.9", JSON),
        ("text/csv;q=0, application/json;q=0.001", JSON),
    ):  # fmt: skip
        with subtests.test(accept=accept):
            assert accepted(accept) == expected


@pytest.mark.parametrize(
    "accept", ["text/html", "application/geo+json", "application/vnd.pgrst.plan", "nonsense", "*/*;q=0", "text/csv;q=0"]
)
def test_other_media_types_are_not_available(accept: str) -> None:
    assert accepted(accept) is None


def test_the_root_is_an_openapi_document() -> None:
    for accept in ("", "*/*", "application/json", "application/openapi+json"):
        assert root_accepted(accept) == OPENAPI
    assert root_accepted("text/csv") is None


def test_types_of_bodies(subtests: pytest.Subtests) -> None:
    for content_type, expected in (
        (None, "json"), ("", "json"), ("Application/JSON; charset=utf-8", "json"), ("text/csv", "csv"),
        ("application/x-www-form-urlencoded", "urlencoded"), ("text/plain", "text"),
        ("application/octet-stream", "binary"),
    ):  # fmt: skip
        with subtests.test(content_type=content_type):
            assert body_type({} if content_type is None else {b"content-type": content_type}) == expected


@pytest.mark.parametrize("content_type", ["text/html", "application/xml", "nonsense"])
def test_other_types_of_bodies(content_type: str) -> None:
    with pytest.raises(DialectError) as caught:
        body_type({b"content-type": content_type})
    assert (caught.value.code, caught.value.status) == ("PGRST102", 400)
    assert caught.value.message == f"Content-Type not acceptable: {content_type}"
