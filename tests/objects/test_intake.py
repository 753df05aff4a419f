"""A body is given on only as far as it may be: its last piece stays here until all of it is proven."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive

from gateway.auth import signature_claims
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import ChunkSignatures, PayloadMode, VerifiedSignature
from gateway.errors import BodyTooLarge, GatewayError
from gateway.http.body import ArrivingBody, ClientGone, Pace
from gateway.objects.body.intake import WriteBody
from tests.clock import Clock

Headers = list[tuple[bytes, bytes]]
SIGNER = VerifiedSignature(Principal("worker"), PayloadMode.UNSIGNED)
KEY, MOMENT, SCOPE = b"key", "20260102T030405Z", "20260102/us-east-1/s3/aws4_request"


def arriving(*pieces: bytes, gone: bool = False, pause: float = 0.0) -> Receive:
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
        if pause:
            await asyncio.sleep(pause)
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


def signed_in_chunks(length: int) -> Headers:
    return [
        (b"x-amz-content-sha256", b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        (b"x-amz-decoded-content-length", str(length).encode()),
    ]


def crc32(body: bytes) -> bytes:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big"))


def framed(*chunks: bytes, checksum: bytes | None = None) -> bytes:
    whole = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return whole + b"0\r\nx-amz-checksum-crc32:%s\r\n\r\n" % (checksum or crc32(b"".join(chunks)))


def chain() -> VerifiedSignature:
    chunks = ChunkSignatures(KEY, MOMENT, SCOPE, "seed")
    return VerifiedSignature(Principal("worker"), PayloadMode.SIGNED_CHUNKS, chunks=chunks)


def signed(*chunks: bytes, spoilt: int | None = None) -> bytes:
    """Chunks with the chain of signatures; that of chunk number ``spoilt`` is wrong."""
    previous, out = "seed", b""
    for number, chunk in enumerate((*chunks, b"")):
        hashes = (hashlib.sha256(b"").hexdigest(), hashlib.sha256(chunk).hexdigest())
        previous = signature_claims.signature(KEY, "AWS4-HMAC-SHA256-PAYLOAD", MOMENT, SCOPE, previous, *hashes)
        shown = "0" * 64 if number == spoilt else previous
        out += b"%x;chunk-signature=%s\r\n%s\r\n" % (len(chunk), shown.encode(), chunk)
    return out


def cut(body: bytes, places: Sequence[int]) -> list[bytes]:
    ends = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(ends)] or [b""]


def intake(
    headers: Headers, receive: Receive, *, pace: Pace | None = None, signature: VerifiedSignature = SIGNER
) -> WriteBody:
    return WriteBody(ArrivingBody(receive, pace or Pace()), headers, signature, 10_000)


async def streamed(one: WriteBody) -> bytes:
    return b"".join([chunk async for chunk in one.chunks()])


PLACES = st.lists(st.integers(0, 5000), max_size=12)
CHUNKS = st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=6)


@pytest.mark.thorough
@given(CHUNKS, PLACES)
def test_however_a_body_is_cut_it_comes_out_whole(chunks: list[bytes], places: list[int]) -> None:
    body = b"".join(chunks)
    forms: list[tuple[Headers, bytes, Callable[[], VerifiedSignature]]] = [
        (plain(len(body)), body, lambda: SIGNER),
        (trailing(len(body)), framed(*chunks), lambda: SIGNER),
        (signed_in_chunks(len(body)), signed(*chunks), chain),
    ]
    for headers, wire, signature in forms:
        one = intake(headers, arriving(*cut(wire, places)), signature=signature())
        assert asyncio.run(streamed(one)) == body
        assert one.proof.size == one.length == len(body)
        whole = intake(headers, arriving(*cut(wire, places)), signature=signature())
        assert asyncio.run(whole.whole()).content == body


@pytest.mark.thorough
@given(CHUNKS, PLACES, st.sampled_from(["crc", "signature", "end", "length", "gone"]))
def test_a_body_that_is_not_proven_never_comes_out_whole(chunks: list[bytes], places: list[int], fault: str) -> None:
    body = b"".join(chunks)
    headers, wire, signature = trailing(len(body)), framed(*chunks), SIGNER
    if fault == "crc":
        wire = framed(*chunks, checksum=crc32(b"another" + body))
    elif fault == "signature":
        headers, wire, signature = signed_in_chunks(len(body)), signed(*chunks, spoilt=len(chunks)), chain()
    elif fault == "end":
        wire = wire[:-2]
    elif fault == "length":
        headers = trailing(len(body) + 1)
    receive = arriving(*cut(wire[:-1] if fault == "gone" else wire, places), gone=fault == "gone")
    one = intake(headers, receive, signature=signature)
    came: list[bytes] = []

    async def take() -> None:
        async for chunk in one.chunks():
            came.append(chunk)  # noqa: PERF401 - what came before the error counts

    with pytest.raises((GatewayError, ClientGone)):
        asyncio.run(take())
    out = b"".join(came)
    assert len(out) < len(body)
    assert body.startswith(out)


async def refusal(one: WriteBody) -> tuple[str, int]:
    with pytest.raises(GatewayError) as caught:
        await streamed(one)
    return caught.value.s3_code, caught.value.status


async def test_a_wrong_chunk_in_the_middle_is_noticed_when_it_is_there() -> None:
    wire = signed(b"a" * 100, b"b" * 100, b"c" * 100, spoilt=1)
    one = intake(signed_in_chunks(300), arriving(wire[:200], wire[200:400], gone=True), signature=chain())
    assert await refusal(one) == ("SignatureDoesNotMatch", 403)


@pytest.mark.parametrize(
    ("headers", "signature", "code"),
    [
        (plain(5, (b"content-md5", base64.b64encode(bytes(16)))), SIGNER, "BadDigest"),
        (plain(5, (b"x-amz-checksum-crc32", b"AAAAAA==")), SIGNER, "BadDigest"),
        (
            plain(5),
            VerifiedSignature(Principal("worker"), PayloadMode.EXACT, "0" * 64),
            "XAmzContentSHA256Mismatch",
        ),
    ],
)
async def test_a_stream_must_match_its_head(headers: Headers, signature: VerifiedSignature, code: str) -> None:
    assert await refusal(intake(headers, arriving(b"hello"), signature=signature)) == (code, 400)


async def test_only_requested_digests_are_computed() -> None:
    plainly = intake(plain(5), arriving(b"hello"))
    await streamed(plainly)
    assert (plainly.proof.md5, plainly.proof.sha256) == (None, None)
    asked = intake(plain(5), arriving(b"hello"))
    async for _ in asked.chunks(md5=True, sha256=True):
        pass
    assert asked.proof.md5 == hashlib.md5(b"hello").hexdigest()
    assert asked.proof.sha256 == hashlib.sha256(b"hello").hexdigest()
    whole = await intake(plain(5), arriving(b"hello")).whole()
    assert whole.digests.md5 == hashlib.md5(b"hello").hexdigest()


async def test_length_and_checksums_are_known_before_the_body() -> None:
    nothing = arriving()
    assert intake(plain(5), nothing).checksum_headers == ()
    crc, md5 = crc32(b"hello"), base64.b64encode(hashlib.md5(b"hello").digest())
    told = intake(plain(5, (b"x-amz-checksum-crc32", crc), (b"content-md5", md5)), nothing)
    assert (told.trailing, set(told.checksum_headers)) == (
        False,
        {("x-amz-checksum-crc32", crc.decode()), ("content-md5", md5.decode())},
    )
    later = intake(trailing(5), arriving(framed(b"hello")))
    assert (later.trailing, later.checksum_headers) == (True, ())
    await streamed(later)
    assert later.proof.headers == (("x-amz-checksum-crc32", crc.decode()),)


async def test_an_empty_body() -> None:
    one = intake(plain(0), arriving())
    assert await streamed(one) == b""
    assert one.proof.size == 0
    assert (await intake(trailing(0), arriving(framed())).whole()).content == b""


async def test_a_body_is_not_asked_for_before_its_head_is_checked() -> None:
    async def never() -> Message:
        raise AssertionError

    with pytest.raises(BodyTooLarge):
        intake(plain(10_001), never)
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


async def test_a_client_that_trickles_is_cut_off() -> None:
    """Each byte is in time, and together they would take for ever."""
    one = intake(plain(1000), arriving(*[b"x"] * 1000, pause=0.01), pace=Pace(idle=1, grace=0.1, rate=1000))
    assert await refusal(one) == ("RequestTimeout", 408)


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
