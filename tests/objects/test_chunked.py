"""A framed body is believed only if every part of its framing is what it must be."""

import hashlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import signature_claims
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import ChunkSignatures, RequestHead, verify
from gateway.errors import StoreError
from gateway.objects.body.chunked import MAX_LINE, Decoder

CRC = "x-amz-checksum-crc32"


def decode(decoder: Decoder, *pieces: bytes) -> tuple[bytes, dict[str, str]]:
    decoded = b"".join(decoder.feed(piece) for piece in pieces)
    return decoded, decoder.finish()


def refusal(decoder: Decoder, *pieces: bytes) -> str:
    with pytest.raises(StoreError) as caught:
        decode(decoder, *pieces)
    assert 400 <= caught.value.status < 500
    return caught.value.s3_code


WHOLE = b"5\r\nhello\r\n6\r\n world\r\n0\r\nx-amz-checksum-crc32:DUoRhQ==\r\n\r\n"


def test_what_boto3_sends_is_decoded() -> None:
    assert decode(Decoder(11, trailers={CRC}), WHOLE) == (b"hello world", {CRC: "DUoRhQ=="})


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=6), st.integers(1, 40))
def test_any_chunks_in_any_pieces(chunks: list[bytes], step: int) -> None:
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    pieces = [framed[start : start + step] for start in range(0, len(framed), step)]
    body = b"".join(chunks)
    assert decode(Decoder(len(body)), *pieces) == (body, {})


def test_a_body_that_ends_early_is_refused_wherever_it_ends(subtests: pytest.Subtests) -> None:
    for end in range(len(WHOLE)):
        with subtests.test(end=end):
            assert refusal(Decoder(11, trailers={CRC}), WHOLE[:end]) == "IncompleteBody"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"3\r\nabc\r\n0\r\n\r\n", "IncompleteBody", id="shorter than declared"),
        pytest.param(b"5\r\nabcde\r\n0\r\n\r\n", "IncompleteBody", id="longer than declared"),
        pytest.param(b"ffffffffffffffff\r\n", "IncompleteBody", id="far longer than declared"),
        pytest.param(b"4\r\nabcd\r\n0\r\n\r\nx", "IncompleteBody", id="goes on after the end"),
        pytest.param(b"4\r\nabcd\r\n0\r\n\r\n0\r\n\r\n", "IncompleteBody", id="ends twice"),
        pytest.param(b"4\r\nabcde\r\n0\r\n\r\n", "InvalidChunkSizeError", id="chunk longer than it says"),
        pytest.param(b"-4\r\nabcd\r\n0\r\n\r\n", "InvalidChunkSizeError", id="negative size"),
        pytest.param(b"0x4\r\nabcd\r\n0\r\n\r\n", "InvalidChunkSizeError", id="prefixed size"),
        pytest.param(b" 4\r\nabcd\r\n0\r\n\r\n", "InvalidChunkSizeError", id="size with a space"),
        pytest.param(b"\r\nabcd\r\n0\r\n\r\n", "InvalidChunkSizeError", id="no size"),
        pytest.param(b"0" * 17 + b"\r\n", "InvalidChunkSizeError", id="size too long"),
        pytest.param(b"4;a=b\r\nabcd\r\n0\r\n\r\n", "InvalidChunkSizeError", id="unknown extension"),
        pytest.param(b"4;chunk-signature=" + b"0" * 64 + b"\r\nabcd\r\n", "InvalidChunkSizeError", id="signed"),
        pytest.param(b"4\nabcd\n0\n\n", "IncompleteBody", id="bare line feeds"),
        pytest.param(b"4" * (MAX_LINE + 1), "IncompleteBody", id="endless line"),
        pytest.param(b"abcd", "IncompleteBody", id="not framed"),
    ],
)
def test_contradictory_framing_is_refused(body: bytes, code: str) -> None:
    assert refusal(Decoder(4), body) == code


@pytest.mark.parametrize(
    "trailer",
    [
        pytest.param(b"", id="declared but missing"),
        pytest.param(b"x-amz-checksum-crc32c:AAAAAA==\r\n", id="another one"),
        pytest.param(b"x-amz-checksum-crc32:a\r\nx-amz-checksum-crc32:b\r\n", id="twice"),
        pytest.param(b"x-amz-checksum-crc32:a\r\nx-more:b\r\n", id="one too many"),
        pytest.param(b"no colon\r\n", id="no colon"),
        pytest.param(b":a\r\n", id="no name"),
        pytest.param(b" x-amz-checksum-crc32:a\r\n", id="folded line"),
        pytest.param(b"x-amz-checksum-crc32:a\r\nx-amz-trailer-signature:" + b"0" * 64 + b"\r\n", id="signed"),
    ],
)
def test_trailers_that_are_not_what_was_declared(trailer: bytes) -> None:
    assert refusal(Decoder(0, trailers={CRC}), b"0\r\n" + trailer + b"\r\n") == "MalformedTrailerError"


def test_many_trailers_are_not_collected() -> None:
    lines = b"".join(b"x-%d:a\r\n" % number for number in range(1000))
    assert refusal(Decoder(0), b"0\r\n" + lines + b"\r\n") == "MalformedTrailerError"


# The chunked upload of the S3 documentation: 66,560 times "a" in chunks of 64 KiB and 1 KiB.
ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
THEN = datetime(2013, 5, 24, tzinfo=UTC)
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
SIGNATURES = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)


def published() -> ChunkSignatures:
    credential = f"Credential={ID}/20130524/us-east-1/s3/aws4_request"
    headers = {
        "host": "s3.amazonaws.com",
        "x-amz-date": "20130524T000000Z",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "content-encoding": "aws-chunked",
        "x-amz-decoded-content-length": "66560",
        "content-length": "66824",
    }
    authorization = f"AWS4-HMAC-SHA256 {credential},SignedHeaders={';'.join(sorted(headers))},Signature={SEED}"
    headers["authorization"] = authorization
    head = RequestHead(
        "PUT", b"/examplebucket/chunkObject.txt", b"", [(k.encode(), v.encode()) for k, v in headers.items()]
    )
    chunks = verify(head, lambda *_: (Principal("worker"), SECRET), THEN).chunks
    assert chunks is not None
    return chunks


def framed(*chunks: bytes, signatures: tuple[str, ...] = SIGNATURES) -> bytes:
    return b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (len(chunk), signature.encode(), chunk)
        for chunk, signature in zip((*chunks, b""), signatures, strict=True)
    )


LONG, SHORT = b"a" * 65536, b"a" * 1024


def test_the_published_chunk_signatures() -> None:
    whole = framed(LONG, SHORT)
    assert len(whole) == 66824
    pieces = [whole[start : start + 1000] for start in range(0, len(whole), 1000)]
    assert decode(Decoder(66560, signatures=published()), *pieces) == (LONG + SHORT, {})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(framed(LONG, b"b" * 1024), "SignatureDoesNotMatch", id="other bytes"),
        pytest.param(
            framed(LONG, SHORT, signatures=(SIGNATURES[0], SIGNATURES[0], SIGNATURES[2])),
            "SignatureDoesNotMatch",
            id="a signature twice",
        ),
        pytest.param(
            framed(SHORT, LONG, signatures=(SIGNATURES[1], SIGNATURES[0], SIGNATURES[2])),
            "SignatureDoesNotMatch",
            id="chunks in another order",
        ),
        pytest.param(
            framed(LONG, SHORT, signatures=(*SIGNATURES[:2], "0" * 64)), "SignatureDoesNotMatch", id="a false end"
        ),
        pytest.param(
            framed(LONG, signatures=(SIGNATURES[0], SIGNATURES[2])), "SignatureDoesNotMatch", id="a chunk left out"
        ),
        pytest.param(b"400\r\n" + SHORT + b"\r\n0\r\n\r\n", "InvalidChunkSizeError", id="not signed"),
        pytest.param(framed(LONG, SHORT)[:-90], "IncompleteBody", id="no end"),
    ],
)
def test_chunks_that_were_not_signed_like_this(body: bytes, code: str) -> None:
    assert refusal(Decoder(66560, signatures=published()), body) == code


def chain() -> ChunkSignatures:
    key = signature_claims.signing_key(SECRET, "20130524", "us-east-1")
    return ChunkSignatures(key, "20130524T000000Z", "20130524/us-east-1/s3/aws4_request", SEED)


def signed_trailer(value: str, *, signed: str | None = None) -> bytes:
    """One chunk of five bytes and a trailer, signed by the rules of the documentation, written out once more."""
    mine, previous, scope = chain(), SEED, "20130524/us-east-1/s3/aws4_request"
    out = b""
    for data in (b"hello", b""):
        parts = ("AWS4-HMAC-SHA256-PAYLOAD", "20130524T000000Z", scope, previous, hashlib.sha256(b"").hexdigest())
        previous = signature_claims.signature(mine.signing_key, *parts, hashlib.sha256(data).hexdigest())
        out += b"%x;chunk-signature=%s\r\n" % (len(data), previous.encode()) + (data + b"\r\n" if data else b"")
    digest = hashlib.sha256(f"x-amz-checksum-crc32c:{signed or value}\n".encode()).hexdigest()
    last = signature_claims.signature(
        mine.signing_key, "AWS4-HMAC-SHA256-TRAILER", "20130524T000000Z", scope, previous, digest
    )
    return out + f"x-amz-checksum-crc32c:{value}\r\nx-amz-trailer-signature:{last}\r\n\r\n".encode()


TRUE = "mnG7TA=="


def test_a_signed_trailer() -> None:
    decoder = Decoder(5, trailers={"x-amz-checksum-crc32c"}, signatures=chain())
    assert decode(decoder, signed_trailer(TRUE)) == (b"hello", {"x-amz-checksum-crc32c": TRUE})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(signed_trailer("AAAAAA==", signed=TRUE), id="changed value"),
        pytest.param(signed_trailer(TRUE).partition(b"x-amz-trailer-signature")[0] + b"\r\n", id="no signature"),
    ],
)
def test_a_trailer_that_was_not_signed_like_this(body: bytes) -> None:
    assert refusal(Decoder(5, trailers={"x-amz-checksum-crc32c"}, signatures=chain()), body) == "SignatureDoesNotMatch"
