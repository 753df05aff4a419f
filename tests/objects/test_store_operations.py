"""The operations of the store as they stand on the wire, and answers that are read for no more than they say."""

from base64 import b64encode
from datetime import datetime, timedelta
from hashlib import md5
from urllib.parse import parse_qsl

import pytest

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, verify
from gateway.db.database import Database
from gateway.errors import StoreError, Unavailable
from gateway.fencing.intent import MutationKind
from gateway.objects.protocol.bump import bump
from gateway.objects.protocol.runner import Runner
from gateway.objects.s3.addressing import PartSource
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
    of_write,
    unquoted,
)
from gateway.objects.s3.request import own_metadata
from gateway.objects.s3.xml import Part
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import ignore
from tests.objects.wire import AT, CLOCK, ERROR, OK, RESET, Received, Store, answer, put, upstream


@pytest.mark.parametrize(
    "said",
    [
        b'HTTP/1.1 200 OK\r\nETag: "e0"\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n',
        b'HTTP/1.0 200 OK\r\nETag: "e0"\r\n\r\nhel',
        b'HTTP/1.1 200 OK\r\nETag: "e0"\r\nContent-Length: 9999\r\n\r\nhello',
    ],
    ids=["in chunks", "until the connection closes", "broken off"],
)
async def test_an_object_of_unknown_length_is_not_rewritten(store: Store, said: bytes) -> None:
    """Otherwise the rest of a truncated body would replace the object."""
    store.answers = [said, OK]
    async with upstream(store) as up:
        assert isinstance(await bump(up, ("bucket", "key"), "e0", frozenset(), sign), NotSent)
    assert [received.line.split()[0] for received in store.received] == [b"GET"]


async def sign() -> datetime:
    return AT


async def test_a_put_on_the_wire(store: Store) -> None:
    headers = [("content-type", "text/plain"), *own_metadata("s3/b/k", "42", "w1")]
    async with upstream(store) as up:
        applied = await up.put(("bucket", "key"), b"hello", headers, expected="e0", signed_at=AT)
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


@pytest.mark.parametrize(("quoted", "etag"), [(True, b'"e0"'), (False, b"e0")])
async def test_every_write_is_conditional(store: Store, quoted: bool, etag: bytes) -> None:  # noqa: FBT001
    async with upstream(store) as up:
        if not quoted:
            up.drop_quotes("bucket")
        for expected in (None, "e0"):
            await up.put(("bucket", "key"), b"hello", expected=expected, signed_at=AT)
            await up.complete_multipart(("bucket", "key"), "u1", [Part(1, "p1")], expected=expected, signed_at=AT)
        await up.delete(("bucket", "key"), expected="e0", signed_at=AT)
    absent, same = (b"if-none-match", b"*"), (b"if-match", etag)
    for header, request in zip([absent, absent, same, same, same], store.received, strict=True):
        assert header in request.headers
        assert b"&X-Amz-Expires=15&" in request.line


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(200), Unknown("success without an ETag")),
        (b"", Unknown("The store did not answer: it closed the connection.")),
        (RESET, Unknown("The store did not answer: it closed the connection.")),
        (b"not HTTP at all\r\n\r\n", Unknown("The store did not answer: it does not speak HTTP.")),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            Unknown("The store did not answer: it does not speak HTTP."),
        ),
        (
            b'HTTP/1.1 200 OK\r\nETag: "e1"\r\nContent-Length: 9999\r\n\r\nbroken',
            Unknown("The store's answer broke off: it closed the connection."),
        ),
    ],
)
async def test_the_answer_to_a_put_is_interpreted(store: Store, said: bytes, expected: WriteAnswer) -> None:
    store.answers = [said]
    async with upstream(store) as up:
        assert await put(up) == expected
    assert len(store.received) == 1


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
            await up.head(("bucket", "key"))
            longer = [kind for kind in MutationKind if runner._dead_after(kind) != usual]
            assert longer == [MutationKind.CONDITIONAL]
        assert runner._dead_after(MutationKind.CONDITIONAL) == timedelta(days=1, seconds=15)


async def test_the_answer_to_a_head_is_interpreted(store: Store) -> None:
    date = "Fri, 02 Jan 2026 03:04:05 GMT"
    metadata = dict(own_metadata("s3/b/k", "1.2", "w1", tombstone=True))
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
        found = [await up.head(("bucket", "key")) for _ in range(len(store.answers))]
    assert found == [
        Found("e1", size=7, date=AT),
        Found("e2", "w1", True, "s3/b/k", "1.2"),  # noqa: FBT003
        Missing(AT),
        Missing(),
        Unknown("HEAD was answered with 403"),
        Unknown("HEAD was answered with 200"),
        Unknown("HEAD was answered with 500"),
    ]


INITIATED = b'<InitiateMultipartUploadResult xmlns="n"><UploadId>u/1 +</UploadId></InitiateMultipartUploadResult>'


COMPLETED = b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"


async def in_parts(up: Upstream) -> WriteAnswer:
    headers = [("x-amz-meta-a", "1"), ("x-amz-checksum-crc32", "NhCmhg==")]
    return await up.put_in_parts(("bucket", "key"), b"hello", headers, expected="e0", signed_at=AT)


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


OPENED, LOST = answer(200, INITIATED), "The store did not answer: it closed the connection."


@pytest.mark.parametrize(
    ("answers", "expected", "methods"),
    [
        ([answer(403, ERROR % b"AccessDenied")], Rejected(403, "AccessDenied", "m"), "POST"),
        ([answer(500)], NotSent("500"), "POST"),
        ([answer(200)], NotSent("an upload was opened without an id"), "POST"),
        ([OPENED, answer(500), answer(204)], NotSent("500"), "POST PUT DELETE"),
        ([OPENED, OK, answer(412), answer(204)], NotApplied(412, ""), "POST PUT POST DELETE"),
        ([OPENED, OK, answer(200, ERROR % b"E")], Unknown("200 with the error E"), "POST PUT POST"),
        ([OPENED, OK, b""], Unknown(LOST), "POST PUT POST"),
        ([OPENED, OK, answer(200)], Unknown("success without an ETag"), "POST PUT POST"),
    ],
)
async def test_an_upload_has_no_effect_before_its_completion(
    store: Store, answers: list[bytes], expected: WriteAnswer, methods: str
) -> None:
    store.answers = [CLOCK, *answers]
    async with upstream(store) as up:
        assert await in_parts(up) == expected
    assert [request.line.split(b" ")[0].decode() for request in store.received] == ["GET", *methods.split()]


PLACE = ("bucket", "a%20b")


def query_of(request: Received) -> dict[str, str]:
    target = request.line.split(b" ")[1].decode()
    return dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(200, ERROR % b"InternalError"), Unknown("200 with the error InternalError")),
        (answer(200), Unknown("a part was copied without an ETag")),
        (
            answer(412, ERROR % b"PreconditionFailed"),
            Rejected(412, "PreconditionFailed", "The store answered with 412."),
        ),
        (answer(404, ERROR % b"NoSuchUpload"), Rejected(404, "NoSuchUpload", "The store answered with 404.")),
    ],
)
async def test_a_part_that_is_not_copied(store: Store, said: bytes, expected: Rejected | Unknown) -> None:
    store.answers = [said]
    async with upstream(store) as up:
        assert await up.upload_part_copy(PLACE, "u1", 1, PartSource("o", "k")) == expected


@pytest.mark.parametrize("conditional", [True, False])
async def test_a_completion_names_parts_as_the_client_does(store: Store, conditional: bool) -> None:  # noqa: FBT001
    store.answers = [answer(200, COMPLETED)]
    parts = [Part(2, "p<2>"), Part(7, "p7", (("ChecksumCRC32", "A&B="),))]
    async with upstream(store) as up:
        done = await up.complete_multipart(
            PLACE, "u1", parts, [("x-amz-a", "1")], expected="e0", conditional=conditional, signed_at=AT
        )
    assert isinstance(done, Applied)
    (request,) = store.received
    assert b"<PartNumber>2</PartNumber><ETag>&quot;p&lt;2&gt;&quot;</ETag></Part>" in request.body
    assert (
        b"<PartNumber>7</PartNumber><ETag>&quot;p7&quot;</ETag><ChecksumCRC32>A&amp;B=</ChecksumCRC32>" in request.body
    )
    assert (dict(request.headers).get(b"if-match") == b'"e0"') is conditional
    assert request.header(b"x-amz-a") == b"1"


TAG = b"<Tag><Key>%s</Key><Value>%s</Value></Tag>"


TAGS = b"<Tagging><TagSet>%s%s</TagSet></Tagging>" % (TAG % (b"a", b"1 &amp; 2"), TAG % (b"b", b""))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(200, TAGS), [("a", "1 & 2"), ("b", "")]),
        (answer(200, b"<Tagging><TagSet/></Tagging>"), []),
        (answer(501, ERROR % b"NotImplemented"), None),
        (answer(404, ERROR % b"NoSuchKey"), None),
        (answer(200, b"hello"), None),
    ],
)
async def test_the_tags_of_an_object(store: Store, said: bytes, expected: list[tuple[str, str]] | None) -> None:
    store.answers = [said]
    async with upstream(store) as up:
        assert await up.tagging(PLACE, "v1") == expected
    assert query_of(store.received[0]) == {"tagging": "", "versionId": "v1"}


async def test_tags_of_a_failing_store_are_unavailable(store: Store) -> None:
    store.answers = [answer(503), OK]
    async with upstream(store) as up:
        with pytest.raises(Unavailable):
            await up.tagging(PLACE)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"", Applied("e")),
        (200, b"<CompleteMultipartUploadResult/>", Applied("e")),
        (200, b"  " + ERROR % b"InternalError", Unknown("200 with the error InternalError")),
        (412, ERROR % b"PreconditionFailed", NotApplied(412, "PreconditionFailed")),
        (412, b"", NotApplied(412, "")),
        (404, ERROR % b"NoSuchKey", NotApplied(404, "NoSuchKey")),
        (404, ERROR % b"NoSuchBucket", Rejected(404, "NoSuchBucket", "m")),
        (403, ERROR % b"AccessDenied", Rejected(403, "AccessDenied", "m")),
        (400, b"", Rejected(400, "InvalidRequest", "The store answered with 400.")),
        (501, ERROR % b"NotImplemented", Rejected(501, "NotImplemented", "m")),
        (501, b"", Unknown("501")),
        (500, ERROR % b"InternalError", Unknown("500 InternalError")),
        (408, b"", Unknown("408")),
        (202, b"", Unknown("202")),
    ],
)
def test_only_what_is_certain_is_read_as_no_effect(status: int, body: bytes, expected: WriteAnswer) -> None:
    assert of_write(status, '"e"', body) == expected


@pytest.mark.parametrize(
    ("given", "expected"), [('"e"', "e"), ("e-2", "e-2"), (None, None), ("", None), ('""', None), ('W/"e"', None)]
)
def test_etags_stand_without_quotes(given: str | None, expected: str | None) -> None:
    assert unquoted(given) == expected
