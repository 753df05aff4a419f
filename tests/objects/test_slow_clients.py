"""A client that sends its body too slowly, or not to its end, is cut off: nothing is written, nothing stays staged."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import framed, head, receive
from tests.waiting import PATIENCE

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.thorough]

MEBIBYTE = 1024 * 1024
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
TOKEN = ("fencing-token", "33")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def impatient(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, server={"body_timeout": 0.4}) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def patient(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, server={"body_timeout": PATIENCE}) as one:
        yield one


def uploads(stage: Stage) -> list[str]:
    running = stage.double.store.bucket("bucket").uploads.running(datetime.now(UTC))
    return [each.key for each in running if not each.key.startswith(".fencing-gateway/")]


def request(origin: str, key: str, size: int, *, chunked: bool) -> tuple[bytes, bytes]:
    """Head and body of a put."""
    body = bytes(size)
    if not chunked:
        return head(origin, "PUT", f"/bucket/{key}", [TOKEN], unsigned=[("content-length", str(size))]), body
    wire = framed(*[body[start : start + 65536] for start in range(0, size, 65536)])
    length = [("content-length", str(len(wire)))]
    signed = [TOKEN, ("x-amz-decoded-content-length", str(size))]
    return head(origin, "PUT", f"/bucket/{key}", signed, payload=UNSIGNED_TRAILER, unsigned=length), wire


async def assert_nothing(stage: Stage, key: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while uploads(stage):
            await asyncio.sleep(0.02)
    assert stage.body(key) is None
    assert await stage.count("intent", key) == 0
    assert await stage.fence(f"s3/bucket/{key}") is None


@pytest.mark.parametrize("size", [1000, 11 * MEBIBYTE], ids=["in memory", "staged"])
@pytest.mark.parametrize("chunked", [False, True])
class TestSlowly:
    async def test_silence(self, impatient: Stage, key: str, size: int, chunked: bool) -> None:  # noqa: FBT001
        start, body = request(impatient.origin, key, size, chunked=chunked)
        parts = urlsplit(impatient.origin)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(start + body[: len(body) * 9 // 10])
        reply = await receive(reader)
        assert reply is not None
        assert (reply.status, reply.code) == (408, "RequestTimeout")
        writer.close()
        await assert_nothing(impatient, key)

    async def test_hanging_up(self, impatient: Stage, key: str, size: int, chunked: bool) -> None:  # noqa: FBT001
        start, body = request(impatient.origin, key, size, chunked=chunked)
        parts = urlsplit(impatient.origin)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(start + body[:-1])
        await writer.drain()
        writer.close()
        await asyncio.sleep(0.2)
        await assert_nothing(impatient, key)

    async def test_in_time(self, patient: Stage, key: str, size: int, chunked: bool) -> None:  # noqa: FBT001
        start, body = request(patient.origin, key, size, chunked=chunked)
        parts = urlsplit(patient.origin)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        for piece in (start, body[: len(body) // 2], body[len(body) // 2 :]):
            writer.write(piece)
            await asyncio.sleep(0.15)
        reply = await receive(reader)
        assert reply is not None
        assert reply.status == 200, reply.body
        writer.close()
        assert patient.body(key) == bytes(size)
        assert uploads(patient) == []


async def test_a_body_that_trickles(impatient: Stage, key: str) -> None:
    start, body = request(impatient.origin, key, 1000, chunked=False)
    parts = urlsplit(impatient.origin)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(start)
    for _ in range(20):
        writer.write(body[:5])
        await asyncio.sleep(0.05)
    reply = await receive(reader)
    assert reply is not None
    assert (reply.status, reply.code) == (408, "RequestTimeout")
    writer.close()
    await assert_nothing(impatient, key)
