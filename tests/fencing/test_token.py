"""Tokens: how they are written, how they are read from headers, and the decision about one."""

import re
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, SequencerMalformed, TokenMalformed
from gateway.fencing.decision import Decision, Equal, Fence, Presented, decide
from gateway.fencing.headers import HOLDER_PATTERN, MAX_PAIRS, FencingHeaders, read
from gateway.fencing.token import GRAMMAR, MAX_EPOCH, MAX_VALUE, Token
from tests import ROOT

tokens = st.builds(Token, epoch=st.integers(0, MAX_EPOCH), value=st.integers(0, MAX_VALUE))


MALFORMED = [
    "", " ", "-1", "+1", "01", "1.01", "01.1", "1.", ".1", "1.2.3", "1,2", "0x1", "1e3", "1_0", " 1", "1 ", "1\n",
    "\t1", "٣", "１", "²", "abc", "null", "1;2", str(MAX_VALUE + 1), f"{MAX_EPOCH + 1}.0", "9" * 4000, "1\x00",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED, ids=ascii)
def test_refuses(text: str) -> None:
    with pytest.raises(TokenMalformed) as caught:
        Token.parse(text)
    assert caught.value.status == 400
    assert len(caught.value.message) < 200, "a hostile token must not be echoed at length"
    assert caught.value.message.isascii()


@given(tokens)
def test_what_is_written_reads_back(token: Token) -> None:
    assert Token.parse(str(token)) == token


@given(st.text(max_size=30))
def test_anything_else_is_refused_or_canonical(text: str) -> None:
    try:
        token = Token.parse(text)
    except TokenMalformed:
        return
    assert text in (str(token), f"0.{token}")


_NEAR_AN_END = st.sampled_from([0, 10, 99, MAX_EPOCH, MAX_VALUE]).flatmap(lambda end: st.integers(end - 3, end + 3))
_NUMBERS = st.one_of(_NEAR_AN_END, *(st.integers(0, 10**digits) for digits in (1, 9, 11, 18, 20)))


@given(st.builds("{}.{}".format, _NUMBERS, _NUMBERS) | _NUMBERS.map(str) | st.sampled_from(MALFORMED))
def test_the_grammar_that_schemas_have_takes_all_tokens_and_nothing_else(text: str) -> None:
    try:
        is_token = bool(str(Token.parse(text)))
    except TokenMalformed:
        is_token = False
    assert bool(re.fullmatch(GRAMMAR, text)) == is_token


# The decision -------------------------------------------------------------------------------------------------------


MINE, OTHER = UUID(int=1), UUID(int=2)


def fence(epoch: int, value: int, holder: str | None = None, write_id: UUID | None = OTHER) -> Fence:
    return Fence("r", Token(epoch, value), holder, None, datetime(2026, 1, 1, tzinfo=UTC), write_id)


@pytest.mark.parametrize(
    ("stands", "shown", "equal", "decision"),
    [
        (None, Presented(Token(0, 0)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 34)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 33)), Equal.ACCEPT, Decision.HELD),
        (fence(0, 34), Presented(Token(0, 33)), Equal.ACCEPT, Decision.STALE),
        (fence(1, 1), Presented(Token(0, 99)), Equal.ACCEPT, Decision.STALE),
        (fence(0, 99), Presented(Token(1, 0)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "ann"), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "bob"), Equal.ACCEPT, Decision.DUPLICATE),
        (fence(0, 33, "ann"), Presented(Token(0, 33)), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33), Presented(Token(0, 33), "bob"), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 32), "bob"), Equal.ACCEPT, Decision.STALE),
        (fence(0, 33, "ann"), Presented(Token(0, 34), "bob"), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.USED),
        (fence(0, 33, None, MINE), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.HELD),
        (fence(0, 33, None, None), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "bob", MINE), Equal.STRICT, Decision.DUPLICATE),
        (fence(0, 33), Presented(Token(0, 34), None, MINE), Equal.STRICT, Decision.RAISED),
    ],
)
def test_decisions(stands: Fence | None, shown: Presented, equal: Equal, decision: Decision) -> None:
    assert decide(stands, shown, equal) is decision
    assert decision.passes is (decision in {Decision.RAISED, Decision.HELD})


# Headers ------------------------------------------------------------------------------------------------------------

FIRST, SECOND = "order/5:exclusive:34:c2lnbmF0dXJl", "stock/9:shared:2.12:c2lnbmF0dXJl"
FIVE, NINE = ("order/5", Token(0, 34)), ("stock/9", Token(2, 12))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], FencingHeaders()),
        ([(b"fencing-token", b"33")], FencingHeaders(Token(0, 33))),
        ([(b"Fencing-Token", b"2.33")], FencingHeaders(Token(2, 33))),
        ([(b"x-fencing-token", b"33")], FencingHeaders(Token(0, 33))),
        ([(b"fencing-resource", b"order/5")], FencingHeaders(resource="order/5")),
        ([(b"fencing-token", b"1"), (b"fencing-holder", b"host 7")], FencingHeaders(Token(0, 1), None, "host 7")),
    ],
)
def test_headers_are_read(headers: list[tuple[bytes, bytes]], expected: FencingHeaders) -> None:
    for pairs in (False, True):
        assert read(headers, pairs=pairs) == expected


@pytest.mark.parametrize("name", [b"fencing-token", b"x-fencing-token"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"order/5=34", (FIVE,)),
        (b"order/5=34, stock/9=2.12", (FIVE, NINE)),
        (b"b=1 ,\ta=1", (("b", Token(0, 1)), ("a", Token(0, 1)))),
        (b"a%2Cb%3Dc=1", (("a%2Cb%3Dc", Token(0, 1)),)),
        (b",".join(b"r/%d=1" % n for n in range(MAX_PAIRS)), tuple((f"r/{n}", Token(0, 1)) for n in range(MAX_PAIRS))),
    ],
)
def test_pairs_are_read(name: bytes, text: bytes, expected: tuple[tuple[str, Token], ...]) -> None:
    shown = read([(name, text), (b"fencing-holder", b"ann")], pairs=True)
    assert (shown.token, shown.resource, shown.holder, shown.pairs) == (None, None, "ann", expected)


NO_HEADERS: dict[type[GatewayError], list[list[tuple[bytes, bytes]]]] = {
    TokenMalformed: [
        [(b"fencing-token", b"33"), (b"fencing-token", b"33")],
        [(b"fencing-token", b"33"), (b"x-fencing-token", b"33")],
        [(b"fencing-token", b"33"), (b"fencing_token", b"34")],
        *([(b"fencing-token", text)] for text in (b"33, 34", b"order/5=34", "٣".encode(), b"")),
    ],
    ResourceMalformed: [
        [(b"fencing-resource", b"a"), (b"fencing-resource", b"b")],
        *([(b"fencing-resource", text)] for text in (b"a b", b"", b"x" * 513)),
    ],
    RequestMalformed: [
        [(b"fencing-holder", b"a"), (b"fencing-holder", b"b")],
        *([(b"fencing-holder", text)] for text in (b"", b"x" * 201, b"a\x1b[31m")),
    ],
}
NO_PAIRS = {
    TokenMalformed: [
        *(b"order/5=", b"order/5=34,", b",order/5=34", b"order/5=34,,stock/9=1", b"34, order/5=34", b"order/5=34, 34"),
        *(b"order/5=34=35", b"order/5=034", b"order/5= 34", b"order/5=34; stock/9=1", b"order/5=34, order/5=34"),
        b"a=1," * MAX_PAIRS + b"b=1",
    ],
    ResourceMalformed: [
        *(b"=34", b"=", b"order/5 =34", b"order/5=34, order%2F5=34, a b=1", "caf\xe9=1".encode("latin-1")),
        b"x" * 513 + b"=1",
    ],
}


@pytest.mark.parametrize(
    ("headers", "pairs", "error"),
    [
        *((headers, False, error) for error, all_of_them in NO_HEADERS.items() for headers in all_of_them),
        *(([(b"fencing-token", text)], True, error) for error, texts in NO_PAIRS.items() for text in texts),
        ([(b"fencing-token", b"a=1"), (b"fencing-resource", b"a")], True, ResourceMalformed),
    ],
)
def test_headers_are_refused(headers: list[tuple[bytes, bytes]], error: type[GatewayError], *, pairs: bool) -> None:
    with pytest.raises(error) as caught:
        read(headers, pairs=pairs)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("said", "token", "resource", "pairs"),
    [
        ({}, Token(0, 34), "order/5", ()),
        ({"fencing-resource": "order/5"}, Token(0, 34), "order/5", ()),
        ({"fencing-token": "34"}, Token(0, 34), None, ()),
        ({"fencing-token": "34", "fencing-resource": "order/6"}, Token(0, 34), "order/6", ()),
        ({"fencing_token": "34", "fencing-resource": "order/5"}, Token(0, 34), "order/5", ()),
        ({"fencing-token": "order/5=34"}, None, None, (FIVE,)),
        ({"fencing-token": "order/5=34, stock/9=2.12"}, None, None, (FIVE, NINE)),
    ],
)
@pytest.mark.parametrize("name", ["Fencing-Sequencer", "fencing_sequencer"])
def test_a_sequencer_names_its_resource_and_its_token(
    name: str, said: dict[str, str], token: Token | None, resource: str | None, pairs: tuple[tuple[str, Token], ...]
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in {**said, name: FIRST}.items()]
    found = read(raw, pairs=True)
    assert (found.token, found.resource, found.pairs) == (token, resource, pairs)
    assert [one.text for one in found.sequencers] == [FIRST]


@pytest.mark.parametrize("said", [{}, {"fencing-token": "order/5=34, stock/9=2.12"}])
def test_several_are_pairs(said: dict[str, str]) -> None:
    raw = [
        (name.encode(), value.encode()) for name, value in {**said, "fencing-sequencer": f"{FIRST}, {SECOND}"}.items()
    ]
    found = read(raw, pairs=True)
    assert (found.token, found.resource, found.pairs) == (None, None, (FIVE, NINE))
    assert [one.text for one in found.sequencers] == [FIRST, SECOND]


@pytest.mark.parametrize(
    ("said", "sequencer", "pairs", "error"),
    [
        ({"fencing-token": "35"}, FIRST, False, TokenMalformed),
        ({"fencing-token": "1.34"}, FIRST, False, TokenMalformed),
        ({"fencing-token": "order/5=35"}, FIRST, True, TokenMalformed),
        ({"fencing-token": "order/6=34"}, FIRST, True, TokenMalformed),
        ({"fencing-token": "34"}, f"{FIRST}, {SECOND}", True, TokenMalformed),
        ({"fencing-resource": "order/6"}, FIRST, False, ResourceMalformed),
        ({"fencing-resource": "order/5"}, f"{FIRST}, {SECOND}", True, ResourceMalformed),
        ({}, f"{FIRST}, {SECOND}", False, TokenMalformed),
        ({}, f"{FIRST},{FIRST}", True, SequencerMalformed),
        ({}, ",".join(f"r/{n}:shared:1:AA" for n in range(MAX_PAIRS + 1)), True, SequencerMalformed),
        ({}, "", True, SequencerMalformed),
        ({}, f"{FIRST},", True, SequencerMalformed),
        ({}, "x" * 1024 * 1024, True, SequencerMalformed),
        ({}, "é" * 100, True, SequencerMalformed),
        ({"fencing_sequencer": FIRST}, FIRST, True, SequencerMalformed),
    ],
)
def test_sequencers_that_contradict_or_cannot_be_read(
    said: dict[str, str], sequencer: str, error: type[GatewayError], *, pairs: bool
) -> None:
    raw = [(name.encode(), value.encode()) for name, value in (*said.items(), ("fencing-sequencer", sequencer))]
    with pytest.raises(error) as caught:
        read(raw, pairs=pairs)
    assert caught.value.status == 400
    assert "c2lnbmF0dXJl" not in caught.value.message + caught.value.advice


def test_the_gateway_and_the_guard_take_the_same_names_of_holders() -> None:
    guard = (ROOT / "gateway/db/schema/guard.sql").read_text()
    assert f"""hold.holder COLLATE "C" !~ '^{HOLDER_PATTERN}$'""" in guard
