"""The documents of a transaction: what is read of them, to the letter, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, TokenMalformed, Unavailable
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.tables.dialect import transaction_document
from gateway.tables.dialect.response import Response
from gateway.tables.dialect.transaction_document import Entry, of_write

NOTHING = FencingHeaders()
PATCH: dict[str, Any] = {"method": "PATCH", "table": "accounts", "query": "id=eq.1", "body": {"note": "x"}}


def parse(*writes: object, shown: FencingHeaders = NOTHING) -> tuple[Entry, ...]:
    return transaction_document.parse(json.dumps({"writes": writes}).encode(), shown)


def test_a_write() -> None:
    (one,) = parse({**PATCH, "schema": "s", "prefer": "return=minimal", "if_match": '"a"', "token": "5"})
    assert (one.method, one.table, one.schema, one.query) == ("PATCH", "accounts", "s", b"id=eq.1")
    assert (one.body, one.shown.token) == (b'{"note": "x"}', Token(0, 5))
    assert one.headers == {b"prefer": "return=minimal", b"if-match": '"a"'}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(
    bodies=st.lists(json_values, min_size=1, max_size=4),
    indent=st.sampled_from([None, 0, 3]),
    ascii_only=st.booleans(),
    last=st.booleans(),
)
def test_bodies_are_taken_as_they_stand(bodies: list[Any], indent: int | None, *, ascii_only: bool, last: bool) -> None:
    """Bodies stay unchanged, whatever surrounds them and however they are written."""
    rest = {"method": "POST", "table": 't"]}{[,:'}
    writes = [{**rest, "body": body} if last else {"body": body, **rest} for body in bodies]
    document = json.dumps({"writes": writes}, indent=indent, ensure_ascii=ascii_only)
    for entry, body in zip(transaction_document.parse(document.encode(), NOTHING), bodies, strict=True):
        text = entry.body.decode()
        assert text in document
        assert json.loads(text) == body


@pytest.mark.parametrize(
    "number", ["1.000", "1e5", "1E+05", "-0", "0.1234567890123456789012345", "12345678901234567890123"]
)
def test_numbers_keep_their_digits(number: str) -> None:
    document = f'{{"writes": [{{"method": "POST", "table": "t", "body": {{"n": {number}}}}}]}}'
    assert transaction_document.parse(document.encode(), NOTHING)[0].body == f'{{"n": {number}}}'.encode()


def test_queries_may_hold_any_letters() -> None:
    (one,) = parse({**PATCH, "query": 'name=eq.Zoë x&b="c%20d"'})
    assert one.query == b'name=eq.Zo%C3%AB%20x&b="c%20d"'


class TestLocks:
    DEFAULT = FencingHeaders(Token(0, 7), None, "ann")
    PAIRS = FencingHeaders(holder="ann", pairs=(("a/1", Token(0, 1)),))

    @pytest.mark.parametrize(
        ("own", "shown"),
        [
            ({}, DEFAULT),
            ({"holder": "bob"}, FencingHeaders(Token(0, 7), None, "bob")),
            ({"token": "8"}, FencingHeaders(Token(0, 8), None, "ann")),
            ({"token": "8", "resource": "x/1"}, FencingHeaders(Token(0, 8), "x/1", "ann")),
            ({"resource": "x/1"}, FencingHeaders(Token(0, 7), "x/1", "ann")),
            ({"token": "x/1=8"}, FencingHeaders(holder="ann", pairs=(("x/1", Token(0, 8)),))),
        ],
    )
    def test_what_a_write_does_not_say_the_headers_do(self, own: dict[str, str], shown: FencingHeaders) -> None:
        assert parse({**PATCH, **own}, shown=self.DEFAULT)[0].shown == shown

    def test_pairs_in_the_headers(self) -> None:
        assert parse(PATCH, shown=self.PAIRS)[0].shown == self.PAIRS
        assert parse({**PATCH, "token": "3"}, shown=self.PAIRS)[0].shown == FencingHeaders(Token(0, 3), None, "ann")
        with pytest.raises(ResourceMalformed):
            parse({**PATCH, "resource": "x/1"}, shown=self.PAIRS)

    def test_a_resource_in_the_headers_is_that_of_their_token(self) -> None:
        """Not of a write that has brought a token of its own."""
        default = FencingHeaders(Token(0, 7), "job/1")
        assert parse(PATCH, shown=default)[0].shown == default
        assert parse({**PATCH, "token": "3"}, shown=default)[0].shown == FencingHeaders(Token(0, 3))

    @pytest.mark.parametrize(
        ("own", "kind"),
        [
            ({"token": ""}, TokenMalformed),
            ({"token": "-1"}, TokenMalformed),
            ({"token": "1,2"}, TokenMalformed),
            ({"token": "٣"}, TokenMalformed),
            ({"token": "a=1, a=2"}, TokenMalformed),
            ({"resource": ""}, ResourceMalformed),
            ({"resource": "a b"}, ResourceMalformed),
            ({"resource": "é"}, ResourceMalformed),
            ({"holder": ""}, RequestMalformed),
            ({"holder": "a\n"}, RequestMalformed),
            ({"holder": "é"}, RequestMalformed),
        ],
    )
    def test_what_cannot_be_read(self, own: dict[str, str], kind: type[GatewayError]) -> None:
        with pytest.raises(kind) as caught:
            parse(PATCH, {**PATCH, **own})
        assert caught.value.facts["write"] == 1


class TestFingerprints:
    def test_locks_are_no_part_of_it(self) -> None:
        first = parse({**PATCH, "token": "5", "holder": "ann"})
        again = parse({**PATCH, "token": "6", "resource": "public.accounts/1"}, shown=FencingHeaders(Token(0, 9)))
        assert transaction_document.fingerprint(first) == transaction_document.fingerprint(again)

    @pytest.mark.parametrize(
        "other",
        [
            {"method": "PUT"}, {"table": "others"}, {"schema": "s"}, {"query": "id=eq.2"}, {"body": {"note": "y"}},
            {"prefer": "x"}, {"if_match": '"x"'}, {"if_none_match": '"x"'},
        ],
    )  # fmt: skip
    def test_everything_else_is(self, other: dict[str, Any]) -> None:
        assert transaction_document.fingerprint(parse(PATCH)) != transaction_document.fingerprint(
            parse({**PATCH, **other})
        )
        assert transaction_document.fingerprint(parse(PATCH)) != transaction_document.fingerprint(parse(PATCH, PATCH))
        assert transaction_document.fingerprint(
            parse({**PATCH, "if_match": '"x"'})
        ) != transaction_document.fingerprint(parse({**PATCH, "if_none_match": '"x"'}))


def test_errors_say_which_write_they_are_about_once() -> None:
    with pytest.raises(Unavailable) as caught, of_write(1), of_write(2):
        raise Unavailable("x")
    assert caught.value.facts == {"write": 2}


def test_answers_are_put_together_as_they_are() -> None:
    first = Response(200, [(b"etag", b'"a"'), (b"content-length", b"12"), (b"content-type", b"x")], b'[{"n":1.00}]')
    answer = transaction_document.combined([first, Response(204)])
    assert answer.status == 200
    assert answer.body == (
        b'{"results":[{"status":200,"headers":{"etag":"\\"a\\""},"body":[{"n":1.00}]},'
        b'{"status":204,"headers":{},"body":null}]}'
    )
    assert dict(answer.headers)[b"content-length"] == str(len(answer.body)).encode()
