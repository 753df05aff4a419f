"""What a writer says about its lock is read once, or refused."""

import pytest

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed, TokenMalformed
from gateway.fencing.headers import FencingHeaders, read
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
