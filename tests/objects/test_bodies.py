"""A body is whole and true before anything is written: framing, signatures of chunks, checksums, length and pace."""

import asyncio
import base64
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive

from gateway.auth import signature_claims
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import ChunkSignatures, PayloadMode, VerifiedSignature
from gateway.errors import BodyTooLarge, GatewayError, StoreError
from gateway.http.body import ArrivingBody, ClientGone, Pace
from gateway.objects.exchange import CaptureBuffer, WriteBody
from gateway.objects.s3.body import MAX_LINE, Algorithm, Decoder, Inspection, Verification, declared, whole
from gateway.record.payload_capture import NOTHING
from tests.clock import Clock

Headers = list[tuple[bytes, bytes]]


SIGNER = VerifiedSignature(Principal("worker"), PayloadMode.UNSIGNED)


def arriving(*pieces: bytes, gone: bool = False) -> Receive:
    """An ASGI channel that brings these pieces, and then the end or a hang-up."""
    last = len(pieces) - 1
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": gone or number < last}
        for number, piece in enumerate(pieces)
    ] or [{"type": "http.request"}]
    if gone:
        messages.append({"type": "http.disconnect"})
    left = iter(messages)

    async def receive() -> Message:
        return next(left)

    return receive


def plain(length: int, *more: tuple[bytes, bytes]) -> Headers:
    return [(b"content-length", str(length).encode()), (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"), *more]


def trailing(length: int) -> Headers:
    return [
        (b"x-amz-content-sha256", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        (b"x-amz-decoded-content-length", str(length).encode()),
        (b"x-amz-trailer", b"x-amz-checksum-crc32"),
    ]


def intake(
    headers: Headers, receive: Receive, *, pace: Pace | None = None, signature: VerifiedSignature = SIGNER
) -> WriteBody:
    inspection = Inspection(headers, sha256=signature.sha256, signatures=signature.chunks, max_size=10_000)
    return WriteBody(ArrivingBody(receive, pace or Pace()), inspection, CaptureBuffer(NOTHING, ""))


async def streamed(one: WriteBody) -> bytes:
    return b"".join([chunk async for chunk in one.chunks()])


async def test_a_body_is_not_asked_for_before_its_head_is_checked() -> None:
    async def never() -> Message:
        raise AssertionError

    for headers in (plain(10_001), trailing(10_001)):
        with pytest.raises(BodyTooLarge):
            intake(headers, never)
    assert intake(plain(10_000), never).length == 10_000


async def test_a_client_that_hangs_up() -> None:
    for one in (intake(plain(5), arriving(b"he", gone=True)), intake(trailing(5), arriving(b"5\r\nhe", gone=True))):
        with pytest.raises(ClientGone):
            await one.whole()


async def test_a_client_that_falls_silent_is_cut_off() -> None:
    async def silent() -> Message:
        await asyncio.sleep(30)
        raise AssertionError

    for take in (streamed, WriteBody.whole):
        with pytest.raises(GatewayError) as caught:
            await take(intake(plain(5), silent, pace=Pace(idle=0.05)))
        assert (caught.value.s3_code, caught.value.status) == ("RequestTimeout", 408)


async def test_a_slow_client_above_the_lowest_rate_is_served() -> None:
    """It takes 50 seconds for all pieces, which is more than the grace."""
    clock = Clock()

    async def slow() -> Message:
        await clock.pass_by(0.5)
        return await receive()

    receive = arriving(*[b"x" * 20] * 100)
    assert await streamed(intake(plain(2000), slow, pace=Pace(rate=20))) == b"x" * 2000


async def test_the_time_of_a_slow_store_does_not_count_against_the_client() -> None:
    clock = Clock()

    async def quick() -> Message:
        await clock.pass_by(0)
        return await receive()

    receive = arriving(b"a", b"b", b"c")
    one = intake(plain(3), quick, pace=Pace(rate=1_000_000))
    taken: list[Any] = []
    async for chunk in one.chunks():
        await clock.pass_by(60)
        taken.append(chunk)
    assert taken == [b"a", b"b", b"c"]


PLAIN: Headers = [(b"Content-Length", b"5"), (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD")]


FRAMED: Headers = [
    (b"content-encoding", b"gzip,aws-chunked"),
    (b"x-amz-content-sha256", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
    (b"x-amz-decoded-content-length", b"5"),
    (b"x-amz-trailer", b"x-amz-checksum-crc32"),
]


@pytest.mark.parametrize(
    ("headers", "pieces", "expected"),
    [
        (PLAIN, [b"hell"], ("IncompleteBody", 400)),
        (PLAIN, [], ("IncompleteBody", 400)),
        (PLAIN, [b"hello", b"!"], ("IncompleteBody", 400)),
        (FRAMED, [b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"], ("IncompleteBody", 400)),
        (PLAIN[1:], [b"hello"], ("MissingContentLength", 411)),
        (FRAMED[:2], [], ("MissingContentLength", 411)),
        *(
            ([(b"content-length", length)], [b"hello"], ("InvalidArgument", 400))
            for length in (b"-5", b"+5", b"5_0", b"", "٥".encode(), b"9" * 30)
        ),
        ([*PLAIN, (b"content-encoding", b"aws-chunked")], [b"hello"], ("InvalidRequest", 400)),
        ([*PLAIN, (b"x-amz-trailer", b"x-amz-checksum-crc32")], [b"hello"], ("InvalidRequest", 400)),
    ],
)
def test_bodies_that_are_not_what_they_say(headers: Headers, pieces: list[bytes], expected: tuple[str, int]) -> None:
    def inspect() -> None:
        inspection = Inspection(headers, sha256=None, signatures=None, max_size=100)
        whole([inspection.feed(piece) for piece in pieces], inspection.finish())

    with pytest.raises(GatewayError) as caught:
        inspect()
    assert (caught.value.s3_code, caught.value.status) == expected


# A framed body is believed only if every part of its framing is what it must be.

CRC = "x-amz-checksum-crc32"


def decode(decoder: Decoder, *pieces: bytes) -> tuple[bytes, dict[str, str]]:
    decoded = b"".join(decoder.feed(piece) for piece in pieces)
    return decoded, decoder.finish()


def refusal_of_chunks(decoder: Decoder, *pieces: bytes) -> str:
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


def test_a_body_that_ends_early_is_refused_wherever_it_ends() -> None:
    for end in range(len(WHOLE)):
        assert refusal_of_chunks(Decoder(11, trailers={CRC}), WHOLE[:end]) == "IncompleteBody", end


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"3\r\nabc\r\n0\r\n\r\n", "IncompleteBody", id="shorter than declared"),
        pytest.param(b"5\r\nabcde\r\n0\r\n\r\n", "IncompleteBody", id="longer than declared"),
        pytest.param(b"4\r\nabcd\r\n0\r\n\r\nx", "IncompleteBody", id="goes on after the end"),
        pytest.param(b"4\r\nabcde\r\n0\r\n\r\n", "IncompleteBody", id="chunk longer than it says"),
        pytest.param(b"-4\r\nabcd\r\n0\r\n\r\n", "IncompleteBody", id="negative size"),
        pytest.param(b"0x4\r\nabcd\r\n0\r\n\r\n", "IncompleteBody", id="prefixed size"),
        pytest.param(b"0" * 17 + b"\r\n", "IncompleteBody", id="size too long"),
        pytest.param(b"4;a=b\r\nabcd\r\n0\r\n\r\n", "IncompleteBody", id="unknown extension"),
        pytest.param(b"4;chunk-signature=" + b"0" * 64 + b"\r\nabcd\r\n", "IncompleteBody", id="signed"),
        pytest.param(b"4\nabcd\n0\n\n", "IncompleteBody", id="bare line feeds"),
        pytest.param(b"4" * (MAX_LINE + 1), "IncompleteBody", id="endless line"),
    ],
)
def test_contradictory_framing_is_refused(body: bytes, code: str) -> None:
    assert refusal_of_chunks(Decoder(4), body) == code


@pytest.mark.parametrize(
    "trailer",
    [
        pytest.param(b"", id="declared but missing"),
        pytest.param(b"x-amz-checksum-crc32c:AAAAAA==\r\n", id="another one"),
        pytest.param(b"x-amz-checksum-crc32:a\r\nx-amz-checksum-crc32:b\r\n", id="twice"),
        pytest.param(b"no colon\r\n", id="no colon"),
        pytest.param(b" x-amz-checksum-crc32:a\r\n", id="folded line"),
        pytest.param(b"x-amz-checksum-crc32:a\r\nx-amz-trailer-signature:" + b"0" * 64 + b"\r\n", id="signed"),
    ],
)
def test_trailers_that_are_not_what_was_declared(trailer: bytes) -> None:
    assert refusal_of_chunks(Decoder(0, trailers={CRC}), b"0\r\n" + trailer + b"\r\n") == "MalformedTrailerError"


def test_many_trailers_are_not_collected() -> None:
    lines = b"".join(b"x-%d:a\r\n" % number for number in range(1000))
    assert refusal_of_chunks(Decoder(0), b"0\r\n" + lines + b"\r\n") == "MalformedTrailerError"


# The chunked upload of the S3 documentation: 66,560 times "a" in chunks of 64 KiB and 1 KiB.
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"


SIGNATURES = (
    "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
    "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
    "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
)


def published() -> ChunkSignatures:
    key = signature_claims.signing_key(SECRET, "20130524", "us-east-1")
    return ChunkSignatures(key, "20130524T000000Z", "20130524/us-east-1/s3/aws4_request", SEED)


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
        (framed(LONG, b"b" * 1024), "SignatureDoesNotMatch"),
        (framed(LONG, SHORT, signatures=(*SIGNATURES[:1] * 2, SIGNATURES[2])), "SignatureDoesNotMatch"),
        (framed(SHORT, LONG, signatures=(SIGNATURES[1], SIGNATURES[0], SIGNATURES[2])), "SignatureDoesNotMatch"),
        (framed(LONG, SHORT, signatures=(*SIGNATURES[:2], "0" * 64)), "SignatureDoesNotMatch"),
        (framed(LONG, signatures=(SIGNATURES[0], SIGNATURES[2])), "SignatureDoesNotMatch"),
        (b"400\r\n" + SHORT + b"\r\n0\r\n\r\n", "IncompleteBody"),
        (framed(LONG, SHORT)[:-90], "IncompleteBody"),
    ],
    ids=["other bytes", "a signature twice", "another order", "a false end", "one left out", "not signed", "no end"],
)
def test_chunks_that_were_not_signed_like_this(body: bytes, code: str) -> None:
    assert refusal_of_chunks(Decoder(66560, signatures=published()), body) == code


def signed_trailer(value: str, *, signed: str | None = None) -> bytes:
    """One chunk of five bytes and a trailer, signed by the rules of the documentation, written out once more."""
    mine, previous, scope = published(), SEED, "20130524/us-east-1/s3/aws4_request"
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
    decoder = Decoder(5, trailers={"x-amz-checksum-crc32c"}, signatures=published())
    assert decode(decoder, signed_trailer(TRUE)) == (b"hello", {"x-amz-checksum-crc32c": TRUE})
    decoder = Decoder(5, trailers={"x-amz-checksum-crc32c"}, signatures=published())
    as_minio_go = signed_trailer(TRUE).replace(b"\r\nx-amz-trailer-sig", b"\n\r\nx-amz-trailer-sig")
    assert decode(decoder, as_minio_go) == (b"hello", {"x-amz-checksum-crc32c": TRUE})


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(signed_trailer("AAAAAA==", signed=TRUE), id="changed value"),
        pytest.param(signed_trailer(TRUE).partition(b"x-amz-trailer-signature")[0] + b"\r\n", id="no signature"),
    ],
)
def test_a_trailer_that_was_not_signed_like_this(body: bytes) -> None:
    assert (
        refusal_of_chunks(Decoder(5, trailers={"x-amz-checksum-crc32c"}, signatures=published()), body)
        == "SignatureDoesNotMatch"
    )


# The checksums that a client declares must be true.

BODY = b"123456789"


# The check values that the catalogues of checksums give for these nine bytes.
CHECKS = {
    Algorithm.CRC32: bytes.fromhex("cbf43926"),
    Algorithm.CRC32C: bytes.fromhex("e3069283"),
    Algorithm.CRC64NVME: bytes.fromhex("ae8b14860a799888"),
    Algorithm.MD5: hashlib.md5(BODY).digest(),
    Algorithm.SHA1: hashlib.sha1(BODY).digest(),
    Algorithm.SHA256: hashlib.sha256(BODY).digest(),
    Algorithm.SHA512: hashlib.sha512(BODY).digest(),
    Algorithm.XXHASH128: bytes.fromhex("33119477ede5dcd5e9716427681d5860"),
    Algorithm.XXHASH3: bytes.fromhex("72dcb18b67a17dff"),
    Algorithm.XXHASH64: bytes.fromhex("8cb841db40e6ae83"),
}


def encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def verified(
    headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None
) -> tuple[object, ...]:
    verification = Verification(declared(headers), sha256)
    for byte in BODY:
        verification.update(bytes([byte]))
    return verification.finish(trailers).headers


def refusal_of_checksum(
    headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None
) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verified(headers, trailers, sha256)
    return caught.value.s3_code, caught.value.status


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_true_checksum_is_verified_and_sent_on(algorithm: Algorithm) -> None:
    value = encoded(CHECKS[algorithm])
    assert verified({algorithm.header: value}) == ((algorithm.header, value),)
    assert verified({"x-amz-trailer": algorithm.header.title()}, {algorithm.header: value}) == (
        (algorithm.header, value),
    )
    told = {"x-amz-sdk-checksum-algorithm": algorithm.name, algorithm.header: value}
    assert verified(told) == ((algorithm.header, value),)


def test_a_name_of_the_algorithm_or_type_is_no_checksum() -> None:
    """minio-go sends both with bodies and parts, also without a checksum."""
    named = {"x-amz-checksum-algorithm": "CRC64NVME", "x-amz-checksum-type": "FULL_OBJECT"}
    assert verified(named) == ()
    algorithm = Algorithm.CRC64NVME
    value = encoded(CHECKS[algorithm])
    assert verified({**named, algorithm.header: value}) == ((algorithm.header, value),)
    assert verified({**named, "x-amz-trailer": algorithm.header}, {algorithm.header: value}) == (
        (algorithm.header, value),
    )


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_false_checksum_is_refused(algorithm: Algorithm) -> None:
    false = encoded(bytes(len(CHECKS[algorithm])))
    assert refusal_of_checksum({algorithm.header: false}) == ("BadDigest", 400)
    assert refusal_of_checksum({"x-amz-trailer": algorithm.header}, {algorithm.header: false}) == ("BadDigest", 400)


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("value", ["", "AAA", "AAAA", "????", "y/Q5Jg", "=" * 8, "é"])
def test_a_malformed_checksum_is_refused(algorithm: Algorithm, value: str) -> None:
    assert refusal_of_checksum({algorithm.header: value}) == ("InvalidRequest", 400)
    assert refusal_of_checksum({"x-amz-trailer": algorithm.header}, {algorithm.header: value}) == (
        "InvalidRequest",
        400,
    )


def test_content_md5() -> None:
    assert verified({"content-md5": encoded(hashlib.md5(BODY).digest())}) == ()
    assert refusal_of_checksum({"content-md5": encoded(hashlib.md5(b"").digest())}) == ("BadDigest", 400)
    for value in ("", "abc", hashlib.md5(BODY).hexdigest()):
        assert refusal_of_checksum({"content-md5": value}) == ("InvalidDigest", 400)


TRUE_CRC32 = encoded(CHECKS[Algorithm.CRC32])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-amz-checksum-crc32": TRUE_CRC32, "x-amz-checksum-sha1": "x"}, ("InvalidRequest", 400)),
        ({"x-amz-checksum-crc32": TRUE_CRC32, "x-amz-trailer": "x-amz-checksum-crc32"}, ("InvalidRequest", 400)),
        ({"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"}, ("InvalidRequest", 400)),
        ({"x-amz-trailer": "x-amz-meta-later"}, ("InvalidRequest", 400)),
        ({"x-amz-checksum-adler32": "AAAAAA=="}, ("InvalidRequest", 400)),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, ("InvalidRequest", 400)),
        ({"x-amz-sdk-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": TRUE_CRC32}, ("InvalidRequest", 400)),
    ],
)
def test_contradictory_checksum_declarations_are_refused(headers: dict[str, str], expected: tuple[str, int]) -> None:
    assert refusal_of_checksum(headers) == expected
