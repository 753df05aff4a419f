"""Conditions on ETags, by the rules of RFC 9110."""

import time

import pytest

from gateway.errors import ConditionUnsupported, RequestMalformed
from gateway.tables.dialect.etags import (
    MOST_TAGS,
    NO_PRECONDITIONS,
    Preconditions,
    check_preconditions,
    names_one_row,
    parse_preconditions,
    row_changed,
)
from gateway.tables.dialect.query import parse_query
from tests.tables.samples import column, table

ACCOUNTS = table(column("id", "bigint"), column("owner"), name="accounts", key=("id",))
PAIRS = table(column("a"), column("b"), name="pairs", key=("a", "b"))
KEYLESS = table(column("v"), name="keyless", key=())


@pytest.mark.parametrize(
    ("match", "none_match", "current", "met"),
    [
        (None, None, None, True),
        (None, None, "a", True),
        ("*", None, "a", True),
        ("*", None, None, False),
        ('"a"', None, "a", True),
        ('"a"', None, "b", False),
        ('"a"', None, None, False),
        ('"b", "a"', None, "a", True),
        ('"b",,  "a" ,', None, "a", True),
        ('"a,b"', None, "a,b", True),
        ('"a,b"', None, "a", False),
        ('""', None, "", True),
        ('W/"a"', None, "a", False),
        ('W/"a", "a"', None, "a", True),
        (None, "*", "a", False),
        (None, "*", None, True),
        (None, '"a"', "a", False),
        (None, 'W/"a"', "a", False),
        (None, '"a"', "b", True),
        (None, '"a"', None, True),
        ('"a"', '"b"', "a", True),
        ('"a"', '"a"', "a", False),
        ("*", '"a"', None, False),
    ],
)
def test_conditions(match: str | None, none_match: str | None, current: str | None, *, met: bool) -> None:
    assert parse_preconditions(match, none_match).met_by(current) is met


def test_many_spaces_stop_nobody() -> None:
    """Sixty thousand of them, for which a head has room, took half a minute."""
    began = time.process_time()
    for header in (f"{' ' * 60_000}x", f'"a",{" " * 60_000}x'):
        with pytest.raises(RequestMalformed):
            parse_preconditions(header, None)
    assert parse_preconditions(f'{" " * 30_000}"a"{" " * 30_000}', None).met_by("a")
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "header", ["", " ", ",", "a", '"a', 'a"', "'a'", '"a" "b"', 'w/"a"', 'W/ "a"', '"a b"', '*, "a"', "**", '"\x7f"']
)
def test_headers_that_cannot_be_read(header: str) -> None:
    for given in ((header, None), (None, header)):
        with pytest.raises(RequestMalformed):
            parse_preconditions(*given)


def test_the_list_has_an_end() -> None:
    assert parse_preconditions(", ".join(f'"{n}"' for n in range(MOST_TAGS)), None)
    with pytest.raises(RequestMalformed):
        parse_preconditions(", ".join(f'"{n}"' for n in range(MOST_TAGS + 1)), None)


def test_a_request_without_any_has_none() -> None:
    assert parse_preconditions(None, None) is NO_PRECONDITIONS
    assert not NO_PRECONDITIONS
    assert parse_preconditions("*", None)


@pytest.mark.parametrize(
    ("query", "one"),
    [
        (b"id=eq.1", True),
        (b"id=eq.1&owner=gt.x", True),
        (b"select=owner&id=eq.1", True),
        (b"", False),
        (b"id=in.(1)", False),
        (b"id=not.eq.1", False),
        (b"id=eq(any).{1,2}", False),
        (b"id->>x=eq.1", False),
        (b"id=gt.1", False),
        (b"or=(id.eq.1)", False),
        (b"and=(id.eq.1)", False),
        (b"owner=eq.x", False),
        (b"id=eq.1&select=id,films(title)", False),
    ],
)
def test_what_names_one_row(query: bytes, *, one: bool) -> None:
    assert names_one_row(parse_query(query), ACCOUNTS) is one


def test_all_of_the_key_is_needed() -> None:
    assert not names_one_row(parse_query(b"a=eq.1"), PAIRS)
    assert names_one_row(parse_query(b"b=eq.1&a=eq.2"), PAIRS)
    assert not names_one_row(parse_query(b"v=eq.1"), KEYLESS)


@pytest.mark.parametrize(
    ("method", "match", "none_match", "query", "supported"),
    [
        ("GET", None, '"a"', b"", True),
        ("GET", None, "*", b"owner=eq.x", True),
        ("GET", '"a"', None, b"owner=eq.x", False),
        ("HEAD", '"a"', None, b"id=eq.1", True),
        ("PATCH", '"a"', None, b"id=eq.1", True),
        ("PATCH", None, '"a"', b"id=eq.1", True),
        ("PATCH", None, "*", b"id=eq.1", False),
        ("PATCH", '"a"', None, b"id=in.(1)", False),
        ("DELETE", None, "*", b"id=eq.1", False),
        ("DELETE", '"a"', None, b"id=eq.1", True),
        ("PUT", None, "*", b"id=eq.1", True),
        ("PUT", '"a"', None, b"id=eq.1", True),
        ("POST", '"a"', None, b"id=eq.1", False),
        ("POST", None, "*", b"", False),
    ],
)
def test_what_a_condition_can_be_held_against(
    method: str, match: str | None, none_match: str | None, query: bytes, *, supported: bool
) -> None:
    preconditions = parse_preconditions(match, none_match)
    if supported:
        check_preconditions(preconditions, method, parse_query(query), ACCOUNTS)
        return
    with pytest.raises(ConditionUnsupported) as caught:
        check_preconditions(preconditions, method, parse_query(query), ACCOUNTS)
    assert caught.value.advice


def test_the_error_has_the_tag_there_is() -> None:
    assert row_changed("a").facts == {"etag": '"a"'}
    assert row_changed(None).facts == {"etag": None}
    assert Preconditions().met_by(None)
