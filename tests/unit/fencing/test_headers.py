"""What a writer says about its lock is read once, or refused."""

import pytest

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, TokenMalformed
from gateway.fencing.headers import MAX_PAIRS, FencingHeaders, read
from gateway.fencing.token import Token


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
def test_reads(headers: list[tuple[bytes, bytes]], expected: FencingHeaders) -> None:
    assert read(headers) == expected


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([(b"fencing-token", b"33"), (b"fencing-token", b"33")], TokenMalformed),
        ([(b"fencing-token", b"33"), (b"x-fencing-token", b"33")], TokenMalformed),
        ([(b"fencing-token", b"33"), (b"fencing_token", b"34")], TokenMalformed),
        ([(b"fencing-token", b"33, 34")], TokenMalformed),
        ([(b"fencing-token", b"order/5=34")], TokenMalformed),
        ([(b"fencing-token", "٣".encode())], TokenMalformed),
        ([(b"fencing-token", b"")], TokenMalformed),
        ([(b"fencing-resource", b"a"), (b"fencing-resource", b"b")], ResourceMalformed),
        ([(b"fencing-resource", b"a b")], ResourceMalformed),
        ([(b"fencing-resource", b"")], ResourceMalformed),
        ([(b"fencing-resource", b"x" * 513)], ResourceMalformed),
        ([(b"fencing-holder", b"")], RequestMalformed),
        ([(b"fencing-holder", b"x" * 201)], RequestMalformed),
        ([(b"fencing-holder", b"a\x1b[31m")], RequestMalformed),
        ([(b"fencing-holder", b"a"), (b"fencing-holder", b"b")], RequestMalformed),
    ],
)
def test_refuses(headers: list[tuple[bytes, bytes]], error: type[GatewayError]) -> None:
    with pytest.raises(error) as caught:
        read(headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"order/5=34", (("order/5", Token(0, 34)),)),
        (b"order/5=34, stock/9=2.12", (("order/5", Token(0, 34)), ("stock/9", Token(2, 12)))),
        (b"b=1 ,\ta=1", (("b", Token(0, 1)), ("a", Token(0, 1)))),
        (b"a%2Cb%3Dc=1", (("a%2Cb%3Dc", Token(0, 1)),)),
        (",".join(f"r/{number}=1" for number in range(MAX_PAIRS)).encode(), None),
    ],
)
@pytest.mark.parametrize("name", [b"fencing-token", b"x-fencing-token"])
def test_reads_pairs(name: bytes, text: bytes, expected: tuple[tuple[str, Token], ...] | None) -> None:
    shown = read([(name, text), (b"fencing-holder", b"ann")], pairs=True)
    assert (shown.token, shown.resource, shown.holder) == (None, None, "ann")
    assert len(shown.pairs) == MAX_PAIRS if expected is None else shown.pairs == expected


def test_one_token_stays_one_token() -> None:
    assert read([(b"fencing-token", b"33")], pairs=True) == FencingHeaders(Token(0, 33))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"order/5=", TokenMalformed),
        (b"=34", ResourceMalformed),
        (b"=", ResourceMalformed),
        (b"order/5=34,", TokenMalformed),
        (b",order/5=34", TokenMalformed),
        (b"order/5=34,,stock/9=1", TokenMalformed),
        (b"34, order/5=34", TokenMalformed),
        (b"order/5=34, 34", TokenMalformed),
        (b"order/5=34=35", TokenMalformed),
        (b"order/5=034", TokenMalformed),
        (b"order/5 =34", ResourceMalformed),
        (b"order/5= 34", TokenMalformed),
        (b"order/5=34; stock/9=1", TokenMalformed),
        (b"order/5=34, order/5=34", TokenMalformed),
        (b"order/5=34, order%2F5=34, a b=1", ResourceMalformed),
        ("caf\xe9=1".encode("latin-1"), ResourceMalformed),
        (b"a=1," * MAX_PAIRS + b"b=1", TokenMalformed),
        (b"x" * 513 + b"=1", ResourceMalformed),
    ],
)
def test_refuses_pairs(text: bytes, error: type[GatewayError]) -> None:
    with pytest.raises(error) as caught:
        read([(b"fencing-token", text)], pairs=True)
    assert caught.value.status == 400


def test_pairs_name_their_resources_themselves() -> None:
    with pytest.raises(ResourceMalformed, match="themselves"):
        read([(b"fencing-token", b"a=1"), (b"fencing-resource", b"a")], pairs=True)
