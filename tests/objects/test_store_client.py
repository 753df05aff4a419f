"""The store gets each request once, as it was signed, and streams go out as they come, or break off where they fail.

Against a raw socket on the loopback, so that what is asserted is what stood on the wire.
"""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, verify
from gateway.errors import OutcomeUnknown, StoreError, Unavailable
from gateway.objects.s3.answers import Applied, Found, NotSent, Rejected, Unknown
from gateway.objects.store import client
from gateway.objects.store.connection import BodyStream, Connections
from tests.certificate_authority import SERVER, Authority
from tests.clock import Clock
from tests.objects.wire import AT, HANG, OK, RESET, Store, answer, listening, put, upstream

ODD = [
    *("a/../b", "..", "../other/k", "a//b", "/lead", "tail/", "./a/."),
    *("a%2Bb", "a%20b", "100%25", "%C3%A9", "a%3Fb%23c"),
]


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_path_goes_out_as_it_is_and_is_signed_as_it_goes_out(store: Store, method: str) -> None:
    query = "partNumber=1&response-content-type=a%2Fb%20c"
    async with upstream(store) as up:
        for raw_key in ODD:
            async with await up.send(method, f"/bucket/{raw_key}", query, signed_at=AT) as response:
                assert response.status == 200
    for raw_key, request in zip(ODD, store.received, strict=True):
        target = request.line.split(b" ")[1]
        assert target.startswith(f"/bucket/{raw_key}?{query}".encode())
        head = RequestHead(method, f"/bucket/{raw_key}".encode(), target.split(b"?", 1)[1], request.headers)
        assert verify(head, lambda *_: (Principal("gateway"), "gateway-secret"), AT)


@pytest.mark.parametrize("fault", [b"", RESET], ids=["closed", "reset"])
@pytest.mark.parametrize("reused", [False, True], ids=["fresh connection", "reused connection"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
async def test_no_write_is_ever_sent_twice(store: Store, method: str, reused: bool, fault: bytes) -> None:  # noqa: FBT001
    async with upstream(store) as up:
        if reused:
            assert isinstance(await put(up), Applied)
        store.answers = [fault, OK]
        with pytest.raises(OutcomeUnknown):
            await up.send(method, "/bucket/key", body=b"again" if method == "PUT" else b"", signed_at=AT)
    assert len(store.received) == 1 + reused
    assert store.connections == 1
    assert store.received[-1].line.startswith(method.encode())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_read_is_retried_after_the_store_closes_an_idle_connection(store: Store, method: str) -> None:
    async with upstream(store) as up:
        assert isinstance(await put(up), Applied)
        store.answers = [b"", OK]
        async with await up.send(method, "/bucket/key") as response:
            assert response.status == 200
        store.answers = [b""]
        with pytest.raises(Unavailable):
            await up.send(method, "/bucket/key")


async def test_cookies_are_not_sent_back(store: Store) -> None:
    store.answers = [answer(200, ETag='"e1"', Set_Cookie="a=b; Path=/"), OK]
    async with upstream(store) as up:
        await put(up)
        await put(up)
    assert b"cookie" not in dict(store.received[1].headers)


async def test_redirects_are_not_followed(store: Store) -> None:
    store.answers = [answer(307, Location=f"http://127.0.0.1:{store.port}/other/key"), OK]
    async with upstream(store) as up:
        assert isinstance(await put(up), Rejected)
        assert isinstance(await up.head(("bucket", "key")), Found)
        store.answers = [answer(301, Location="/other/key"), OK]
        async with await up.send("GET", "/bucket/key") as response:
            assert response.status == 301
    assert len(store.received) == 3


@pytest.mark.thorough
@pytest.mark.usefixtures("patient_connects")
async def test_a_store_that_does_not_answer_in_time(store: Store) -> None:
    store.answers = [HANG]
    async with upstream(store, timeout=1) as up:
        assert await put(up) == Unknown("The store did not answer: timed out.")
        assert await up.head(("bucket", "key")) == Unknown("The store did not answer: timed out.")
        with pytest.raises(Unavailable, match="timed out"):
            await up.send("GET", "/bucket/key")


async def test_an_answer_that_stops_half_way_in_time(store: Store) -> None:
    head = b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nDate: Fri, 02 Jan 2026 03:04:05 GMT\r\nContent-Length: 50\r\n\r\n'
    store.answers = [head + b"half"]
    clock = Clock()
    async with upstream(store) as up, asyncio.TaskGroup() as tasks:
        sent = tasks.create_task(put(up))
        while up.store_time is None:  # its head has arrived
            await asyncio.sleep(0.001)
        await clock.pass_by(20)
        assert await sent == Unknown("The store's answer broke off: timed out.")


async def test_an_unreachable_store_has_received_nothing() -> None:
    async with upstream(Store(port=1)) as up:
        assert isinstance(await put(up), NotSent)
        assert isinstance(await up.delete(("bucket", "key"), expected="e", signed_at=AT), NotSent)
        assert isinstance(await up.put_in_parts(("bucket", "key"), b"", expected="e", signed_at=AT), NotSent)
        amended, _ = await up.exchange("PUT", "/bucket/key", "acl=", (), b"", signed_at=AT)
        assert isinstance(amended, NotSent)
        assert isinstance(await up.head(("bucket", "key")), Unknown)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await up.send("GET", "/bucket/key")


async def test_a_store_that_does_not_finish_the_tls_handshake_has_received_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECT", 0.2)
    async with upstream(store, scheme="https") as up:
        assert isinstance(await put(up), NotSent)
    assert store.received == []


async def test_a_write_is_signed_with_the_clock_of_the_store(store: Store) -> None:
    """As it stood in the store's last answer, and the time since."""
    store.answers = [answer(200, Date="Fri, 03 Jan 2031 10:00:00 GMT"), OK]
    async with upstream(store) as up:
        await up.head(("bucket", "key"))
        await up.abort_multipart(("bucket", "key"), "u1")
        assert up.store_time == datetime(2031, 1, 3, 10, tzinfo=UTC)
    query = dict(parse_qsl(store.received[1].line.split(b" ")[1].split(b"?")[1].decode()))
    assert query["X-Amz-Date"].startswith("20310103T1000")


async def test_a_read_passes_through_as_it_is(store: Store) -> None:
    body = gzip.compress(b"text")
    store.answers = [answer(206, body, Content_Encoding="gzip", ETag='"e1"', X_Amz_Meta_A="1")]
    wanted = [("range", "bytes=0-9")]
    async with upstream(store) as up, await up.send("GET", "/bucket/key", "versionId=3", wanted) as response:
        assert b"".join([chunk async for chunk in response.chunks()]) == body
        assert (response.status, response.header("etag")) == (206, '"e1"')
        assert (b"X-Amz-Meta-A", b"1") in response.headers
    assert store.received[0].header(b"range") == b"bytes=0-9"
    assert b"accept-encoding" not in dict(store.received[0].headers)


async def test_a_read_left_half_way_leaves_nothing_for_the_next(store: Store) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nhalf"
    store.answers = [half, answer(200, b"x" * 1_000_000), OK]
    async with upstream(store) as up:
        async with await up.send("GET", "/bucket/key") as response:
            with pytest.raises(Unavailable, match="broke off"):
                await response.read()
        async with await up.send("GET", "/bucket/key") as response:
            assert len(await response.read(limit=10)) == 10
        assert isinstance(await put(up), Applied)
    assert store.connections == 3


# Connections.


async def test_connections_are_kept_for_less_time_than_stores_keep_them(store: Store) -> None:
    clock = Clock()
    async with upstream(store) as up:
        for _ in range(3):
            await put(up)
        assert store.connections == 1
        await asyncio.gather(put(up), put(up))
        assert store.connections == 2
        await clock.pass_by(3)
        await put(up)
        assert store.connections == 2
        await clock.pass_by(5)
        await put(up)
    assert store.connections == 3


async def test_a_write_does_not_take_a_connection_that_the_store_has_closed() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\nhello")
        writer.write(OK)

    async with listening(serve) as store, upstream(store) as up:
        for _ in range(3):
            assert isinstance(await put(up), Applied)
            await asyncio.sleep(0.1)
    assert store.connections == 3


async def test_a_cancelled_request_leaves_a_connection_that_is_not_its_own_any_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Connections.keep

    def cancelling(*arguments: Any) -> None:
        keep(*arguments)
        asked.cancel()

    async with upstream(store) as up:
        with monkeypatch.context() as patched:
            patched.setattr(Connections, "keep", cancelling)
            asked = asyncio.create_task(up.send("GET", "/bucket/key"))
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert isinstance(await put(up), Applied)
    assert store.connections == 1


async def test_a_small_body_goes_out_in_one_packet_with_its_head() -> None:
    packets: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        packets.append(await reader.read(2**16))
        writer.write(OK)

    async with listening(serve) as store, upstream(store) as up:
        assert isinstance(await put(up, b"x" * 4096), Applied)
    assert [packet.endswith(b"\r\n\r\n" + b"x" * 4096) for packet in packets] == [True]


@pytest.mark.parametrize(
    ("said", "body", "kept"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nX: 1\r\n\r\n", b"abc", True),
        (b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n" + answer(200, b"abc"), b"abc", True),
        (answer(200, b"abc", Connection="close"), b"abc", False),
        (b"HTTP/1.1 200 OK\r\nX-Amz-Ends: with the connection\r\n\r\nabc", b"abc", False),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", b"", True),
        (answer(200, b"abc") + b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"abc", False),
    ],
    ids=["chunked", "interim", "close", "until the end", "no body", "one answer too many"],
)
async def test_an_answer_ends_where_its_head_says(said: bytes, body: bytes, kept: bool) -> None:  # noqa: FBT001
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if b"with the connection" not in said:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer(200, b"next"))

    async with listening(serve) as store, upstream(store) as up:
        async with await up.send("GET", "/bucket/key") as response:
            assert await response.read() == body
            assert response.header("x") is None, "neither the header of an interim answer nor a trailer"
        if b"with the connection" not in said:
            async with await up.send("GET", "/bucket/key") as response:
                assert await response.read() == (b"next" if kept else body)
    assert store.connections == (1 if kept or b"with the connection" in said else 2)


@pytest.mark.parametrize(
    ("more", "late", "kept"),
    [(b"", 0, True), (b"0\r\n\r\n", 0, False), (b"body\r\n\r\n", 0, False), (b"bo", 3, False)],
)
async def test_what_follows_the_answer_to_a_head_is_not_the_next_answer(more: bytes, late: int, kept: bool) -> None:  # noqa: FBT001
    """``late``: the bytes that come in a packet of their own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        said = b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nContent-Length: 4\r\n\r\n' + more
        writer.write(said[: len(said) - late])
        await asyncio.sleep(0.05)
        writer.write(said[len(said) - late :])
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(200, b"next"))

    async with listening(serve) as store, upstream(store) as up:
        assert isinstance(await up.head(("bucket", "key")), Found)
        await up.head(("bucket", "key"))
    assert store.connections == (1 if kept else 2)


UNTIL_THE_END = b"HTTP/1.1 200 OK\r\n\r\nabc"


async def test_an_answer_that_the_gateway_breaks_off_is_not_whole() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(UNTIL_THE_END)
        await reader.read()

    async with listening(serve) as store:
        async with upstream(store) as up:
            response = await up.send("GET", "/bucket/key")
        with pytest.raises(Unavailable, match="broke off"):
            await response.read()


IN_CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: ",
        IN_CHUNKS + b"0\r\nX: ",
        IN_CHUNKS + b"1;",
    ],
    ids=["interim heads", "a head", "a trailer", "the extension of a chunk"],
)
async def test_what_has_no_end_is_given_up(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        while True:
            writer.write(said * 100 if said.endswith(b"\n") else b"y" * 4096)
            await writer.drain()
            await asyncio.sleep(0)

    async with listening(serve) as store, upstream(store) as up, asyncio.timeout(20):
        with pytest.raises(Unavailable, match="no end"):
            await (await up.send("GET", "/bucket/key")).read()


def served_by(authority: Authority, name: str, folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue(folder / "store.pem", name, purposes=[SERVER]))
    return context


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The authority that the gateway trusts."""
    authority, file = Authority("ours"), tmp_path / "authority.pem"
    file.write_bytes(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    return authority


async def test_only_a_store_that_proves_its_name_receives_anything(authority: Authority, tmp_path: Path) -> None:
    for signer, name, expected in (
        (authority, "IP:127.0.0.1", Applied),
        (authority, "DNS:store.example.com", NotSent),
        (Authority("another"), "IP:127.0.0.1", NotSent),
    ):
        async with listening(tls=served_by(signer, name, tmp_path)) as store, upstream(store, scheme="https") as up:
            assert isinstance(await put(up), expected)
        assert len(store.received) == (expected is Applied)


async def test_a_slow_reader_holds_the_store_back() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {64 * MEBIBYTE}\r\n\r\n".encode())
        while sent < 64 * MEBIBYTE:
            writer.write(bytes(MEBIBYTE // 4))
            await writer.drain()
            sent += MEBIBYTE // 4

    clock = Clock()
    async with listening(serve) as store, upstream(store) as up, await up.send("GET", "/bucket/key") as response:
        while True:
            before = sent
            await asyncio.sleep(0.05)
            if sent == before:
                break
        assert sent < 32 * MEBIBYTE, "the sockets' own buffers, and no more"
        await clock.pass_by(100)  # the reader takes its time, which is not the store's
        assert sum([len(chunk) async for chunk in response.chunks()]) == 64 * MEBIBYTE
    assert store.connections == 1


async def test_another_address_of_the_store_is_tried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def two(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", two)
    async with upstream(store) as up:
        results = await asyncio.gather(put(up), put(up))
        assert [type(result) for result in results] == [Applied, Applied]
        await asyncio.gather(put(up), put(up), put(up))
    assert store.connections == 3
    assert len(asked) <= 2, "the addresses are remembered for a while"


async def test_a_header_is_one_line(store: Store) -> None:
    async with upstream(store) as up:
        for value in ("a\r\nX: b", "a\nX: b", "a\0b"):
            with pytest.raises(ValueError, match="line"):
                await up.send("GET", "/bucket/key", headers=[("x-amz-meta-a", value)])
    assert store.received == []


# Streams to the store.

REFUSAL = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 5\r\n\r\nnever"


MEBIBYTE = 1024 * 1024


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


async def test_a_stream_goes_out_with_its_length_and_unsigned(store: Store) -> None:
    async with upstream(store) as up:
        for _ in range(2):
            body = BodyStream(pieces(3, 200_000, 7), 200_010)
            async with await up.send("PUT", "/bucket/key", body=body, signed_at=AT) as response:
                assert response.status == 200
                await response.read()
    assert [len(request.body) for request in store.received] == [200_010, 200_010]
    named = dict(store.received[0].headers)
    assert named[b"content-length"] == b"200010"
    assert not named.keys() & {b"expect", b"transfer-encoding", b"content-type", b"content-md5"}


class GoneError(Exception):
    """The error raised in the task that feeds the stream."""


@pytest.mark.parametrize("failure", [GoneError(), StoreError("BadDigest", 400, "m"), OSError("disk")])
@pytest.mark.parametrize("sizes", [(), (10,), (3 * MEBIBYTE, 10)])
async def test_an_error_of_a_stream_breaks_the_request_off(
    store: Store, failure: Exception, sizes: tuple[int, ...]
) -> None:
    async with upstream(store) as up:
        broken = BodyStream(pieces(*sizes, failure=failure), 4 * MEBIBYTE)
        with pytest.raises(type(failure)) as caught:
            await up.send("PUT", "/bucket/key", body=broken, signed_at=AT)
        assert caught.value is failure
        # The connection is not used again: what came next would have been taken for the rest of the body.
        async with await up.send("GET", "/bucket/key") as response:
            assert response.status == 200
    assert [request.line.split()[0] for request in store.received] == [b"GET"]


@pytest.mark.parametrize("sizes", [(9,), (11,), (6, 6), ()])
async def test_a_stream_that_is_not_as_long_as_it_says_never_arrives(store: Store, sizes: tuple[int, ...]) -> None:
    async with upstream(store) as up:
        with pytest.raises(ValueError, match="than its length"):
            await up.send("PUT", "/bucket/key", body=BodyStream(pieces(*sizes), 10), signed_at=AT)
    assert store.received == []


async def test_a_source_that_takes_long_is_not_the_fault_of_the_store(store: Store) -> None:
    clock = Clock()
    async with upstream(store) as up:
        body = BodyStream(pieces(10, 10, pause=lambda: clock.pass_by(25)), 20)
        async with await up.send("PUT", "/bucket/key", body=body, signed_at=AT) as response:
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

    async with listening(stuck) as store, upstream(store, timeout=0.3) as up, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await up.send("PUT", "/bucket/key", body=BodyStream(counted(), 64 * MEBIBYTE), signed_at=AT)
    assert pulled < 16 * MEBIBYTE, "the sockets' own buffers, and no more"


@pytest.mark.usefixtures("patient_connects")
async def test_a_store_that_never_answers_a_whole_stream_times_out() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(mute) as store, upstream(store, timeout=0.3) as up, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await up.send("PUT", "/bucket/key", body=BodyStream(pieces(10), 10), signed_at=AT)


@pytest.mark.usefixtures("patient_connects")
async def test_a_stream_that_is_cancelled_keeps_nothing_waiting(store: Store) -> None:
    async def cancelled() -> AsyncIterator[bytes]:
        yield bytes(5)
        raise asyncio.CancelledError

    async with upstream(store, timeout=0.3) as up, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await up.send("PUT", "/bucket/key", body=BodyStream(cancelled(), 10), signed_at=AT)


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
        listening(early) as store,
        upstream(store) as up,
        asyncio.timeout(20),
        await up.send("PUT", "/bucket/key", body=BodyStream(endless(), 20), signed_at=AT) as response,
    ):
        assert response.status == 403
        assert await response.read() == b"never"


async def test_a_success_before_the_end_of_a_stream_is_an_unknown_outcome() -> None:
    async def hasty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(30)

    async with listening(hasty) as store, upstream(store) as up, asyncio.timeout(20):
        with pytest.raises(OutcomeUnknown, match="does not have"):
            await up.send("PUT", "/bucket/key", body=BodyStream(endless(), 20), signed_at=AT)
