"""The requests of uploads and of writes without a condition, as bytes, and the meaning of their answers."""

from collections.abc import AsyncIterator
from urllib.parse import parse_qsl

import pytest

from gateway.errors import Unavailable
from gateway.objects.s3.addressing import PartSource
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Rejected, Unknown, Uploaded
from gateway.objects.s3.documents import Part
from gateway.objects.store.client import StoreReply
from gateway.objects.store.client import query_of as encoded
from tests.objects.wire import AT, CLOCK, ERROR, OK, Received, Store, answer, listening, upstream

PLACE = ("bucket", "a%20b")
COPIED = b"<CopyPartResult><ETag>&quot;p1&quot;</ETag><ChecksumCRC32>AAAAAA==</ChecksumCRC32></CopyPartResult>"
COMPLETED = b"<CompleteMultipartUploadResult><ETag>&quot;e-1&quot;</ETag></CompleteMultipartUploadResult>"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with listening() as store:
        yield store


def query_of(request: Received) -> dict[str, str]:
    target = request.line.split(b" ")[1].decode()
    return dict(parse_qsl(target.partition("?")[2], keep_blank_values=True))


async def test_a_part_that_is_copied_names_its_source_in_our_own_spelling(store: Store) -> None:
    store.answers = [CLOCK, answer(200, COPIED)]
    source = PartSource("other", "ä b/c?d+e%", "e0", "v&1", (5, 9))
    async with upstream(store) as up:
        part = await up.upload_part_copy(*PLACE, "u1", 2, source)
    assert isinstance(part, Uploaded)
    assert (part.etag, part.document) == ("p1", COPIED)
    _, request = store.received
    assert (request.line.split(b"?")[0], request.body) == (b"PUT /bucket/a%20b", b"")
    assert query_of(request) | {"partNumber": "2", "uploadId": "u1"} == query_of(request)
    copying = {name: value for name, value in request.headers if name.startswith(b"x-amz-copy")}
    assert copying == {
        b"x-amz-copy-source": b"other/%C3%A4%20b/c%3Fd%2Be%25?versionId=v%261",
        b"x-amz-copy-source-if-match": b'"e0"',
        b"x-amz-copy-source-range": b"bytes=5-9",
    }


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
        assert await up.upload_part_copy(*PLACE, "u1", 1, PartSource("o", "k")) == expected


@pytest.mark.parametrize("conditional", [True, False])
async def test_a_completion_names_parts_as_the_client_does(store: Store, conditional: bool) -> None:  # noqa: FBT001
    store.answers = [answer(200, COMPLETED)]
    parts = [Part(2, "p<2>"), Part(7, "p7", (("ChecksumCRC32", "A&B="),))]
    async with upstream(store) as up:
        done = await up.complete_multipart(
            *PLACE, "u1", parts, [("x-amz-a", "1")], expected="e0", conditional=conditional, signed_at=AT
        )
    assert isinstance(done, Applied)
    (request,) = store.received
    assert b"<PartNumber>2</PartNumber><ETag>&quot;p&lt;2&gt;&quot;</ETag></Part>" in request.body
    assert (
        b"<PartNumber>7</PartNumber><ETag>&quot;p7&quot;</ETag><ChecksumCRC32>A&amp;B=</ChecksumCRC32>" in request.body
    )
    assert (dict(request.headers).get(b"if-match") == b'"e0"') is conditional
    assert request.header(b"x-amz-a") == b"1"


async def test_an_upload_that_is_not_there_is_told_from_a_condition_that_fails(store: Store) -> None:
    store.answers = [answer(404, ERROR % b"NoSuchUpload"), answer(412, ERROR % b"PreconditionFailed")]
    async with upstream(store) as up:
        answers = [
            await up.complete_multipart(*PLACE, "u1", [Part(1, "p1")], expected="e0", signed_at=AT)
            for _ in store.answers[:]
        ]
    assert answers == [NotApplied(404, "NoSuchUpload"), NotApplied(412, "PreconditionFailed")]


async def test_an_amendment_is_signed_in_the_query_and_carries_no_condition(store: Store) -> None:
    store.answers = [answer(200, b"<a/>", X_Amz_Version_Id="v1")]
    headers = [("content-md5", "x")]
    async with upstream(store) as up:
        done, reply = await up.amend("PUT", *PLACE, "tagging=", headers, b"<Tagging/>", signed_at=AT)
    assert isinstance(done, Applied)
    assert isinstance(reply, StoreReply)
    assert (reply.status, reply.body) == (200, b"<a/>")
    assert (b"X-Amz-Version-Id", b"v1") in reply.headers
    (request,) = store.received
    query, named = query_of(request), dict(request.headers)
    assert (query["tagging"], query["X-Amz-Expires"], query["X-Amz-Date"]) == ("", "15", "20260102T030405Z")
    assert query["X-Amz-SignedHeaders"] == "content-md5;host"
    assert not named.keys() & {b"authorization", b"if-match", b"if-none-match"}
    assert request.body == b"<Tagging/>"


@pytest.mark.parametrize(
    ("said", "expected", "status"),
    [
        (answer(202), Applied(None, ((b"Content-Length", b"0"),)), 202),
        (answer(403, ERROR % b"AccessDenied"), Rejected(403, "AccessDenied", "m"), 403),
        (answer(500), Unknown("500"), 500),
        (b"", Unknown("The store did not answer: ServerDisconnectedError."), None),
    ],
)
async def test_the_answer_to_an_amendment_is_interpreted(
    store: Store, said: bytes, expected: object, status: int | None
) -> None:
    store.answers = [said]
    async with upstream(store) as up:
        done, reply = await up.amend("POST", *PLACE, "restore=", (), b"<r/>", signed_at=AT)
    assert done == expected
    assert (reply.status if reply else None) == status
    assert len(store.received) == 1


async def test_an_amendment_to_an_unreachable_store_is_not_sent() -> None:
    async with upstream(Store(port=1)) as up:
        done, reply = await up.amend("PUT", *PLACE, "acl=", (), b"", signed_at=AT)
    assert isinstance(done, NotSent)
    assert reply is None


@pytest.mark.parametrize("version", [None, "v&1"])
async def test_a_version_is_deleted_without_a_condition(store: Store, version: str | None) -> None:
    store.answers = [b"HTTP/1.1 204 No Content\r\nx-amz-version-id: v1\r\n\r\n"]
    async with upstream(store) as up:
        done, _ = await up.amend("DELETE", *PLACE, encoded({"versionId": version}), (), b"", signed_at=AT)
    assert isinstance(done, Applied)
    (request,) = store.received
    assert request.line.startswith(b"DELETE /bucket/a%20b?")
    assert query_of(request).get("versionId") == version
    assert "X-Amz-Signature" in query_of(request)


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
        assert await up.tagging(*PLACE, "v1") == expected
    assert query_of(store.received[0]) == {"tagging": "", "versionId": "v1"}


async def test_tags_of_a_failing_store_are_unavailable(store: Store) -> None:
    store.answers = [answer(503), OK]
    async with upstream(store) as up:
        with pytest.raises(Unavailable):
            await up.tagging(*PLACE)
