"""A body is whole and true before anything is written."""

import pytest

from gateway.errors import BodyTooLarge, GatewayError
from gateway.objects.body.intake import Inspection, VerifiedBody, whole

Headers = list[tuple[bytes, bytes]]

PLAIN: Headers = [(b"Content-Length", b"5"), (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD")]
FRAMED: Headers = [
    (b"content-encoding", b"gzip,aws-chunked"),
    (b"x-amz-content-sha256", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    (b"x-amz-decoded-content-length", b"5"),
    (b"x-amz-trailer", b"x-amz-checksum-crc32"),
]
HELLO = b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n"


def take(headers: Headers, *pieces: bytes, max_size: int = 100) -> VerifiedBody:
    inspection = Inspection(headers, sha256=None, signatures=None, max_size=max_size)
    inspection.request_digests(md5=True, sha256=True)
    content = [inspection.feed(piece) for piece in pieces]
    return whole(content, inspection.finish())


def refusal(headers: Headers, *pieces: bytes) -> tuple[str, int]:
    with pytest.raises(GatewayError) as caught:
        take(headers, *pieces)
    return caught.value.s3_code, caught.value.status


def test_a_body_with_a_length() -> None:
    assert take(PLAIN, b"he", b"", b"llo").content == b"hello"


def test_a_body_in_chunks_with_a_checksum_at_the_end() -> None:
    body = take(FRAMED, HELLO[:7], HELLO[7:])
    assert body.content == b"hello"
    assert body.digests.headers == (("x-amz-checksum-crc32", "NhCmhg=="),)


@pytest.mark.parametrize(
    ("headers", "pieces", "expected"),
    [
        (PLAIN, [b"hell"], ("IncompleteBody", 400)),
        (PLAIN, [], ("IncompleteBody", 400)),
        (PLAIN, [b"hello", b"!"], ("IncompleteBody", 400)),
        (FRAMED, [HELLO[:-2]], ("IncompleteBody", 400)),
        (FRAMED, [HELLO.replace(b"hello", b"hullo")], ("BadDigest", 400)),
        (FRAMED, [b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"], ("IncompleteBody", 400)),
        (PLAIN[1:], [b"hello"], ("MissingContentLength", 411)),
        (FRAMED[:2], [HELLO], ("MissingContentLength", 411)),
        ([(b"content-length", b"-5")], [b"hello"], ("InvalidArgument", 400)),
        ([(b"content-length", b"+5")], [b"hello"], ("InvalidArgument", 400)),
        ([(b"content-length", b"5_0")], [b"hello"], ("InvalidArgument", 400)),
        ([(b"content-length", b"")], [b"hello"], ("InvalidArgument", 400)),
        ([(b"content-length", "٥".encode())], [b"hello"], ("InvalidArgument", 400)),
        ([(b"content-length", b"9" * 30)], [b"hello"], ("InvalidArgument", 400)),
        ([*PLAIN, (b"content-encoding", b"aws-chunked")], [b"hello"], ("InvalidRequest", 400)),
        ([*PLAIN, (b"x-amz-trailer", b"x-amz-checksum-crc32")], [b"hello"], ("InvalidRequest", 400)),
    ],
)
def test_bodies_that_are_not_what_they_say(headers: Headers, pieces: list[bytes], expected: tuple[str, int]) -> None:
    assert refusal(headers, *pieces) == expected


def test_a_body_too_large_is_refused_before_it_arrives() -> None:
    for headers in (PLAIN, FRAMED):
        with pytest.raises(BodyTooLarge):
            Inspection(headers, sha256=None, signatures=None, max_size=4)


def test_the_signed_hash_is_compared() -> None:
    body = Inspection(PLAIN, sha256="0" * 64, signatures=None, max_size=5)
    body.feed(b"hello")
    with pytest.raises(GatewayError, match="does not match"):
        body.finish()
