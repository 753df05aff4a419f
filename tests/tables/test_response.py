"""Statuses, headers and bodies of answers: successes, errors, what code in the database sets, other origins."""

from datetime import UTC, datetime
from uuid import UUID

import orjson
import pytest

from gateway.errors import DialectError, GatewayError, SqlError, TokenRequired, Unauthenticated, Unavailable
from gateway.fencing.decision import Fence
from gateway.fencing.record import Attempt, Rejection, refusal_error
from gateway.fencing.token import Token
from gateway.tables.dialect import errors, response
from gateway.tables.dialect.cors import Origins
from gateway.tables.dialect.overrides import headers_of, raised, replaced, status_of
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


def test_writes(subtests: pytest.Subtests) -> None:
    for method, prefer, touched, inserted, status, content_range in (
        ("POST", "", 1, 1, 201, "*/*"), ("POST", "", 0, 0, 201, "*/*"), ("POST", "count=exact", 2, 2, 201, "*/2"),
        ("POST", "resolution=merge-duplicates", 2, 1, 201, "*/*"),
        ("POST", "resolution=merge-duplicates", 2, 0, 200, "*/*"),
        ("POST", "resolution=ignore-duplicates", 0, 0, 201, "*/*"), ("PATCH", "", 2, 0, 204, "0-1/*"),
        ("PATCH", "", 0, 0, 204, "*/*"), ("PATCH", "count=exact", 2, 0, 204, "0-1/2"),
        ("PATCH", "return=representation", 1, 0, 200, "0-0/*"), ("PUT", "", 1, 1, 204, None),
        ("PUT", "return=representation", 1, 1, 201, None), ("PUT", "return=representation", 1, 0, 200, None),
        ("DELETE", "", 1, 0, 204, "*/*"), ("DELETE", "count=exact", 3, 0, 204, "*/3"),
        ("DELETE", "return=representation", 1, 0, 200, "*/*"),
    ):  # fmt: skip
        with subtests.test(method=method):
            answer = written(method, touched, prefer=prefer, inserted=inserted, body="[{}]")
            assert answer.status == status
            assert header(answer, b"content-range") == content_range
            assert header(answer, b"fencing-token") == "5"
            assert header(answer, b"fencing-resource") == "r/1"
            assert (header(answer, b"content-type") is None) == ("representation" not in prefer)
            assert answer.body == (b"[{}]" if "representation" in prefer else b"")


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


def of_database(error: SqlError, *, known_caller: bool = True, verbose: bool = True) -> GatewayError:
    return errors.of_database(error, known_caller=known_caller, verbose=verbose)


def test_sqlstates(subtests: pytest.Subtests) -> None:
    for sqlstate, message, status in (
        ("09000", "", 500), ("0L000", "", 403), ("0P000", "", 403), ("21000", "", 500),
        ("21000", "UPDATE requires a WHERE clause", 400), ("21000", "DELETE requires a WHERE clause", 400),
        ("22023", "", 400), ("22023", 'role "x" does not exist', 401), ("22P02", "", 400), ("23502", "", 400),
        ("23503", "", 409), ("23505", "", 409), ("23514", "", 400), ("23P01", "", 400), ("25006", "", 405),
        ("25001", "", 500), ("28000", "", 403), ("2D000", "", 500), ("38000", "", 500), ("39000", "", 500),
        ("3B000", "", 500), ("42501", "", 403), ("42703", "", 400), ("42804", "", 400), ("42883", "", 404),
        ("42P01", "", 404), ("42P17", "", 500), ("42601", "", 400), ("54000", "", 500), ("55000", "", 500),
        ("58000", "", 500), ("F0000", "", 500), ("HV000", "", 500), ("P0000", "", 500), ("P0001", "", 400),
        ("P0002", "", 500), ("XX000", "", 500), ("PT418", "", 418), ("PT200", "", 200), ("PT999", "", 500),
        ("PTABC", "", 500), ("99999", "", 400),
    ):  # fmt: skip
        with subtests.test(sqlstate=sqlstate):
            answer = errors.answer(of_database(SqlError(sqlstate, message, detail="d", hint="h")))
            assert answer.status == status
            assert orjson.loads(answer.body) == {"code": sqlstate, "message": message, "details": "d", "hint": "h"}
            assert header(answer, b"proxy-status") == f"PostgREST; error={sqlstate}"


def test_who_is_not_known_may_gain_a_privilege_by_showing_a_key() -> None:
    answer = errors.answer(of_database(SqlError("42501", "permission denied"), known_caller=False))
    assert (answer.status, header(answer, b"www-authenticate")) == (401, "Bearer")


def test_a_statement_that_found_a_stray_row() -> None:
    for name in ("public.accounts/2", ""):
        failure = of_database(SqlError("FN422", name))
        assert (failure.code, failure.status) == ("resource-mismatch", 422)


def test_errors_have_four_keys_each_a_text_or_null(subtests: pytest.Subtests) -> None:
    for failure in (TokenRequired("x"), Unauthenticated("x"), Unavailable("x"), DialectError("P", 400, "x")):
        with subtests.test(failure=failure):
            answer = errors.answer(failure)
            document = orjson.loads(answer.body)
            assert list(document) == ["code", "message", "details", "hint"]
            assert all(value is None or isinstance(value, str) for value in document.values())
            assert header(answer, b"content-type") == "application/json; charset=utf-8"
            assert header(answer, b"content-length") == str(len(answer.body))
            assert (header(answer, b"retry-after") is not None) == isinstance(failure, Unavailable)
            assert (header(answer, b"www-authenticate") is not None) == isinstance(failure, Unauthenticated)


def test_a_refusal_says_all_there_is_to_know() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    attempt = Attempt(Token(0, 33), None, "worker", "PATCH", "/v1/tables/accounts", None, "r")
    fence = Fence("r/1", Token(0, 34), "ann", "worker", at)
    rejection = Rejection(UUID(int=7), at, "r/1", "token-stale", enforced=True, attempt=attempt, fence=fence)
    for verbose in (True, False):
        answer = errors.answer(refusal_error(rejection), verbose=verbose)
        document = orjson.loads(answer.body)
        assert (answer.status, document["code"]) == (412, "token-stale")
        for fact in ("r/1", "33", "34", "ann", "2026-01-02", str(UUID(int=7))):
            assert fact in document["details"]
        assert "retrying cannot succeed" in document["hint"]


def test_an_error_may_bring_headers_of_its_own() -> None:
    asked = DialectError("X", 402, "pay", headers=[(b"x-price", b"5"), (b"content-type", b"application/problem+json")])
    answer = errors.answer(asked)
    assert (header(answer, b"x-price"), header(answer, b"content-type")) == ("5", "application/problem+json")
    assert len([name for name, _ in answer.headers if name == b"content-type"]) == 1


def test_a_code_that_is_no_token_stays_out_of_the_headers() -> None:
    answer = errors.answer(DialectError("a\r\nset-cookie: b", 400, "m"))
    assert header(answer, b"proxy-status") is None


def test_a_status_that_has_no_body_gets_none() -> None:
    for failure in (DialectError("X", 204, "m"), of_database(SqlError("PT304", "m"))):
        answer = errors.answer(failure)
        assert (answer.body, header(answer, b"content-length"), header(answer, b"content-type")) == (b"", None, None)


def test_a_status() -> None:
    assert [status_of(text) for text in (None, "", "201", "418")] == [None, None, 201, 418]


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
    before = [(b"content-type", b"a"), (b"content-length", b"1")]
    assert replaced(before, [(b"content-type", b"b")]) == [(b"content-length", b"1"), (b"content-type", b"b")]


def test_headers_the_gateway_answers_for_cannot_be_set(subtests: pytest.Subtests) -> None:
    for name in (
        "Content-Length", "transfer-encoding", "Connection", "Fencing-Token", "fencing-resource", "Proxy-Status",
        "Access-Control-Allow-Origin", "X-Request-Id", "Content-Range",
    ):  # fmt: skip
        with subtests.test(name=name):
            assert headers_of(f'[{{"{name}": "1"}}]') == []


def test_what_are_no_headers(subtests: pytest.Subtests) -> None:
    for text in (
        "x", "{}", '["a"]', '[{"a": 1}]', '[{"a": "1", "b": "2"}]', "[{}]", "null", '[{"a b": "1"}]', '[{"": "1"}]',
        '[{"a": "x\\r\\nSet-Cookie: y"}]', '[{"a": "\\u20ac"}]', '[{"a\\n": "1"}]', '[{"a": "\\u0000"}]',
    ):  # fmt: skip
        with subtests.test(text=text):
            with pytest.raises(DialectError) as caught:
                headers_of(text)
            assert (caught.value.code, caught.value.status) == ("PGRST111", 500)


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


RAISED = '{"code":"1","message":"m"}'


@pytest.mark.parametrize(
    ("message", "detail", "part"),
    [
        ("INVALID", '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE: 'INVALID'"),
        *(
            (message, '{"status":332,"headers":{}}', "Invalid JSON value for MESSAGE")
            for message in ('{"code":"1"}', '{"code":1,"message":"m"}', "[]")
        ),
        (RAISED, None, "DETAIL is missing in the RAISE statement"),
        (RAISED, "INVALID", "Invalid JSON value for DETAIL: 'INVALID'"),
        *(
            (RAISED, detail, "Invalid JSON value for DETAIL")
            for detail in (
                '{"status":332}', '{"status":"332","headers":{}}', '{"status":99,"headers":{}}',
                '{"status":true,"headers":{}}', '{"status":400,"headers":[]}', '{"status":400,"headers":{"a":"\\n"}}',
            )
        ),
    ],
)  # fmt: skip
def test_an_error_that_tries_to(message: str, detail: str | None, part: str) -> None:
    error = raised(SqlError("PGRST", message, detail=detail))
    assert (error.code, error.status) == ("PGRST121", 500)
    assert part in (error.details or "")
    assert "must be a JSON object" in (error.hint or "")


APP = b"https://app.example"
ONE, ALL, NONE = Origins(("https://app.example",)), Origins(("*",)), Origins()
ASKS = [(b"origin", APP), (b"access-control-request-method", b"PATCH")]


def test_a_browser_asks_first() -> None:
    answer = ONE.preflight("OPTIONS", [*ASKS, (b"access-control-request-headers", b"fencing-token, prefer")])
    assert answer is not None
    found = dict(answer.headers)
    assert (answer.status, found[b"access-control-allow-headers"]) == (200, b"fencing-token, prefer")
    assert b"PATCH" in found[b"access-control-allow-methods"]
    assert b"access-control-allow-credentials" not in found
    answer = ONE.preflight("OPTIONS", [*ASKS, (b"access-control-request-headers", b'x"; y')])
    assert answer is not None
    assert b"access-control-allow-headers" not in dict(answer.headers), "what is no name is not repeated"


@pytest.mark.parametrize(
    "headers",
    [
        *(
            [(b"origin", origin), ASKS[1]]
            for origin in (
                b"https://evil.example", b"https://app.example.evil.example", b"http://app.example",
                b"https://app.example:444", b"null", b"\xff",
            )
        ),
        [*ASKS, (b"origin", b"https://evil.example")],
        [ASKS[0]],
        [ASKS[1]],
    ],
)  # fmt: skip
def test_whoever_is_not_let_in_gets_no_answer_of_this_kind(headers: list[tuple[bytes, bytes]]) -> None:
    assert ONE.preflight("OPTIONS", headers) is None
    assert NONE.preflight("OPTIONS", ASKS) is None, "nobody is let in by default"
    assert ONE.preflight("PATCH", ASKS) is None, "only a question is answered without a key"


def test_what_a_page_gets_to_see() -> None:
    found = dict(ONE.headers(APP))
    assert b"access-control-allow-credentials" not in found
    assert (found[b"vary"], found[b"access-control-allow-origin"]) == (b"Origin", APP)
    exposed = set(found[b"access-control-expose-headers"].split(b", "))
    assert exposed > {b"Fencing-Token", b"Fencing-Resource", b"Fencing-Would-Refuse", b"ETag", b"Content-Range"}
    assert b"Preference-Applied" in exposed
    assert ONE.headers(b"https://evil.example") == ONE.headers(None) == [(b"vary", b"Origin")]
    assert dict(ALL.headers(b"null"))[b"access-control-allow-origin"] == b"*"
    assert ALL.headers(None) == NONE.headers(APP) == []
