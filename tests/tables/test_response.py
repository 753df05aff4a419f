"""Statuses, headers and bodies of successes."""

import pytest

from gateway.errors import DialectError
from gateway.fencing.token import Token
from gateway.tables.dialect import response
from gateway.tables.dialect.request import parse
from gateway.tables.dialect.response import Accepted, Written
from tests.tables.samples import ACCOUNTS, column, table

PATH = "/v1/tables/accounts"


def header(answer: response.Response, name: bytes) -> str | None:
    return {key: value.decode() for key, value in answer.headers}.get(name)


def written(
    method: str, touched: int, *, prefer: str = "", inserted: int = 0, body: str | None = None
) -> response.Response:
    request = parse(method, b"", {b"prefer": prefer})
    return response.write(request, ACCOUNTS, Written(touched, inserted, body), Accepted(Token(0, 5), ["r/1"]), PATH)


@pytest.mark.parametrize(
    ("method", "prefer", "touched", "inserted", "status", "content_range"),
    [
        ("POST", "", 1, 1, 201, "*/*"),
        ("POST", "", 0, 0, 201, "*/*"),
        ("POST", "count=exact", 2, 2, 201, "*/2"),
        ("POST", "resolution=merge-duplicates", 2, 1, 201, "*/*"),
        ("POST", "resolution=merge-duplicates", 2, 0, 200, "*/*"),
        ("POST", "resolution=ignore-duplicates", 0, 0, 201, "*/*"),
        ("PATCH", "", 2, 0, 204, "0-1/*"),
        ("PATCH", "", 0, 0, 204, "*/*"),
        ("PATCH", "count=exact", 2, 0, 204, "0-1/2"),
        ("PATCH", "return=representation", 1, 0, 200, "0-0/*"),
        ("PUT", "", 1, 1, 204, None),
        ("PUT", "return=representation", 1, 1, 201, None),
        ("PUT", "return=representation", 1, 0, 200, None),
        ("DELETE", "", 1, 0, 204, "*/*"),
        ("DELETE", "count=exact", 3, 0, 204, "*/3"),
        ("DELETE", "return=representation", 1, 0, 200, "*/*"),
    ],
)
def test_writes(method: str, prefer: str, touched: int, inserted: int, status: int, content_range: str | None) -> None:
    answer = written(method, touched, prefer=prefer, inserted=inserted, body="[{}]")
    assert answer.status == status
    assert header(answer, b"content-range") == content_range
    assert header(answer, b"fencing-token") == "5"
    assert header(answer, b"fencing-resource") == "r/1"
    assert (header(answer, b"content-type") is None) == ("representation" not in prefer)
    assert answer.body == (b"[{}]" if "representation" in prefer else b"")


def test_preferences_are_confirmed_in_a_fixed_order() -> None:
    answer = written("POST", 1, prefer="count=exact,return=minimal,missing=default,resolution=ignore-duplicates")
    assert header(answer, b"preference-applied") == (
        "resolution=ignore-duplicates, missing=default, return=minimal, count=exact"
    )


@pytest.mark.parametrize(
    ("query", "touched", "total", "status", "content_range"),
    [
        (b"", 3, None, 200, "0-2/*"),
        (b"", 0, None, 200, "*/*"),
        (b"", 3, 3, 200, "0-2/3"),
        (b"", 0, 0, 200, "*/0"),
        (b"limit=1&offset=1", 1, 3, 206, "1-1/3"),
        (b"offset=3", 0, 3, 206, "*/3"),
    ],
)
def test_reads(query: bytes, touched: int, total: int | None, status: int, content_range: str) -> None:
    answer = response.read(
        parse("GET", query, {}), {"touched": touched, "total": total, "body": "[]", "etag": None}, PATH, query
    )
    assert (answer.status, header(answer, b"content-range"), answer.body) == (status, content_range, b"[]")


def test_head_is_get_without_its_body() -> None:
    answer = response.read(
        parse("HEAD", b"", {}), {"touched": 1, "total": None, "body": "[1]", "etag": None}, PATH, b""
    )
    assert (answer.body, header(answer, b"content-length")) == (b"", "3")


def test_an_offset_beyond_the_end() -> None:
    with pytest.raises(DialectError) as caught:
        response.read(parse("GET", b"offset=4", {}), {"touched": 0, "total": 3, "body": "[]", "etag": None}, PATH, b"")
    assert (caught.value.code, caught.value.status) == ("PGRST103", 416)


@pytest.mark.parametrize("touched", [0, 2])
def test_one_object_is_one_row(touched: int) -> None:
    request = parse("GET", b"", {b"accept": "application/vnd.pgrst.object+json"})
    with pytest.raises(DialectError) as caught:
        response.read(request, {"touched": touched, "total": None, "body": "[]", "etag": None}, PATH, b"")
    assert (caught.value.code, caught.value.status) == ("PGRST116", 406)
    assert (
        response.read(request, {"touched": 1, "total": None, "body": '[{"a":[1]}]', "etag": None}, PATH, b"").body
        == b'{"a":[1]}'
    )


def test_the_location_of_a_new_row() -> None:
    pair = table(column("a b"), column("c"), key=("a b", "c"))
    assert response.location("/v1/tables/t", pair, ["x&y/z", None]) == b"/v1/tables/t?a%20b=eq.x%26y%2Fz&c=is.null"


def test_a_long_list_of_resources_stays_a_header() -> None:
    request = parse("DELETE", b"", {})
    names = [f"public.accounts/{number}" for number in range(1000)]
    answer = response.write(request, ACCOUNTS, Written(0), Accepted(Token(0, 1), names), PATH)
    text = header(answer, b"fencing-resource") or ""
    assert len(text) < 4200
    assert text.endswith(", ...")
