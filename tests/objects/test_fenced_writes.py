"""Fenced puts, gets and deletes of single objects, against AWS's semantics."""

from uuid import UUID

import pytest
from botocore.exceptions import IncompleteReadError, ResponseStreamingError

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Presented
from gateway.fencing.intent import Announcement
from gateway.fencing.token import Token
from gateway.objects import fenced_write
from gateway.observe.events import WriteRefused
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import ask, connected, framed, head, receive, sha256

pytestmark = pytest.mark.asyncio(loop_scope="module")

# The names that minio-go sends beside the checksum of a body.
MINIO_GO = [("x-amz-checksum-algorithm", "CRC32"), ("x-amz-checksum-type", "FULL_OBJECT")]


async def test_a_zombie_is_refused_and_on_record(shared: Stage, key: str) -> None:
    old, new = connect(shared.origin, "33", "ann"), connect(shared.origin, "34", "bob")
    await call(old.put_object, Key=key, Body=b"old")
    await call(new.put_object, Key=key, Body=b"new")
    before, told = shared.double.sequence, len(shared.events)
    status, code, message = await refused(old.put_object, Key=key, Body=b"zombie")
    assert (status, code) == (412, "StaleFencingToken")
    assert "retrying cannot succeed" in message
    assert await outcome(old.delete_object, Key=key) == (412, "StaleFencingToken")
    assert not shared.applied(before)
    assert shared.body(key) == b"new"
    resource = f"s3/bucket/{key}"
    deleted, put = await shared.rejections(resource=resource)
    assert (put["resource"], put["token"], put["fence"], put["reason"]) == (resource, "33", "34", "token-stale")
    assert (put["raised_by"], put["holder"], put["caller"]) == ("bob", "ann", "writer")
    assert (put["method"], put["target"], put["client"]) == ("PUT", f"/bucket/{key}", "127.0.0.1")
    assert put["enforced"] is True
    assert deleted["method"] == "DELETE"
    refusals = [event.rejection.id for event in shared.events[told:] if isinstance(event, WriteRefused)]
    assert refusals == [UUID(put["id"]), UUID(deleted["id"])]


async def test_the_token_can_stand_in_the_metadata(shared: Stage, key: str) -> None:
    """No reader sees it there, nor what the gateway notes: a client that copies metadata presents no old token."""
    put = await call(
        connect(shared.origin).put_object, Key=key, Body=b"x", Metadata={"fencing-token": "7", "colour": "red"}
    )
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "7"
    reply = await ask(shared.origin, head(shared.origin, "GET", f"/bucket/{key}"))
    assert [name for name in reply.headers if name.startswith("x-amz-meta-")] == ["x-amz-meta-colour"]
    assert (reply.headers["fencing-token"], reply.headers["fencing-resource"]) == ("7", f"s3/bucket/{key}")
    assert set(shared.double.objects("bucket")[key].content.metadata) == {
        *("colour", "fencing-token", "fencing-resource", "fencing-write-id", "fencing-signature", "fencing-invocation")
    }


async def test_a_zombie_that_sends_the_headers_of_an_answer_back_is_refused(shared: Stage, key: str) -> None:
    """`s3cmd modify` copies an object onto itself with headers of a HeadObject, the token of its writer included."""
    await call(connect(shared.origin, "34").put_object, Key=key, Body=b"precious")
    found = (await ask(shared.origin, head(shared.origin, "HEAD", f"/bucket/{key}"))).headers
    echoed = [(name, found[name]) for name in ("fencing-token", "fencing-resource", "x-request-id", "content-type")]
    own = [("x-amz-security-token", "fencing-token=33"), ("x-amz-copy-source", f"bucket/{key}")]
    changed = [("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-colour", "red")]
    before = shared.double.sequence
    refusal = await ask(shared.origin, head(shared.origin, "PUT", f"/bucket/{key}", [*own, *changed, *echoed]))
    assert (refusal.status, refusal.code) == (400, "FencingTokenMalformed")
    assert not shared.applied(before)


async def test_the_callers_own_condition_is_honoured(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "1")
    first = await call(s3.put_object, Key=key, Body=b"x", IfNoneMatch="*")
    assert (await outcome(s3.put_object, Key=key, Body=b"y", IfNoneMatch="*"))[0] == 412
    assert (await outcome(s3.put_object, Key=key, Body=b"y", IfMatch='"other"'))[0] == 412
    await call(s3.put_object, Key=key, Body=b"y", IfMatch=first["ETag"])
    assert (await outcome(s3.put_object, Key=f"{key}-none", Body=b"y", IfMatch='"other"'))[0] == 404


async def test_a_condition_may_be_unsigned(shared: Stage, key: str) -> None:
    """object_store, the library of obstore, delta-rs and Polars, signs a completion first. So it is on S3."""
    s3 = connect(shared.origin, "1")
    opened = await call(s3.create_multipart_upload, Key=key)
    target = f"/bucket/{key}?uploadId={opened['UploadId']}"
    part = await call(s3.upload_part, Key=key, PartNumber=1, UploadId=opened["UploadId"], Body=b"new")
    listed = f"<Part><PartNumber>1</PartNumber><ETag>{part['ETag']}</ETag></Part>"
    body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    await call(s3.put_object, Key=key, Body=b"precious")
    for condition in (("if-none-match", "*"), ("if-match", "other")):
        unsigned = [condition, ("content-length", str(len(body)))]
        request = head(shared.origin, "POST", target, [("fencing-token", "1")], unsigned=unsigned)
        answer = await ask(shared.origin, request + body)
        assert (answer.status, answer.code) == (412, "PreconditionFailed")
    assert shared.body(key) == b"precious"


async def test_deleting_nothing_succeeds_and_raises_the_fence(shared: Stage, key: str) -> None:
    await call(connect(shared.origin, "5").delete_object, Key=key)
    assert (await outcome(connect(shared.origin, "4").put_object, Key=key, Body=b"x"))[0] == 412


# A stale writer is refused before it sends its body, and it is on record.


def put_head(origin: str, key: str, token: str, length: int) -> bytes:
    return head(
        origin,
        "PUT",
        f"/bucket/{key}",
        [("fencing-token", token), ("fencing-holder", "ann")],
        unsigned=[("content-length", str(length)), ("expect", "100-continue")],
    )


async def test_the_body_of_a_stale_writer_is_never_asked_for(shared: Stage, key: str) -> None:
    await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
    reader, writer = await connected(shared.origin)
    writer.write(put_head(shared.origin, key, "33", 10_000_000))
    reply = await receive(reader)
    assert reply is not None
    assert (reply.status, reply.code, reply.interim) == (412, "StaleFencingToken", ())
    assert reply.headers["connection"] == "close"
    assert await reader.read() == b"", "a body that came now would be taken for the next request"
    writer.close()
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["fence"], rejection["holder"], rejection["raised_by"]) == (
        *("33", "34"),
        *("ann", "bob"),
    )
    assert rejection["payload_size"] is None, "the body was not read"
    assert rejection["request_id"] == reply.headers["x-amz-request-id"]
    told = [str(event.rejection.id) for event in shared.events if isinstance(event, WriteRefused)]
    assert rejection["id"] in told
    assert rejection["id"].encode() in reply.body
    assert shared.body(key) == b"new"


async def test_a_writer_that_is_overtaken_while_it_sends_is_on_record_with_its_payload(shared: Stage, key: str) -> None:
    reader, writer = await connected(shared.origin)
    writer.write(put_head(shared.origin, key, "33", 5))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    writer.write(b"hello")
    reply = await receive(reader)
    writer.close()
    assert reply is not None
    assert (reply.status, reply.code) == (412, "StaleFencingToken")
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert rejection["payload_size"] == 5
    assert rejection["payload_sha256"] == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert shared.body(key) is None
    assert await shared.count("intent", key) == 0


@pytest.mark.parametrize("named", [[], MINIO_GO], ids=["an SDK", "minio-go"])
async def test_the_stored_object_is_the_plain_body(shared: Stage, key: str, named: list[tuple[str, str]]) -> None:
    """SDKs send bodies over TLS in chunks with a checksum behind them."""
    headers = [("fencing-token", "33"), ("content-encoding", "gzip,aws-chunked"), ("x-amz-decoded-content-length", "5")]
    wire = framed(b"he", b"llo", trailer="x-amz-checksum-crc32:NhCmhg==")
    request = head(
        *(shared.origin, "PUT", f"/bucket/{key}", [*headers, *named, ("x-amz-trailer", "x-amz-checksum-crc32")]),
        payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        unsigned=[("content-length", str(len(wire)))],
    )
    assert (await ask(shared.origin, request + wire)).status == 200
    stored = shared.double.objects("bucket")[key].content
    assert (stored.body, stored.headers["content-encoding"]) == (b"hello", "gzip")
    assert stored.checksum is not None, "what was proven is said to the store as well"


async def test_an_algorithm_that_is_named_without_a_checksum(shared: Stage, key: str) -> None:
    """minio-go names one with each small object over plain HTTP. Signatures of the chunks prove the body there."""
    request = head(
        *(shared.origin, "PUT", f"/bucket/{key}", [("fencing-token", "33"), ("x-amz-checksum-algorithm", "CRC32C")]),
        payload=sha256(b"hello"),
        unsigned=[("content-length", "5")],
    )
    assert (await ask(shared.origin, request + b"hello")).status == 200
    assert shared.body(key) == b"hello"


# Reads pass through as the store answers them, but for what is the gateway's own.


async def test_ranges_and_conditions(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "33")
    put = await call(s3.put_object, Key=key, Body=b"0123456789")
    part = await call(s3.get_object, Key=key, Range="bytes=2-4")
    assert part["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert part["ContentRange"] == "bytes 2-4/10"
    assert await outcome(s3.get_object, Key=key, IfNoneMatch=put["ETag"]) == (304, "304")
    assert await outcome(s3.get_object, Key=key, IfMatch='"other"') == (412, "PreconditionFailed")
    assert await outcome(s3.get_object, Key=f"{key}-none") == (404, "NoSuchKey")
    assert await outcome(s3.list_objects_v2, Bucket="nowhere") == (404, "NoSuchBucket")


@pytest.mark.parametrize(
    ("content_type", "policy"),
    [
        ("text/html", "sandbox"),
        ("image/svg+xml", "sandbox"),
        ("application/pdf", None),
        ("application/pdf;,text/html", "sandbox"),
    ],
)
async def test_an_object_in_a_browser_is_apart_from_the_page(
    shared: Stage, key: str, content_type: str, policy: str | None
) -> None:
    """It would lie on the origin where people are logged in."""
    await call(connect(shared.origin, "33").put_object, Key=key, Body=b"<script>", ContentType=content_type)
    reply = await ask(shared.origin, head(shared.origin, "GET", f"/bucket/{key}"))
    assert reply.headers.get("content-security-policy") == policy


@pytest.mark.parametrize("path", ["/bucket/none", "/bucket/none?tagging", "/nowhere"])
async def test_an_error_has_one_request_id(shared: Stage, path: str) -> None:
    """A caller asks about a request by the gateway's id, whatever id the store gives it."""
    reply = await ask(shared.origin, head(shared.origin, "GET", path))
    assert reply.status == 404
    assert f"<RequestId>{reply.headers['x-amz-request-id']}</RequestId>".encode() in reply.body


async def test_a_body_that_breaks_off_is_never_taken_for_the_whole(shared: Stage, key: str) -> None:
    shared.double.put("bucket", key, bytes(100_000))
    shared.double.cut_body(5000, operation="GetObject", key=key)
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        await body_of(connect(shared.origin), key)
    assert len(await body_of(connect(shared.origin), key)) == 100_000


async def test_an_error_about_the_gateways_signature_is_not_shown_to_the_client(
    postgres_server: EmbeddedPostgres,
) -> None:
    """The client has signed well; to be told that its signature is wrong would send it looking in the wrong place."""
    async with staged(postgres_server, s3={"access_key_id": "AKIASTRANGER"}) as stage:
        s3 = connect(stage.origin, "33")
        for operation, arguments in (
            (s3.get_object, {"Key": "k"}),
            (s3.list_objects_v2, {}),
            (s3.put_object, {"Key": "k", "Body": b"x"}),
            (s3.delete_object, {"Key": "k"}),
        ):
            status, code, message = await refused(operation, **arguments)
            assert (status, code) == (503, "ServiceUnavailable"), message
            assert "gateway doctor" in message


async def test_a_redirect_is_not_followed_and_not_passed_on(shared: Stage, key: str) -> None:
    """It is the gateway's endpoint that is wrong; its address is none of the client's business."""
    shared.double.fail(307, code="TemporaryRedirect", operation="GetObject", key=key)
    assert await outcome(connect(shared.origin).get_object, Key=key) == (502, "BadGateway")


async def test_a_write_that_hangs_keeps_its_turn_and_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one goes on after a while, and those after it at once. A newer holder never waits."""
    monkeypatch.setattr(fenced_write, "TURN", 0.05)
    turns = fenced_write._Turns()

    def announced(token: int) -> Announcement:
        presented = Presented(Token(0, token), "writer")
        return Announcement("job/1", "bucket", "key", UUID(int=1), presented, "writer")

    async with turns.taken(announced(33)):
        (hangs,) = turns._lines.values()
        async with turns.taken(announced(34)):
            pass
        async with turns.taken(announced(33)), turns.taken(announced(33)):  # the first of them after a while
            (line,) = turns._lines.values()
            assert line is not hangs
            assert line.used == 1, "the second one has a turn"
    assert turns._lines == {}
