"""Bodies that stream to the store as they arrive, over real HTTP on both sides. A failed upload leaves nothing."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from bench import memory
from bench.services import Services
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, VerifiedSignature
from gateway.config.stores import ObjectStore
from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.http.body import ArrivingBody, ClientGone, Pace
from gateway.objects.body.intake import WriteBody
from gateway.objects.s3.answers import Applied, Started, Uploaded
from gateway.objects.s3.documents import Part, etag_of_parts
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.staging import Staged, Staging, forward_part, part_size
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.objects.raw import Reply, framed, lines, receive
from tests.serving_app import served
from tests.tiers import first
from tests.waiting import PATIENCE

MEBIBYTE = 1024 * 1024


BODY = bytes(range(256)) * (13 * 4096)  # 13 MiB: two parts or three


PLACE = ("bucket", "key")


WRITE_ID = UUID(int=7)


async def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Notes:
    """A register that keeps everything it is told."""

    told: list[tuple[str, str]] = field(default_factory=list)

    async def opened(self, upload_id: str) -> None:
        self.told.append(("opened", upload_id))

    async def touched(self, upload_id: str) -> None:
        self.told.append(("touched", upload_id))

    async def closed(self, upload_id: str) -> None:
        self.told.append(("closed", upload_id))


@dataclass
class Front:
    """A server that stages what is put to ``/``, and forwards what is put to ``/part`` as part 1 of ``upload_id``."""

    upstream: Upstream
    double: S3Double
    port: int = 0
    pace: Pace = field(default_factory=Pace)
    notes: Notes = field(default_factory=Notes)
    outcomes: "asyncio.Queue[object]" = field(default_factory=asyncio.Queue)
    upload_id: str = ""
    memory_threshold: int = MEBIBYTE

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            status, outcome = 200, await self._serve(scope, receive)
        except GatewayError as error:
            status, outcome = error.status, error
        except ClientGone as gone:
            status, outcome = 500, gone
        self.outcomes.put_nowait(outcome)
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def _serve(self, scope: Any, receive: Any) -> object:
        signer = VerifiedSignature(Principal("worker"), PayloadMode.UNSIGNED)
        intake = WriteBody(ArrivingBody(receive, self.pace), scope["headers"], signer, 1024 * MEBIBYTE)
        if scope["path"] == "/part":
            return await forward_part(
                self.upstream, *PLACE, self.upload_id, 1, intake, (),
                memory_threshold=self.memory_threshold,
            )  # fmt: skip
        headers = [("content-type", "text/plain"), ("x-amz-meta-colour", "red")]
        return await Staging(self.upstream, PLACE, self.notes).stage(intake, headers, WRITE_ID)

    async def outcome(self) -> object:
        async with asyncio.timeout(PATIENCE):
            return await self.outcomes.get()

    def uploads(self) -> list[str]:
        return [each.upload_id for each in self.double.store.bucket("bucket").uploads.running(datetime.now(UTC))]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def put(self, data: bytes) -> Reply | None:
        async with self.connected() as (reader, writer):
            writer.write(data)
            return await receive(reader)


@asynccontextmanager
async def fronted(timeout: float = PATIENCE) -> AsyncIterator[Front]:
    double = S3Double(buckets=["bucket"])
    async with serve(double) as endpoint:
        config = ObjectStore(
            endpoint=endpoint, access_key_id=ACCESS_KEY, secret_access_key=SecretStr(SECRET_KEY), timeout=timeout
        )
        async with Upstream(config) as upstream:
            front = Front(upstream, double)
            async with served(front) as front.port:
                yield front


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with fronted() as one:
        yield one


def crc32(body: bytes) -> str:
    return base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


def plain(body: bytes, path: str = "/", *more: tuple[str, str]) -> bytes:
    return lines("PUT", path, [("host", "a"), ("content-length", str(len(body))), *more]) + body


def trailing(body: bytes, path: str = "/", checksum: str | None = None) -> bytes:
    cut = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
    wire = framed(*cut, trailer=f"x-amz-checksum-crc32:{checksum or crc32(body)}")
    headers = [
        ("host", "a"),
        ("content-length", str(len(wire))),
        ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        ("x-amz-decoded-content-length", str(len(body))),
        ("x-amz-trailer", "x-amz-checksum-crc32"),
    ]
    return lines("PUT", path, headers) + wire


async def assert_nothing_left(front: Front) -> None:
    assert front.uploads() == []
    assert front.double.objects("bucket") == {}
    (opened, first), (closed, second) = front.notes.told
    assert (opened, closed) == ("opened", "closed")
    assert first == second


@pytest.mark.parametrize("form", first([trailing, plain]))
async def test_a_staged_body_is_the_object_once_it_is_completed(front: Front, form: Any) -> None:
    assert (reply := await front.put(form(BODY)))
    assert reply.status == 200
    staged = await front.outcome()
    assert isinstance(staged, Staged)
    assert len(staged.parts) >= 2
    assert (front.double.objects("bucket"), front.uploads()) == ({}, [staged.upload_id])
    assert front.notes.told == [("opened", staged.upload_id)]
    answer = await front.upstream.complete_multipart(
        *PLACE, staged.upload_id, staged.parts, expected=None, signed_at=await now()
    )
    assert isinstance(answer, Applied)
    assert answer.etag == staged.etag
    stored = front.double.objects("bucket")["key"]
    assert stored.content.body == BODY
    assert (dict(stored.content.metadata), stored.content.headers["content-type"]) == ({"colour": "red"}, "text/plain")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (trailing(BODY, checksum="AAAAAA=="), "BadDigest"),
        (plain(BODY, "/", ("x-amz-checksum-crc32", "AAAAAA==")), "BadDigest"),
        (trailing(BODY)[:-50] + b"x" * 50, "IncompleteBody"),
    ],
)
async def test_a_body_that_does_not_match_its_head_is_not_staged(front: Front, data: bytes, code: str) -> None:
    assert await front.put(data)
    outcome = await front.outcome()
    assert isinstance(outcome, GatewayError)
    assert outcome.s3_code == code
    await assert_nothing_left(front)


async def test_a_client_that_falls_silent_half_way(front: Front) -> None:
    front.pace = Pace(idle=0.3)
    reply = await front.put(plain(BODY)[: 9 * MEBIBYTE])
    assert reply is not None
    assert reply.status == 408
    await assert_nothing_left(front)


@pytest.mark.parametrize("nth", first([2, 1]))
async def test_a_store_that_refuses_a_part(front: Front, nth: int) -> None:
    front.double.fail(status=403, code="AccessDenied", operation="UploadPart", nth=nth)
    await front.put(plain(BODY))
    outcome = await front.outcome()
    assert isinstance(outcome, StoreError)
    assert outcome.s3_code == "AccessDenied"
    await assert_nothing_left(front)


@pytest.mark.parametrize("nth", first([2, 1]))
async def test_a_store_that_fails_during_a_part(front: Front, nth: int) -> None:
    front.double.cut(operation="UploadPart", nth=nth)
    assert (reply := await front.put(plain(BODY)))
    assert reply.status == 503
    assert isinstance(await front.outcome(), Unavailable)
    await assert_nothing_left(front)


async def test_an_upload_that_is_aborted_while_it_stages(front: Front) -> None:
    held = front.double.hold(operation="UploadPart")
    async with front.connected() as (_, writer):
        writer.write(plain(BODY))
        async with asyncio.timeout(PATIENCE):
            await held.arrived.wait()
        (upload_id,) = front.uploads()
        await front.upstream.abort_multipart(*PLACE, upload_id)
        held.release()
        outcome = await front.outcome()
    assert isinstance(outcome, Unavailable)
    await assert_nothing_left(front)


async def test_a_store_that_does_not_open_an_upload(front: Front) -> None:
    front.double.fail(status=503, operation="CreateMultipartUpload")
    assert (reply := await front.put(plain(BODY)))
    assert reply.status == 503
    assert front.notes.told == []


async def test_a_long_body_is_touched_on_the_register(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.objects.writes.staging._TOUCH", 0.0)
    await front.put(plain(BODY))
    assert isinstance(await front.outcome(), Staged)
    assert ("touched", front.uploads()[0]) in front.notes.told


async def opened(front: Front) -> str:
    started = await front.upstream.create_multipart(*PLACE)
    assert isinstance(started, Started)
    front.upload_id = started.upload_id
    return started.upload_id


def parts_of(front: Front) -> list[bytes]:
    (upload,) = front.double.store.bucket("bucket").uploads.running(datetime.now(UTC))
    return [part.body for part in upload.parts.values()]


@pytest.mark.parametrize("body", first([bytes(3 * MEBIBYTE), b"", b"hello"]), ids=len)
@pytest.mark.parametrize("form", [plain, trailing])
async def test_a_part_of_a_clients_own_upload(front: Front, form: Any, body: bytes) -> None:
    await opened(front)
    await front.put(form(body, "/part"))
    part = await front.outcome()
    assert isinstance(part, Uploaded)
    assert part.etag == hashlib.md5(body).hexdigest()
    assert (b"etag", f'"{part.etag}"'.encode()) in part.headers
    assert parts_of(front) == [body]


@pytest.mark.parametrize(
    "data",
    [
        trailing(bytes(3 * MEBIBYTE), "/part", checksum="AAAAAA=="),
        trailing(b"hello", "/part", checksum="AAAAAA=="),
        plain(bytes(3 * MEBIBYTE), "/part", ("x-amz-checksum-crc32", "AAAAAA==")),
    ],
)
async def test_a_part_that_does_not_match_its_head_is_not_stored(front: Front, data: bytes) -> None:
    await opened(front)
    await front.put(data)
    outcome = await front.outcome()
    assert isinstance(outcome, GatewayError)
    assert outcome.s3_code == "BadDigest"
    assert parts_of(front) == []


async def test_an_upload_is_gone_when_the_store_knows_no_parts_of_it(front: Front) -> None:
    upload_id = await opened(front)
    front.double.fail(status=501, code="NotImplemented", operation="ListMultipartUploads", times=None)
    assert await front.upstream.abandon_upload(*PLACE, upload_id)


async def test_an_upload_is_not_abandoned_while_the_store_does_not_answer(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.objects.store.operations._PAUSES", (0.0, 0.01))
    upload_id = await opened(front)
    front.double.fail(status=500, operation="ListMultipartUploads", times=None)
    front.double.fail(status=403, operation="ListParts", times=None)
    assert not await front.upstream.abandon_upload(*PLACE, upload_id)


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
