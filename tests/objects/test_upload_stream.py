"""Streams to the store: sent once, with their length, as they come; broken off where they fail.

Against a raw socket on the loopback, so that what is asserted is what stood on the wire.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, verify
from gateway.config.stores import ObjectStore
from gateway.errors import OutcomeUnknown, StoreError, Unavailable
from gateway.objects.store.client import StoreClient
from gateway.objects.store.upload_stream import BodyStream
from tests.clock import Clock

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OK = b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nContent-Length: 0\r\n\r\n'
REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nnever"
MEBIBYTE = 1024 * 1024

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Seen:
    """The bytes of the connections, in their order: heads, and sizes of bodies."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.bodies: list[int] = []
        self.ended = asyncio.Event()


@asynccontextmanager
async def hop(serve: Serve, *, timeout: float = 20) -> AsyncIterator[StoreClient]:
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    config = ObjectStore(
        endpoint=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        access_key_id="AKGATEWAY",
        secret_access_key=SecretStr("gateway-secret"),
        timeout=timeout,
    )
    try:
        async with StoreClient(config) as opened:
            yield opened
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def taking(seen: Seen, said: bytes = OK) -> Serve:
    """A store that reads each body to its end, or as far as it comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            seen.heads.append(head)
            seen.bodies.append(0)
            length = int(dict(headers_of(head)).get(b"content-length", b"0"))
            while seen.bodies[-1] < length:
                piece = await reader.read(min(65536, length - seen.bodies[-1]))
                if not piece:
                    seen.ended.set()
                    return
                seen.bodies[-1] += len(piece)
            writer.write(said)
            await writer.drain()

    return serve


def headers_of(head: bytes) -> list[tuple[bytes, bytes]]:
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]
    return [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]


async def pieces(
    *sizes: int, pause: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0), failure: Exception | None = None
) -> AsyncIterator[bytes]:
    for size in sizes:
        await pause()
        yield bytes(size)
    if failure is not None:
        raise failure


async def endless() -> AsyncIterator[bytes]:
    yield bytes(10)
    await asyncio.sleep(30)
    yield bytes(10)


async def test_a_stream_goes_out_with_its_length_and_unsigned() -> None:
    seen = Seen()
    async with hop(taking(seen)) as store:
        for _ in range(2):
            body = BodyStream(pieces(3, 200_000, 7), 200_010)
            async with await store.send("PUT", "/bucket/key", body=body, signed_at=AT) as response:
                assert response.status == 200
                await response.read()
    assert seen.bodies == [200_010, 200_010]
    named = dict(headers_of(seen.heads[0]))
    assert named[b"content-length"] == b"200010"
    assert not named.keys() & {b"expect", b"transfer-encoding", b"content-type", b"content-md5"}


class GoneError(Exception):
    """The error raised in the task that feeds the stream."""


@pytest.mark.parametrize("failure", [GoneError(), StoreError("BadDigest", 400, "m"), OSError("disk")])
@pytest.mark.parametrize("sizes", [(), (10,), (3 * MEBIBYTE, 10)])
async def test_an_error_of_a_stream_breaks_the_request_off(failure: Exception, sizes: tuple[int, ...]) -> None:
    seen = Seen()
    async with hop(taking(seen)) as store:
        with pytest.raises(type(failure)) as caught:
            await store.send(
                "PUT", "/bucket/key", body=BodyStream(pieces(*sizes, failure=failure), 4 * MEBIBYTE), signed_at=AT
            )
        assert caught.value is failure
        if seen.heads:
            await asyncio.wait_for(seen.ended.wait(), 20)
        # The connection is not used again: what came next would have been taken for the rest of the body.
        async with await store.send("GET", "/bucket/key") as response:
            assert response.status == 200
    assert all(body < 4 * MEBIBYTE for body in seen.bodies)
    assert seen.heads[-1].startswith(b"GET ")


@pytest.mark.parametrize("sizes", [(9,), (11,), (6, 6), ()])
async def test_a_stream_that_is_not_as_long_as_it_says_never_arrives(sizes: tuple[int, ...]) -> None:
    seen = Seen()
    async with hop(taking(seen)) as store:
        with pytest.raises(ValueError, match="than its length"):
            await store.send("PUT", "/bucket/key", body=BodyStream(pieces(*sizes), 10), signed_at=AT)
    assert all(body < 10 for body in seen.bodies)


async def test_a_stream_may_take_long_while_it_makes_progress() -> None:
    seen, clock = Seen(), Clock()
    async with hop(taking(seen), timeout=20) as store:
        body = BodyStream(pieces(*[10] * 8, pause=lambda: clock.pass_by(15)), 80)
        async with await store.send("PUT", "/bucket/key", body=body, signed_at=AT) as response:
            assert response.status == 200
    assert seen.bodies == [80]


async def test_a_source_that_takes_long_is_not_the_fault_of_the_store() -> None:
    clock = Clock()
    async with hop(taking(Seen()), timeout=20) as store:
        body = BodyStream(pieces(10, 10, pause=lambda: clock.pass_by(25)), 20)
        async with await store.send("PUT", "/bucket/key", body=body, signed_at=AT) as response:
            assert response.status == 200


@pytest.mark.usefixtures("patient_connects")
async def test_a_store_that_stops_taking_a_stream_times_out() -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(30)

    pulled = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal pulled
        async for piece in pieces(*[MEBIBYTE // 16] * 1024):
            pulled += len(piece)
            yield piece

    async with hop(stuck, timeout=0.3) as store, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await store.send("PUT", "/bucket/key", body=BodyStream(counted(), 64 * MEBIBYTE), signed_at=AT)
    assert pulled < 16 * MEBIBYTE, "the sockets' own buffers, and no more"


@pytest.mark.usefixtures("patient_connects")
async def test_a_store_that_never_answers_a_whole_stream_times_out() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with hop(mute, timeout=0.3) as store:
        async with asyncio.timeout(20):
            with pytest.raises(OutcomeUnknown, match="timed out"):
                await store.send("PUT", "/bucket/key", body=BodyStream(pieces(10), 10), signed_at=AT)


@pytest.mark.parametrize("closing", [False, True], ids=["goes on listening", "hangs up"])
async def test_a_refusal_before_the_end_of_a_stream_is_returned(closing: bool) -> None:  # noqa: FBT001
    """The source is asked no more: it could be a client that sends for hours."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(10)
        writer.write(REFUSAL)
        await writer.drain()
        if not closing:
            await asyncio.sleep(30)

    async with (
        hop(early) as store,
        asyncio.timeout(20),
        await store.send("PUT", "/bucket/key", body=BodyStream(endless(), 20), signed_at=AT) as response,
    ):
        assert response.status == 403
        assert await response.read() == b"never"


async def test_a_success_before_the_end_of_a_stream_is_an_unknown_outcome() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(30)

    async with hop(hasty) as store, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="does not have"):
            await store.send("PUT", "/bucket/key", body=BodyStream(endless(), 20), signed_at=AT)


async def test_a_stream_is_not_retried_after_its_connection_breaks() -> None:
    seen = Seen()

    async def breaking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.transport.abort()

    async with hop(breaking) as store:
        body = BodyStream(pieces(*[MEBIBYTE] * 8), 8 * MEBIBYTE)
        with pytest.raises(OutcomeUnknown):
            await store.send("PUT", "/bucket/key", body=body, signed_at=AT)
    assert len(seen.heads) == 1


async def test_an_unreachable_store_never_reads_the_stream() -> None:
    asked = False

    async def source() -> AsyncIterator[bytes]:
        nonlocal asked
        asked = True
        yield b"x"

    config = ObjectStore(endpoint="http://127.0.0.1:1", access_key_id="A", secret_access_key=SecretStr("s"))
    async with StoreClient(config) as store:
        with pytest.raises(Unavailable):
            await store.send("PUT", "/bucket/key", body=BodyStream(source(), 1), signed_at=AT)
    assert not asked


async def test_a_signature_in_the_query_expires_as_it_says() -> None:
    seen = Seen()
    async with (
        hop(taking(seen)) as store,
        await store.send(
            "PUT",
            "/bucket/a%20b",
            "tagging=",
            [("content-type", "application/xml"), ("x-amz-expected-bucket-owner", "1")],
            b"<Tagging/>",
            signed_at=AT,
        ) as response,
    ):
        assert response.status == 200
    method, target, _ = seen.heads[0].split(b"\r\n")[0].split(b" ")
    raw_path, _, query = target.partition(b"?")
    head = RequestHead(method.decode(), raw_path, query, headers_of(seen.heads[0]))
    assert b"authorization" not in dict(head.headers)

    def secret_of(access_key_id: str, session: str | None) -> tuple[Principal, str]:
        return Principal("gateway"), "gateway-secret"

    assert verify(head, secret_of, AT + timedelta(seconds=15)).principal.name == "gateway"
    with pytest.raises(StoreError):
        verify(head, secret_of, AT + timedelta(seconds=16))
