"""Cross-origin requests."""

import pytest

from gateway.tables.dialect.cors import Origins

APP = b"https://app.example"
ONE, ALL, NONE = Origins(("https://app.example",)), Origins(("*",)), Origins()
ASKS = [(b"origin", APP), (b"access-control-request-method", b"PATCH")]


def test_a_browser_asks_first() -> None:
    answer = ONE.preflight("OPTIONS", [*ASKS, (b"access-control-request-headers", b"fencing-token, prefer")])
    assert answer is not None
    found = dict(answer.headers)
    assert answer.status == 200
    assert found[b"access-control-allow-headers"] == b"fencing-token, prefer"
    assert b"PATCH" in found[b"access-control-allow-methods"]
    assert b"access-control-allow-credentials" not in found


@pytest.mark.parametrize(
    "headers",
    [
        [(b"origin", b"https://evil.example"), ASKS[1]],
        [(b"origin", b"https://app.example.evil.example"), ASKS[1]],
        [(b"origin", b"http://app.example"), ASKS[1]],
        [(b"origin", b"https://app.example:444"), ASKS[1]],
        [(b"origin", b"null"), ASKS[1]],
        [(b"origin", b"\xff"), ASKS[1]],
        [*ASKS, (b"origin", b"https://evil.example")],
        [ASKS[0]],
        [ASKS[1]],
    ],
)
def test_whoever_is_not_let_in_gets_no_answer_of_this_kind(headers: list[tuple[bytes, bytes]]) -> None:
    assert ONE.preflight("OPTIONS", headers) is None


def test_nobody_is_let_in_by_default() -> None:
    assert NONE.preflight("OPTIONS", ASKS) is None
    assert NONE.headers(APP) == []


def test_only_a_question_is_answered_without_a_key() -> None:
    assert ONE.preflight("PATCH", ASKS) is None


def test_names_that_are_no_headers_are_not_repeated() -> None:
    answer = ONE.preflight("OPTIONS", [*ASKS, (b"access-control-request-headers", b'x"; y')])
    assert answer is not None
    assert b"access-control-allow-headers" not in dict(answer.headers)


def test_what_a_page_gets_to_see() -> None:
    found = dict(ONE.headers(APP))
    assert b"access-control-allow-credentials" not in found
    assert found[b"vary"] == b"Origin"
    assert found[b"access-control-allow-origin"] == APP
    for name in (
        b"Fencing-Token",
        b"Fencing-Resource",
        b"Fencing-Would-Refuse",
        b"ETag",
        b"Content-Range",
        b"Preference-Applied",
    ):
        assert name in found[b"access-control-expose-headers"]
    assert ONE.headers(b"https://evil.example") == ONE.headers(None) == [(b"vary", b"Origin")]


def test_all_pages_may_read_where_the_operator_says_so() -> None:
    assert dict(ALL.headers(b"null"))[b"access-control-allow-origin"] == b"*"
    assert ALL.headers(None) == []
