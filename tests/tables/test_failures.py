"""Errors as the dialect answers them."""

from datetime import UTC, datetime
from uuid import UUID

import orjson
import pytest

from gateway.errors import DialectError, GatewayError, SqlError, TokenRequired, Unauthenticated, Unavailable
from gateway.fencing.decision import Fence
from gateway.fencing.record import Attempt, Rejection, refusal_error
from gateway.fencing.token import Token
from gateway.tables.dialect import errors
from gateway.tables.dialect.response import Response


def header(answer: Response, name: bytes) -> str | None:
    return {key: value.decode() for key, value in answer.headers}.get(name)


def of_database(error: SqlError, *, known_caller: bool = True, verbose: bool = True) -> GatewayError:
    return errors.of_database(error, known_caller=known_caller, verbose=verbose)


@pytest.mark.parametrize(
    ("sqlstate", "message", "status"),
    [
        ("09000", "", 500), ("0L000", "", 403), ("0P000", "", 403), ("21000", "", 500),
        ("21000", "UPDATE requires a WHERE clause", 400), ("21000", "DELETE requires a WHERE clause", 400),
        ("22023", "", 400), ("22023", 'role "x" does not exist', 401), ("22P02", "", 400), ("23502", "", 400),
        ("23503", "", 409), ("23505", "", 409), ("23514", "", 400), ("23P01", "", 400), ("25006", "", 405),
        ("25001", "", 500), ("28000", "", 403), ("2D000", "", 500), ("38000", "", 500), ("39000", "", 500),
        ("3B000", "", 500), ("42501", "", 403), ("42703", "", 400),
        ("42804", "", 400), ("42883", "", 404), ("42P01", "", 404), ("42P17", "", 500), ("42601", "", 400),
        ("54000", "", 500), ("55000", "", 500), ("58000", "", 500), ("F0000", "", 500), ("HV000", "", 500),
        ("P0000", "", 500), ("P0001", "", 400), ("P0002", "", 500), ("XX000", "", 500), ("PT418", "", 418),
        ("PT200", "", 200),
        ("PT999", "", 500), ("PTABC", "", 500), ("99999", "", 400),
    ],
)  # fmt: skip
def test_sqlstates(sqlstate: str, message: str, status: int) -> None:
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


@pytest.mark.parametrize(
    "failure", [TokenRequired("x"), Unauthenticated("x"), Unavailable("x"), DialectError("P", 400, "x")]
)
def test_errors_have_four_keys_each_a_text_or_null(failure: GatewayError) -> None:
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


def test_what_tells_of_the_schema_can_be_kept_back() -> None:
    quoted = of_database(SqlError("23514", "m", detail="Failing row contains (hash).", hint="h"), verbose=False)
    suggested = DialectError("PGRST205", 404, "m", hint="Perhaps you meant the table 'public.secrets'")
    for failure in (quoted, suggested):
        document = orjson.loads(errors.answer(failure, verbose=False).body)
        assert (document["message"], document["details"], document["hint"]) == ("m", None, None)


def test_clients_need_the_number_of_rows_whatever_is_kept_back() -> None:
    none = DialectError("PGRST116", 406, "m", details="The result contains 0 rows")
    assert orjson.loads(errors.answer(none, verbose=False).body)["details"] == "The result contains 0 rows"


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
