"""Each write reaches the store once, as it was signed, and its answer is read for no more than it says.

Against a raw socket on the loopback, so that what is asserted is what stood on the wire.
"""

import asyncio
import gzip
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from hashlib import md5
from urllib.parse import parse_qsl

import aiohttp
import pytest

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, verify
from gateway.db.database import Database
from gateway.errors import OutcomeUnknown, StoreError, Unavailable
from gateway.fencing.intent import MutationKind
from gateway.objects.probe.probe import Profiles
from gateway.objects.run.bump import bump
from gateway.objects.run.runner import Runner
from gateway.objects.s3 import forwarded_headers
from gateway.objects.s3.answers import (
    EXPIRED,
    Applied,
    Found,
    Missing,
    NotApplied,
    NotSent,
    Rejected,
    Unknown,
    WriteAnswer,
)
from gateway.objects.s3.documents import Part
from gateway.objects.store import client
from gateway.objects.store.operations import Upstream
from gateway.observe.events import ignore
from tests.clock import Clock
from tests.objects.wire import AT, CLOCK, ERROR, HANG, OK, RESET, Store, answer, listening, upstream


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with listening() as store:
        yield store


@pytest.mark.parametrize(
    "without_length",
    [
        b'HTTP/1.1 200 OK\r\nETag: "e0"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n',
        b'HTTP/1.0 200 OK\r\nETag: "e0"\r\n\r\nhel',
    ],
    ids=["in chunks", "until the connection closes"],
)
async def test_an_object_of_unknown_length_is_not_rewritten(store: Store, without_length: bytes) -> None:
    """Otherwise the rest of a truncated body would replace the object."""
    store.answers = [without_length, OK]
    async with upstream(store) as up:
        assert isinstance(await bump(up, "bucket", "key", "e0", frozenset(), sign), NotSent)
    assert [received.line.split()[0] for received in store.received] == [b"GET"]


async def test_an_object_that_breaks_off_is_not_rewritten(store: Store) -> None:
    store.answers = [b'HTTP/1.1 200 OK\r\nETag: "e0"\r\nContent-Length: 9999\r\n\r\nhello', OK]
    async with upstream(store) as up:
        assert isinstance(await bump(up, "bucket", "key", "e0", frozenset(), sign), NotSent)
    assert [received.line.split()[0] for received in store.received] == [b"GET"]


async def sign() -> datetime:
    return AT


async def put(up: Upstream, body: bytes = b"hello") -> WriteAnswer:
    return await up.put("bucket", "key", body, expected=None, signed_at=AT)


async def test_a_put_on_the_wire(store: Store) -> None:
    headers = [("content-type", "text/plain"), *forwarded_headers.own_metadata("s3/b/k", "42", "w1")]
    async with upstream(store) as up:
        applied = await up.put("bucket", "key", b"hello", headers, expected="e0", signed_at=AT)
    assert isinstance(applied, Applied)
    assert applied.etag == "e1"
    (request,) = store.received
    target, query = request.line.split(b" ")[1].split(b"?")
    assert (target, request.body) == (b"/bucket/key", b"hello")
    assert sorted(request.headers) == [
        (b"content-length", b"5"),
        (b"content-md5", b64encode(md5(b"hello").digest())),
        (b"content-type", b"text/plain"),
        (b"host", f"127.0.0.1:{store.port}".encode()),
        (b"if-match", b'"e0"'),
        (b"x-amz-meta-fencing-resource", b"s3/b/k"),
        (b"x-amz-meta-fencing-token", b"42"),
        (b"x-amz-meta-fencing-write-id", b"w1"),
    ]
    signed = dict(parse_qsl(query.decode()))["X-Amz-SignedHeaders"].split(";")
    assert signed == [name.decode() for name, _ in sorted(request.headers) if name != b"content-length"]
    head = RequestHead("PUT", b"/bucket/key", query, request.headers)
    assert verify(head, lambda *_: (Principal("gateway"), "gateway-secret"), AT).principal.name == "gateway"
    with pytest.raises(StoreError, match="expired"):
        verify(head, lambda *_: (Principal("gateway"), "gateway-secret"), AT + timedelta(seconds=16))


@pytest.mark.parametrize(
    "raw_key",
    [
        "a/../b",
        "..",
        "../other/k",
        "a//b",
        "/lead",
        "tail/",
        "./a/.",
        "a%2Bb",
        "a%20b",
        "100%25",
        "%C3%A9",
        "a%3Fb%23c",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_path_goes_out_as_it_is_and_is_signed_as_it_goes_out(store: Store, method: str, raw_key: str) -> None:
    query = "partNumber=1&response-content-type=a%2Fb%20c"
    async with upstream(store) as up, await up.send(method, f"/bucket/{raw_key}", query, signed_at=AT) as response:
        assert response.status == 200
    (request,) = store.received
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


async def test_without_the_middleware_aiohttp_sends_a_write_twice(store: Store) -> None:
    """The test above would see a second write if the gateway did not prevent it."""
    store.answers = [b"", OK]
    url = f"http://127.0.0.1:{store.port}/bucket/key"
    async with aiohttp.ClientSession() as session, session.put(url, data=b"again") as response:
        assert response.status == 200
    assert [request.body for request in store.received] == [b"again", b"again"]


async def test_connections_are_used_again(store: Store) -> None:
    async with upstream(store) as up:
        for _ in range(3):
            assert isinstance(await put(up), Applied)
    assert (len(store.received), store.connections) == (3, 1)


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
        assert isinstance(await up.head("bucket", "key"), Found)
        store.answers = [answer(301, Location="/other/key"), OK]
        async with await up.send("GET", "/bucket/key") as response:
            assert response.status == 301
    assert len(store.received) == 3


async def test_a_body_of_many_megabytes_goes_out_whole(store: Store) -> None:
    body = bytes(range(256)) * 12_000
    async with upstream(store) as up:
        assert isinstance(await put(up, body), Applied)
    (request,) = store.received
    assert request.body == body
    assert request.header(b"content-length") == str(len(body)).encode()


async def test_an_empty_body_has_a_length(store: Store) -> None:
    async with upstream(store) as up:
        await put(up, b"")
    assert store.received[0].header(b"content-length") == b"0"


@pytest.mark.parametrize(
    ("expected", "quoted", "header"),
    [
        (None, True, (b"if-none-match", b"*")),
        (None, False, (b"if-none-match", b"*")),
        ("e0", True, (b"if-match", b'"e0"')),
        ("e0", False, (b"if-match", b"e0")),
    ],
)
async def test_every_write_is_conditional(
    store: Store,
    expected: str | None,
    quoted: bool,  # noqa: FBT001
    header: tuple[bytes, bytes],
) -> None:
    async with upstream(store) as up:
        if not quoted:
            up.drop_quotes("bucket")
        await up.put("bucket", "key", b"hello", expected=expected, signed_at=AT)
        await up.complete_multipart("bucket", "key", "u1", [Part(1, "p1")], expected=expected, signed_at=AT)
        if expected is not None:
            await up.delete("bucket", "key", expected=expected, signed_at=AT)
    assert all(header in request.headers for request in store.received)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(412, ERROR % b"PreconditionFailed"), NotApplied(412, "PreconditionFailed")),
        (answer(409, ERROR % b"ConditionalRequestConflict"), NotApplied(409, "ConditionalRequestConflict")),
        (answer(404, ERROR % b"NoSuchKey"), NotApplied(404, "NoSuchKey")),
        (answer(404, ERROR % b"NoSuchBucket"), Rejected(404, "NoSuchBucket", "m")),
        (answer(403, ERROR % b"AccessDenied"), Rejected(403, "AccessDenied", "m")),
        (answer(500, ERROR % b"InternalError"), Unknown("500 InternalError")),
        (answer(200, ERROR % b"InternalError", ETag='"e1"'), Unknown("200 with the error InternalError")),
        (answer(200), Unknown("success without an ETag")),
        (b"", Unknown("The store did not answer: ServerDisconnectedError.")),
        (RESET, Unknown("The store did not answer: ClientOSError.")),
        (b"not HTTP at all\r\n\r\n", Unknown("The store did not answer: ClientResponseError.")),
        (
            b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nContent-Length: 9999\r\n\r\nbroken',
            Unknown("The store's answer broke off: ClientPayloadError."),
        ),
    ],
)
async def test_the_answer_to_a_put_is_interpreted(store: Store, said: bytes, expected: WriteAnswer) -> None:
    store.answers = [said]
    async with upstream(store) as up:
        assert await put(up) == expected
    assert len(store.received) == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("patient_connects")
async def test_a_store_that_does_not_answer_in_time(store: Store) -> None:
    store.answers = [HANG]
    async with upstream(store, timeout=1) as up:
        assert await put(up) == Unknown("The store did not answer: timed out.")
        assert await up.head("bucket", "key") == Unknown("The store did not answer: timed out.")
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
        assert isinstance(await up.delete("bucket", "key", expected="e", signed_at=AT), NotSent)
        assert isinstance(await up.put_in_parts("bucket", "key", b"", expected="e", signed_at=AT), NotSent)
        assert isinstance(await up.head("bucket", "key"), Unknown)
        with pytest.raises(Unavailable, match="cannot be reached"):
            await up.send("GET", "/bucket/key")


async def test_a_store_that_does_not_finish_the_tls_handshake_has_received_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_CONNECT", 0.2)
    async with upstream(store, scheme="https") as up:
        assert isinstance(await put(up), NotSent)
    assert store.received == []


async def test_a_store_that_does_not_speak_tls_has_received_nothing() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(400))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        store = Store(port=server.sockets[0].getsockname()[1])
        async with upstream(store, scheme="https") as up:
            assert isinstance(await put(up), NotSent)


async def test_a_closed_client_sends_nothing(store: Store) -> None:
    async with upstream(store) as up:
        pass
    assert isinstance(await put(up), NotSent)
    assert store.received == []


async def test_a_write_is_signed_with_the_clock_of_the_store(store: Store) -> None:
    """As it stood in the store's last answer, and the time since."""
    store.answers = [answer(200, Date="Fri, 03 Jan 2031 10:00:00 GMT"), OK]
    async with upstream(store) as up:
        await up.head("bucket", "key")
        await up.abort_multipart("bucket", "key", "u1")
        assert up.store_time == datetime(2031, 1, 3, 10, tzinfo=UTC)
    query = dict(parse_qsl(store.received[1].line.split(b" ")[1].split(b"?")[1].decode()))
    assert query["X-Amz-Date"].startswith("20310103T1000")


@pytest.mark.parametrize(
    ("said", "expired"),
    [
        (answer(403, ERROR % b"AccessDenied", Date="Fri, 02 Jan 2026 03:04:20 GMT"), True),
        (answer(403, ERROR % b"AccessDenied", Date="Fri, 02 Jan 2026 03:04:19 GMT"), False),
        (answer(403, b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"), True),
        (answer(403, ERROR % b"RequestTimeTooSkewed"), True),
        (answer(403, ERROR % b"SignatureDoesNotMatch"), False),
    ],
)
async def test_a_request_that_came_too_late_is_told_from_one_that_is_forbidden(
    store: Store,
    said: bytes,
    expired: bool,  # noqa: FBT001
) -> None:
    """By the store's clock: S3 has no code for it. Such a request had no effect, and may be sent again."""
    store.answers = [said]
    async with upstream(store) as up:
        assert (await put(up) == NotApplied(403, EXPIRED)) is expired


async def test_a_put_at_a_store_that_waits_for_bodies_counts_as_dead_after_a_day(store: Store) -> None:
    store.answers = [answer(200, Server="VERSITYGW"), answer(200, Server="other")]
    async with upstream(store) as up:
        runner = Runner(Database("postgresql://nobody@127.0.0.1/none"), up, Profiles(up), ignore, 0.0)
        usual = timedelta(seconds=105)
        assert {runner._dead_after(kind) for kind in MutationKind} == {usual}
        for _ in range(2):
            await up.head("bucket", "key")
            longer = [kind for kind in MutationKind if runner._dead_after(kind) != usual]
            assert longer == [MutationKind.CONDITIONAL]
        assert runner._dead_after(MutationKind.CONDITIONAL) == timedelta(days=1, seconds=15)


async def test_a_read_is_signed_with_the_time_of_reading(store: Store) -> None:
    async with upstream(store) as up:
        await up.head("bucket", "key")
    signed = datetime.strptime(store.received[0].header(b"x-amz-date").decode(), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - signed).total_seconds()) < 60


async def test_the_answer_to_a_head_is_interpreted(store: Store) -> None:
    date = "Fri, 02 Jan 2026 03:04:05 GMT"
    metadata = dict(forwarded_headers.own_metadata("s3/b/k", "1.2", "w1", tombstone=True))
    store.answers = [
        b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nContent-Length: 7\r\nDate: ' + date.encode() + b"\r\n\r\n",
        answer(200, b"", ETag='"e2"', **metadata),
        answer(404, Date=date),
        answer(404, Date="yesterday"),
        answer(403),
        answer(200),
        answer(500),
    ]
    async with upstream(store) as up:
        found = [await up.head("bucket", "key") for _ in range(len(store.answers))]
    assert found == [
        Found("e1", size=7, date=AT),
        Found("e2", "w1", True, "s3/b/k", "1.2"),  # noqa: FBT003
        Missing(AT),
        Missing(),
        Unknown("HEAD was answered with 403"),
        Unknown("HEAD was answered with 200"),
        Unknown("HEAD was answered with 500"),
    ]


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


async def test_a_read_that_breaks_off_is_an_error(store: Store) -> None:
    store.answers = [b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nhalf"]
    async with upstream(store) as up, await up.send("GET", "/bucket/key") as response:
        with pytest.raises(Unavailable, match="broke off"):
            await response.read()


async def test_a_read_left_half_way_leaves_nothing_for_the_next(store: Store) -> None:
    store.answers = [answer(200, b"x" * 1_000_000), OK]
    async with upstream(store) as up:
        async with await up.send("GET", "/bucket/key") as response:
            assert len(await response.read(limit=10)) == 10
        assert isinstance(await put(up), Applied)
    assert store.connections == 2


INITIATED = b'<InitiateMultipartUploadResult xmlns="n"><UploadId>u/1 +</UploadId></InitiateMultipartUploadResult>'
COMPLETED = b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"


async def in_parts(up: Upstream) -> WriteAnswer:
    headers = [("x-amz-meta-a", "1"), ("x-amz-checksum-crc32", "NhCmhg==")]
    return await up.put_in_parts("bucket", "key", b"hello", headers, expected="e0", signed_at=AT)


async def test_the_same_bytes_as_an_upload_of_one_part(store: Store) -> None:
    store.answers = [CLOCK, answer(200, INITIATED), answer(200, ETag='"p1"'), answer(200, b"  " + COMPLETED)]
    async with upstream(store) as up:
        applied = await in_parts(up)
    assert isinstance(applied, Applied)
    assert applied.etag == "e-1"
    _, *requests = store.received
    create, part, complete = requests
    assert [request.line.split(b"&X-Amz-Algorithm")[0] for request in requests] == [
        b"POST /bucket/key?uploads=",
        b"PUT /bucket/key?partNumber=1&uploadId=u%2F1%20%2B",
        b"POST /bucket/key?uploadId=u%2F1%20%2B",
    ]
    assert create.header(b"x-amz-meta-a") == b"1"
    assert b"x-amz-checksum-crc32" not in dict(create.headers)
    assert part.body == b"hello"
    assert b"<PartNumber>1</PartNumber><ETag>&quot;p1&quot;</ETag>" in complete.body
    assert [b"if-match" in dict(request.headers) for request in requests] == [False, False, True]


@pytest.mark.parametrize(
    ("answers", "expected", "methods"),
    [
        ([answer(403, ERROR % b"AccessDenied")], Rejected(403, "AccessDenied", "m"), [b"POST"]),
        ([answer(500)], NotSent("500"), [b"POST"]),
        ([answer(200)], NotSent("an upload was opened without an id"), [b"POST"]),
        ([answer(200, INITIATED), answer(500), answer(204)], NotSent("500"), [b"POST", b"PUT", b"DELETE"]),
        (
            [answer(200, INITIATED), OK, answer(412, ERROR % b"PreconditionFailed"), answer(204)],
            NotApplied(412, "PreconditionFailed"),
            [b"POST", b"PUT", b"POST", b"DELETE"],
        ),
        (
            [answer(200, INITIATED), OK, answer(200, ERROR % b"InternalError")],
            Unknown("200 with the error InternalError"),
            [b"POST", b"PUT", b"POST"],
        ),
        (
            [answer(200, INITIATED), OK, b""],
            Unknown("The store did not answer: ServerDisconnectedError."),
            [b"POST", b"PUT", b"POST"],
        ),
        ([answer(200, INITIATED), OK, answer(200)], Unknown("success without an ETag"), [b"POST", b"PUT", b"POST"]),
    ],
)
async def test_an_upload_has_no_effect_before_its_completion(
    store: Store, answers: list[bytes], expected: WriteAnswer, methods: list[bytes]
) -> None:
    store.answers = [CLOCK, *answers]
    async with upstream(store) as up:
        assert await in_parts(up) == expected
    assert [request.line.split(b" ")[0] for request in store.received] == [b"GET", *methods]


async def test_the_answer_to_a_delete_is_interpreted(store: Store) -> None:
    store.answers = [b"HTTP/1.1 204 No Content\r\nx-amz-version-id: 3\r\n\r\n"]
    async with upstream(store) as up:
        answer_to_delete = await up.delete("bucket", "key", expected="e0", signed_at=AT)
    assert answer_to_delete == Applied(None, ((b"x-amz-version-id", b"3"),))
    assert store.received[0].line.startswith(b"DELETE /bucket/key?X-Amz-Algorithm")


async def test_secrets_are_not_shown(store: Store) -> None:
    async with upstream(store) as up:
        assert "gateway-secret" not in repr(up) + repr(vars(up))
