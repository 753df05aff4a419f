"""Bodies that stream to the store as they arrive, over real HTTP on both sides. A failed upload leaves nothing."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import memory
from bench.services import Services
from gateway.http.crowd import CROWD
from gateway.objects.s3.answers import Started
from gateway.objects.s3.xml import Part, etag_of_parts
from gateway.objects.staging import part_size
from gateway.objects.store.operations import Upstream
from gateway.observe.events import Event, RequestAnswered
from tests.objects.clients import call, connect
from tests.objects.object_gateway import Stage
from tests.objects.raw import Headers, Reply, ask, framed, head
from tests.tiers import first
from tests.waiting import PATIENCE

over_http = pytest.mark.asyncio(loop_scope="module")

MEBIBYTE = 1024 * 1024


BODY = bytes(range(256)) * (13 * 4096)  # 13 MiB: two parts or three


def plain(stage: Stage, target: str, body: bytes, *more: tuple[str, str]) -> bytes:
    headers = [("fencing-token", "1"), *more]
    return head(stage.origin, "PUT", target, headers, unsigned=[("content-length", str(len(body)))]) + body


def trailing(stage: Stage, target: str, body: bytes, checksum: str | None = None) -> bytes:
    cut = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    right = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    wire = framed(*cut, trailer=f"x-amz-checksum-crc32:{checksum or right}")
    headers: Headers = [
        ("fencing-token", "1"),
        ("x-amz-decoded-content-length", str(len(body))),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ]
    length = [("content-length", str(len(wire)))]
    return head(stage.origin, "PUT", target, headers, payload=CHUNKED, unsigned=length) + wire


CHUNKED = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def false(stage: Stage, target: str, body: bytes) -> bytes:
    return plain(stage, target, body, ("x-amz-checksum-crc32", "AAAAAA=="))


def false_trailer(stage: Stage, target: str, body: bytes) -> bytes:
    return trailing(stage, target, body, checksum="AAAAAA==")


async def assert_nothing_left(stage: Stage, key: str, reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.code) == (status, code)
    assert (stage.uploads(key), stage.body(key)) == ([], None)
    assert await stage.count("upload", key) == 0


@over_http
class TestStagedBodies:
    @pytest.mark.parametrize("form", first([trailing, plain]))
    async def test_a_staged_body_becomes_the_object(self, shared: Stage, key: str, form: Any) -> None:
        reply = await ask(shared.origin, form(shared, f"/bucket/{key}", BODY))
        stored = shared.double.objects("bucket")[key]
        assert (reply.status, reply.headers["etag"]) == (200, f'"{stored.etag}"')
        assert stored.content.body == BODY
        assert shared.uploads(key) == []
        assert await shared.count("upload", key) == 0

    @pytest.mark.parametrize("form", [false_trailer, false])
    async def test_a_body_that_does_not_match_its_head_is_not_staged(self, shared: Stage, key: str, form: Any) -> None:
        reply = await ask(shared.origin, form(shared, f"/bucket/{key}", BODY))
        await assert_nothing_left(shared, key, reply, 400, "BadDigest")

    @pytest.mark.parametrize("nth", first([2, 1]))
    async def test_a_store_that_fails_during_a_part(self, shared: Stage, key: str, nth: int) -> None:
        shared.double.cut(operation="UploadPart", key=key, nth=nth)
        reply = await ask(shared.origin, plain(shared, f"/bucket/{key}", BODY))
        await assert_nothing_left(shared, key, reply, 503, "ServiceUnavailable")
        shared.double.fail(status=403, code="AccessDenied", operation="UploadPart", key=key, nth=nth)
        reply = await ask(shared.origin, plain(shared, f"/bucket/{key}", BODY))
        await assert_nothing_left(shared, key, reply, 403, "AccessDenied")
        shared.double.fail(status=503, operation="CreateMultipartUpload", key=key)
        reply = await ask(shared.origin, plain(shared, f"/bucket/{key}", BODY))
        await assert_nothing_left(shared, key, reply, 503, "ServiceUnavailable")

    async def test_an_upload_that_is_aborted_while_it_stages(self, shared: Stage, key: str) -> None:
        putting = ask(shared.origin, plain(shared, f"/bucket/{key}", BODY))
        async with asyncio.timeout(PATIENCE):
            held, put = await shared.late(putting, operation="UploadPart", key=key)
        await call(shared.beside().abort_multipart_upload, Key=key, UploadId=shared.uploads(key)[0].upload_id)
        held.release()
        await assert_nothing_left(shared, key, await put, 503, "ServiceUnavailable")

    async def test_a_long_body_is_touched_on_the_register(
        self, shared: Stage, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.objects.staging._TOUCH", 0.0)
        moments = []
        held = [shared.double.hold(operation="UploadPart", key=key, nth=nth) for nth in (1, 2)]
        put = asyncio.ensure_future(ask(shared.origin, plain(shared, f"/bucket/{key}", BODY)))
        for one in held:
            async with asyncio.timeout(PATIENCE):
                await one.arrived.wait()
            (row,) = await shared.rows("SELECT touched_at FROM fencing.upload WHERE key = $1", key)
            moments.append(row["touched_at"])
            one.release()
        assert (await put).status == 200
        assert moments[0] < moments[1]


@over_http
class TestPartsOfClients:
    """The parts of a client's own upload go through in the same way."""

    @pytest.mark.parametrize("size", first([9 * MEBIBYTE, 0, 5, 17 * MEBIBYTE]))
    @pytest.mark.parametrize("form", [plain, trailing])
    async def test_a_part_arrives_whole(self, shared: Stage, key: str, form: Any, size: int) -> None:
        reply = await ask(shared.origin, form(shared, await part_of(shared, key), bytes(size)))
        assert (reply.status, reply.headers["etag"]) == (200, f'"{hashlib.md5(bytes(size)).hexdigest()}"')
        assert [part.body for part in shared.uploads(key)[0].parts.values()] == [bytes(size)]
        # A store may insist on the checksum, but a part that leaves its caller no room for other writes is not kept.
        kept = form is trailing and size <= 16 * MEBIBYTE
        assert ("x-amz-checksum-crc32" in reply.headers) == kept

    @pytest.mark.parametrize(("form", "size"), [(false_trailer, 9_000_000), (false_trailer, 5), (false, 9_000_000)])
    async def test_a_part_that_does_not_match_its_head_is_not_stored(
        self, shared: Stage, key: str, form: Any, size: int
    ) -> None:
        reply = await ask(shared.origin, form(shared, await part_of(shared, key), bytes(size)))
        assert (reply.status, reply.code) == (400, "BadDigest")
        assert not shared.uploads(key)[0].parts


@over_http
class TestConnectionsThatMakeWay:
    """The client has not sent all of its body when the gateway closes its connection."""

    @pytest.mark.parametrize("body", [BODY, b"small"], ids=["staged", "in memory"])
    async def test_an_object_is_not_written(self, shared: Stage, key: str, body: bytes) -> None:
        await cut_off(shared, key, plain(shared, f"/bucket/{key}", body, ASKS)[:-1])
        assert (shared.uploads(key), shared.body(key)) == ([], None)
        assert (await shared.count("upload", key), await shared.count("intent", key)) == (0, 0)
        assert (await ask(shared.origin, plain(shared, f"/bucket/{key}", body))).status == 200

    async def test_a_part_is_not_stored(self, shared: Stage, key: str) -> None:
        await cut_off(shared, key, plain(shared, await part_of(shared, key), BODY, ASKS)[:-1])
        assert not shared.uploads(key)[0].parts


ASKS = ("expect", "100-continue")
"""The gateway says when it waits for the body."""


async def cut_off(stage: Stage, key: str, sent: bytes) -> None:
    """Send a part of a request. Let connections make way until this one does, and wait for the end of the request."""
    address = urlsplit(stage.origin)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(sent)
    assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
    before = len(of_key(stage.events, key))
    async with asyncio.timeout(PATIENCE):
        while not reader.at_eof() and reader.exception() is None:
            assert len(of_key(stage.events, key)) == before, "it is under way"
            CROWD.make_room(None)
            await asyncio.sleep(0.01)
        while len(of_key(stage.events, key)) == before:
            await asyncio.sleep(0.01)
    writer.close()


def of_key(events: Sequence[Event], key: str) -> list[RequestAnswered]:
    return [event for event in events if isinstance(event, RequestAnswered) and key in event.path]


async def part_of(stage: Stage, key: str) -> str:
    """The target of the first part of a new upload."""
    opened = await call(connect(stage.origin, "1").create_multipart_upload, Key=key)
    return f"/bucket/{key}?partNumber=1&uploadId={opened['UploadId']}"


@over_http
async def test_an_upload_is_gone_when_the_store_knows_no_parts_of_it(
    shared: Stage, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.objects.store.operations._PAUSES", (0.0, 0.01))
    async with Upstream(shared.settings()) as upstream:
        started = await upstream.create_multipart(("bucket", key))
        assert isinstance(started, Started)
        listing = shared.double.fail(501, code="NotImplemented", operation="ListMultipartUploads", times=None)
        parts = shared.double.fail(403, operation="ListParts", times=None)
        assert not await upstream.abandon_upload(("bucket", key), started.upload_id), "no answer is no proof"
        shared.double.faults.remove(parts)
        assert await upstream.abandon_upload(("bucket", key), started.upload_id)
        shared.double.faults.remove(listing)


# How large the parts of a staged body are: within S3's limits, and not the same for each write.


GIBIBYTE = 1024 * MEBIBYTE


@given(st.integers(1, 5 * GIBIBYTE), st.uuids())
def test_part_sizes_are_within_the_limits_of_s3(length: int, write_id: UUID) -> None:
    size = part_size(length, write_id)
    assert size >= min(length, 5 * MEBIBYTE)
    assert size <= 5 * GIBIBYTE
    assert -(-length // size) <= 9


@pytest.mark.parametrize("length", [8 * MEBIBYTE + 1, 9 * MEBIBYTE, 16 * MEBIBYTE + 1, 100 * MEBIBYTE, 5 * GIBIBYTE])
def test_the_same_bytes_are_cut_differently_by_another_write(length: int) -> None:
    assert part_size(length, UUID(int=12345)) == part_size(length, UUID(int=12345))
    sizes = sorted({part_size(length, UUID(int=number)) for number in range(64)})
    assert len(sizes) >= 48
    assert sizes[-1] < length, "a single part would have one ETag, whatever its size"
    assert all(after - before == 64 * 1024 for before, after in pairwise(sizes))


def test_the_etag_of_parts() -> None:
    md5_of_test = "098f6bcd4621d373cade4e832627b4f6"
    assert etag_of_parts([Part(1, md5_of_test)]) == "60cd54a928cbbcbb6e7b5595bab46a9e-1"
    assert etag_of_parts([Part(1, "not a hash"), Part(2, md5_of_test)]) is None


# A gateway process with large bodies on their way through it: its memory has a bound that they have not.

LIMIT = 512
"""MiB: less than there are on their way each time."""


@pytest.fixture(scope="module")
def services() -> Iterator[Services]:
    with memory.front() as services:
        yield services


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("size", "count"),
    [
        pytest.param(640 * MEBIBYTE, 1, id="one of 640 MiB"),
        pytest.param(20 * MEBIBYTE, 32, id="32 of 20 MiB at once"),
        pytest.param(7 * MEBIBYTE, 96, id="96 of 7 MiB at once, from memory"),
    ],
)
def test_memory_is_bounded(services: Services, size: int, count: int) -> None:
    assert memory.peak(services, size, count) < LIMIT
