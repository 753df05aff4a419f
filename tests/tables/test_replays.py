"""Idempotency keys, and what makes two requests the same one."""

from typing import Any

import pytest

from gateway.errors import RequestMalformed
from gateway.tables.dialect.request import HEADER, digest, fingerprint, parse_key


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("k", "k"),
        ('"k"', "k"),
        (' "k" ', "k"),
        ('"a b"', "a b"),
        (r'"a\"b\\c"', r'a"b\c'),
        ("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        ("x" * 255, "x" * 255),
        (f'"{"x" * 255}"', "x" * 255),
    ],
)
def test_keys(header: str, key: str) -> None:
    assert parse_key({HEADER: header}) == key


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        '""',
        '"',
        '"a',
        'a"b',
        "a b",
        "a,b",
        '"a","b"',
        "a;b=c",
        '"a";b',
        r'"a\b"',
        '"\t"',
        '"é"',
        "é",
        "x" * 256,
    ],
)
def test_what_is_none(header: str) -> None:
    with pytest.raises(RequestMalformed):
        parse_key({HEADER: header})


def test_most_requests_have_none() -> None:
    assert parse_key({b"prefer": "x"}) is None


HEADERS = {b"prefer": "return=minimal", b"content-type": "application/json"}
REQUEST: dict[str, Any] = {
    "method": "PATCH",
    "path": "/v1/tables/a",
    "schema": "public",
    "query_string": b"id=eq.1&columns=a,b",
    "headers": HEADERS,
    "body": b"{}",
}


@pytest.mark.parametrize(
    "other",
    [
        {"query_string": b"columns=a,b&id=eq.1"},
        {"query_string": b"columns=b,a&id=eq.1"},
        {"query_string": b"id=eq.1&columns=b%2Ca"},
        {"headers": {**HEADERS, b"range": "0-1", b"content-length": "2"}},
    ],
)
def test_the_same_request(other: dict[str, Any]) -> None:
    assert fingerprint(**{**REQUEST, **other}) == fingerprint(**REQUEST)


@pytest.mark.parametrize(
    "other",
    [
        {"method": "PUT"},
        {"path": "/v1/tables/b"},
        {"schema": "other"},
        {"query_string": b"id=eq.2&columns=a,b"},
        {"query_string": b"id=eq.1&columns=a,c"},
        {"query_string": b"id=eq.1&columns=a,b&select=b,a"},
        {"headers": {}},
        *({"headers": {**HEADERS, name: "x"}} for name in (b"prefer", b"accept", b"if-match", b"if-none-match")),
        {"body": b"{} "},
    ],
)
def test_another_request(other: dict[str, Any]) -> None:
    assert fingerprint(**{**REQUEST, **other}) != fingerprint(**REQUEST)


def test_parts_are_kept_apart() -> None:
    assert digest([b"ab", b"c"]) != digest([b"a", b"bc"])
    assert digest([b"a", b""]) != digest([b"a"])
    assert len(digest([])) == 32
