"""Statuses, headers and bodies of answers: successes, errors, what code in the database sets, other origins."""

from datetime import UTC, datetime
from uuid import UUID

import orjson
import pytest

from gateway.errors import DialectError, GatewayError, SqlError
from gateway.fencing.decision import Fence
from gateway.fencing.record import Attempt, Rejection, refusal_error
from gateway.fencing.token import Token
from gateway.tables.dialect import errors, response
from gateway.tables.dialect.response import Origins
from tests.tables.asking import column, table


def header(answer: response.Response, name: bytes) -> str | None:
    return {key: value.decode() for key, value in answer.headers}.get(name)


def test_the_location_of_a_new_row() -> None:
    pair = table(column("a b"), column("c"), key=("a b", "c"))
    assert response.location("/v1/tables/t", pair, ["x&y/z", None]) == b"/v1/tables/t?a%20b=eq.x%26y%2Fz&c=is.null"


def of_database(error: SqlError, *, known_caller: bool = True, verbose: bool = True) -> GatewayError:
    return errors.of_database(error, known_caller=known_caller, verbose=verbose)


def test_sqlstates(subtests: pytest.Subtests) -> None:
    """Errors that no row of ``tests/conformance/tables`` raises."""
    for sqlstate, message, status in (
        ("21000", "DELETE requires a WHERE clause", 400), ("22023", "", 400), ("22P02", "", 400), ("25006", "", 405),
        ("42501", "", 403), ("42601", "", 400), ("42703", "", 400), ("42804", "", 400), ("P0000", "", 500),
        ("PT418", "", 418), ("PT200", "", 200), ("PT999", "", 500), ("PTABC", "", 500),
    ):  # fmt: skip
        with subtests.test(sqlstate=sqlstate):
            answer = errors.answer(of_database(SqlError(sqlstate, message, detail="d", hint="h")))
            assert answer.status == status
            assert orjson.loads(answer.body) == {"code": sqlstate, "message": message, "details": "d", "hint": "h"}
            assert header(answer, b"proxy-status") == f"PostgREST; error={sqlstate}"


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


def test_headers_the_gateway_answers_for_cannot_be_raised() -> None:
    names = (
        "Content-Length", "transfer-encoding", "Connection", "Fencing-Token", "fencing-resource", "Proxy-Status",
        "Access-Control-Allow-Origin", "X-Request-Id", "Content-Range", "X-Own",
    )  # fmt: skip
    detail = orjson.dumps({"status": 402, "headers": dict.fromkeys(names, "1")}).decode()
    assert errors.raised(SqlError("PGRST", RAISED, detail=detail)).headers == ((b"x-own", b"1"),)


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
                '{"status":400,"headers":{"a b":"1"}}', '{"status":400,"headers":{"a":"\\u20ac"}}',
            )
        ),
    ],
)  # fmt: skip
def test_an_error_that_tries_to(message: str, detail: str | None, part: str) -> None:
    error = errors.raised(SqlError("PGRST", message, detail=detail))
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
