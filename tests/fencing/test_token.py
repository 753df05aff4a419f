"""Nothing but the grammar parses, and tokens order by epoch, then by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import TokenMalformed
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token

tokens = st.builds(Token, epoch=st.integers(0, MAX_EPOCH), value=st.integers(0, MAX_VALUE))


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("0", Token(0, 0)),
        ("34", Token(0, 34)),
        ("2.34", Token(2, 34)),
        ("0.7", Token(0, 7)),
        (str(MAX_VALUE), Token(0, MAX_VALUE)),
        (f"{MAX_EPOCH}.{MAX_VALUE}", Token(MAX_EPOCH, MAX_VALUE)),
    ],
)
def test_reads(text: str, token: Token) -> None:
    assert Token.parse(text) == token


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


@given(tokens, tokens)
def test_the_epoch_counts_first(one: Token, other: Token) -> None:
    assert (one < other) == ((one.epoch, one.value) < (other.epoch, other.value))


@given(st.text(max_size=30))
def test_anything_else_is_refused_or_canonical(text: str) -> None:
    try:
        token = Token.parse(text)
    except TokenMalformed:
        return
    assert text in (str(token), f"0.{token}")
