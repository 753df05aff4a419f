"""The settings by which code inside the database changes an answer."""

import pytest

from gateway.errors import DialectError, SqlError
from gateway.tables.dialect.overrides import headers_of, raised, replaced, status_of


@pytest.mark.parametrize(("text", "status"), [(None, None), ("", None), ("201", 201), ("418", 418)])
def test_a_status(text: str | None, status: int | None) -> None:
    assert status_of(text) == status


@pytest.mark.parametrize("text", ["99", "600", "100", "abc", "2000", " 201"])
def test_what_is_no_status(text: str) -> None:
    with pytest.raises(DialectError) as caught:
        status_of(text)
    assert (caught.value.code, caught.value.status) == ("PGRST112", 500)


def test_headers_may_repeat() -> None:
    assert headers_of('[{"Set-Cookie": "a=1"}, {"Set-Cookie": "b=2"}, {"X": "y"}]') == [
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x", b"y"),
    ]
    assert headers_of(None) == headers_of("") == []


@pytest.mark.parametrize(
    "name",
    [
        "Content-Length", "transfer-encoding", "Connection", "Fencing-Token", "fencing-resource", "Proxy-Status",
        "Access-Control-Allow-Origin", "X-Request-Id", "Content-Range",
    ],
)  # fmt: skip
def test_headers_the_gateway_answers_for_cannot_be_set(name: str) -> None:
    assert headers_of(f'[{{"{name}": "1"}}]') == []


@pytest.mark.parametrize(
    "text",
    [
        "x", "{}", '["a"]', '[{"a": 1}]', '[{"a": "1", "b": "2"}]', "[{}]", "null", '[{"a b": "1"}]', '[{"": "1"}]',
        '[{"a": "x\\r\\nSet-Cookie: y"}]', '[{"a": "\\u20ac"}]', '[{"a\\n": "1"}]', '[{"a": "\\u0000"}]',
    ],
)  # fmt: skip
def test_what_are_no_headers(text: str) -> None:
    with pytest.raises(DialectError) as caught:
        headers_of(text)
    assert (caught.value.code, caught.value.status) == ("PGRST111", 500)


def test_headers_take_the_place_of_those_of_the_same_name() -> None:
    before = [(b"content-type", b"a"), (b"content-length", b"1")]
    assert replaced(before, [(b"content-type", b"b")]) == [(b"content-length", b"1"), (b"content-type", b"b")]


def test_an_error_that_says_it_all() -> None:
    error = raised(
        SqlError(
            "PGRST",
            '{"code":"123","message":"Payment","details":"Quota exceeded","hint":"Upgrade"}',
            detail='{"status":402,"status_text":"x","headers":{"X-Powered-By":"Nerd Rage","Content-Length":"3"}}',
        )
    )
    assert (error.code, error.status, error.message) == ("123", 402, "Payment")
    assert (error.details, error.hint, error.headers) == (
        "Quota exceeded",
        "Upgrade",
        ((b"x-powered-by", b"Nerd Rage"),),
    )


@pytest.mark.parametrize(
    ("message", "detail", "part"),
    [
        ("INVALID", '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE: 'INVALID'"),
        ('{"code":"1"}', '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE"),
        ('{"code":1,"message":"m"}', '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE"),
        ("[]", '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE"),
        ('{"code":"1","message":"m"}', None, "DETAIL is missing in the RAISE statement"),
        ('{"code":"1","message":"m"}', "INVALID", "Invalid JSON value for DETAIL: 'INVALID'"),
        ('{"code":"1","message":"m"}', '{"status":332}', "Invalid JSON value for DETAIL"),
        ('{"code":"1","message":"m"}', '{"status":"332","headers":{}}', "Invalid JSON value for DETAIL"),
        ('{"code":"1","message":"m"}', '{"status":99,"headers":{}}', "Invalid JSON value for DETAIL"),
        ('{"code":"1","message":"m"}', '{"status":true,"headers":{}}', "Invalid JSON value for DETAIL"),
        ('{"code":"1","message":"m"}', '{"status":400,"headers":[]}', "Invalid JSON value for DETAIL"),
        ('{"code":"1","message":"m"}', '{"status":400,"headers":{"a":"\\n"}}', "Invalid JSON value for DETAIL"),
    ],
)
def test_an_error_that_tries_to(message: str, detail: str | None, part: str) -> None:
    error = raised(SqlError("PGRST", message, detail=detail))
    assert (error.code, error.status) == ("PGRST121", 500)
    assert part in (error.details or "")
    assert "must be a JSON object" in (error.hint or "")
