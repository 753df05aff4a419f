"""Every switch does what it says, at the moment and to the requests it says. Signatures are checked as by AWS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.doubles.conftest import KEYS, Call, begin_upload, client_for, quoted, send, send_and_vanish, signed, soon
from tests.doubles.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Double, serve
from tests.processes import free_port
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

WRITE_ID = "x-amz-meta-fencing-write-id"


@pytest.mark.parametrize("size", [4, 3_000_000])
async def test_a_held_request_outlives_its_client(endpoint: str, double: S3Double, size: int) -> None:
    """The late packet: its sender is dead, and it takes effect all the same when it comes."""
    late = double.hold(operation="PutObject", key="key")
    await send_and_vanish(endpoint, "PUT", "/bucket/key", bytes(size), {WRITE_ID: "w"})
    await soon(late.arrived)
    assert double.mutations == []
    late.release()
    await soon(late.finished)
    assert late.statuses == [200]
    assert [mutation.write_id for mutation in double.mutations] == ["w"]


async def test_a_held_request_is_judged_when_it_is_released(endpoint: str, double: S3Double) -> None:
    double.put("bucket", "key", b"old")
    late = double.hold(write_id="w")
    headers = {WRITE_ID: "w", "If-Match": quoted(b"old")}
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"late", headers)
    await soon(late.arrived)
    double.put("bucket", "key", b"new")
    late.release()
    await soon(late.finished)
    assert late.statuses == [412]
    assert double.applied(write_id="w") == []


@pytest.mark.parametrize(("at", "expected"), [("arrival", None), ("before", 200)])
async def test_a_signature_is_checked_on_arrival_alone(
    endpoint: str, double: S3Double, at: str, expected: int | None
) -> None:
    """A packet late on the network expires; one that the store has taken in does not."""
    late = double.hold(at)
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"late", {})
    await soon(late.arrived)
    double.behave(clock_offset=1000)
    late.release()
    await soon(late.finished)
    assert late.statuses == [expected]
    assert len(double.mutations) == (1 if expected else 0)


async def test_a_copy_is_judged_when_it_arrives(status: Call, double: S3Double) -> None:
    """Its condition holds again by then, so it takes effect a second time, as long as its signature is alive."""
    double.put("bucket", "key", b"old")
    fresh, stale, expired = (double.repeat(operation="PutObject", key="key") for _ in range(3))
    for body in (b"first", b"second", b"third"):
        held = double.objects("bucket")["key"].content.body
        assert await status("put_object", Key="key", Body=body, IfMatch=quoted(held)) == (200, "")
    for copy, standing, clock in ((fresh, b"old", 0), (stale, b"other", 0), (expired, b"second", 1000)):
        double.put("bucket", "key", standing)
        double.behave(clock_offset=clock)
        copy.release()
        await soon(copy.finished)
    assert [copy.statuses for copy in (fresh, stale, expired)] == [[200], [412], [None]]


async def test_a_request_held_after_it_was_applied(status: Call, double: S3Double) -> None:
    held = double.hold("after", key="key")
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(status("put_object", Key="key", Body=b"body"))
        await soon(held.arrived)
        assert len(double.mutations) == 1
        assert not answer.done()
        held.release()
    assert answer.result() == (200, "")


@pytest.mark.parametrize(("at", "applied"), [("arrival", 0), ("before", 0), ("after", 1)])
async def test_a_cut_connection(call: Call, double: S3Double, at: str, applied: int) -> None:
    cut = double.cut(at)
    with pytest.raises(ConnectionClosedError):
        await call("put_object", Key="key", Body=b"body")
    await soon(cut.finished)
    assert len(double.mutations) == applied


@pytest.mark.parametrize("code", [500, 503])
@pytest.mark.parametrize(("at", "applied"), [("before", 0), ("after", 1)])
async def test_an_error_answer(status: Call, double: S3Double, code: int, at: str, applied: int) -> None:
    double.fail(code, at)
    assert (await status("put_object", Key="key", Body=b"body"))[0] == code
    assert len(double.mutations) == applied
    assert await status("put_object", Key="key", Body=b"body") == (200, "")


@pytest.mark.parametrize(("at", "applied"), [("before", 0), ("after", 1)])
async def test_an_error_in_an_answer_of_200(call: Call, endpoint: str, double: S3Double, at: str, applied: int) -> None:
    upload = await begin_upload(call, b"body")
    double.error_in_200(at, operation="CompleteMultipartUpload")
    document = f"<R><Part><PartNumber>1</PartNumber><ETag>{quoted(b'body')}</ETag></Part></R>".encode()
    path = f"/bucket/key?uploadId={upload['UploadId']}"
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        answer = await http.post(endpoint + path, content=document, headers=signed(endpoint, "POST", path, document))
    assert answer.status_code == 200
    assert "<Error><Code>InternalError</Code>" in answer.text
    assert len(double.mutations) == applied


async def test_a_cut_body(call: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"0123456789")
    double.cut_body(4, operation="GetObject")
    body = (await call("get_object", Key="key"))["Body"]
    with pytest.raises(Exception, match="Connection broken"):
        await asyncio.to_thread(body.read)


async def test_rules_strike_what_they_match_as_often_as_they_say(call: Call, status: Call, double: S3Double) -> None:
    rule = double.fail(500, operation="PutObject", key="key", nth=2, times=2)
    other = double.fail(503, method="DELETE", times=None)
    statuses = [(await status("put_object", Key=key, Body=b""))[0] for key in ["key", "other", "key", "key", "key"]]
    assert statuses == [200, 200, 500, 500, 200]
    assert rule.struck == 2
    assert [(await status("delete_object", Key="key"))[0] for _ in range(2)] == [503, 503]
    double.faults.remove(other)
    assert await status("delete_object", Key="key") == (204, "")
    upload = await begin_upload(call, b"body")
    double.fail(500, write_id="w")
    assert (await status("complete_multipart_upload", **upload))[0] == 500, "known by the metadata of the upload"


@pytest.mark.parametrize(
    ("ignored", "header", "expected"),
    [
        ("*", {"IfNoneMatch": "*"}, 200),
        ("PutObject", {"IfMatch": quoted(b"other")}, 200),
        ("If-Match", {"IfMatch": quoted(b"other")}, 200),
        ("If-Match", {"IfNoneMatch": "*"}, 412),
        ("PutObject:If-None-Match", {"IfNoneMatch": "*"}, 200),
        ("CompleteMultipartUpload", {"IfNoneMatch": "*"}, 412),
    ],
)
async def test_a_store_that_ignores_or_refuses_conditions(
    status: Call, double: S3Double, ignored: str, header: dict[str, str], expected: int
) -> None:
    double.put("bucket", "key", b"old")
    double.behave(ignored_conditions=frozenset({ignored}))
    assert (await status("put_object", Key="key", Body=b"new", **header))[0] == expected
    double.behave(ignored_conditions=frozenset(), refused_conditions=frozenset({ignored}))
    assert (await status("put_object", Key="key", Body=b"new", **header))[0] == (501 if expected == 200 else expected)
    assert (await status("put_object", Key="key", Body=b"new"))[0] == 200


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
async def test_one_of_many_conditional_writes_wins_unless_the_store_is_not_atomic(
    endpoint: str, double: S3Double, condition: str
) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:

        async def write(key: str, body: bytes) -> int:
            path = f"/bucket/{key}"
            value = "*" if condition == "If-None-Match" else quoted(b"old")
            headers = signed(endpoint, "PUT", path, body, {condition: value})
            return (await http.put(endpoint + path, content=body, headers=headers)).status_code

        async def winners(key: str) -> int:
            if condition == "If-Match":
                double.put("bucket", key, b"old")
            statuses = await asyncio.gather(*(write(key, str(count).encode()) for count in range(32)))
            assert set(statuses) <= {200, 412}
            return statuses.count(200)

        assert await winners("atomic") == 1
        double.behave(gaps={"PutObject": 0.2})
        assert await winners("not-atomic") > 1


async def test_a_body_that_ends_early_is_never_applied(endpoint: str, double: S3Double) -> None:
    rule = double.hold()
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"body", {}, shorter_by=1)
    await soon(rule.finished)
    assert rule.statuses == [None]
    assert double.mutations == []


async def test_a_store_that_goes_down_and_comes_back(session: boto3.Session, double: S3Double) -> None:
    """The store loses the requests that it held, but keeps the stored objects."""
    double.put("bucket", "key", b"body")
    port = free_port()
    async with serve(double, port) as endpoint:
        held = double.hold(method="PUT")
        await send_and_vanish(endpoint, "PUT", "/bucket/key", b"lost", {})
        await soon(held.arrived)
    with pytest.raises(httpx.ConnectError):
        httpx.get(endpoint, trust_env=False, timeout=PATIENCE)
    async with serve(double, port) as again:
        assert again == endpoint
        client = client_for(session, endpoint)
        got = await asyncio.to_thread(client.get_object, Bucket="bucket", Key="key")
        assert got["Body"].read() == b"body"
    assert held.statuses == [None]


@pytest.mark.parametrize(
    ("method", "sent", "extra", "expected"),
    [
        ("PUT", None, {"transfer-encoding": "chunked"}, (411, "MissingContentLength")),
        ("PUT", b"body", {"x-amz-copy-source": "bucket/other"}, (403, "AccessDenied")),
        ("PUT", b"body", {"x-amz-content-sha256": "0" * 64}, (403, "SignatureDoesNotMatch")),
        ("PUT", b"evil", {}, (400, "XAmzContentSHA256Mismatch")),
        ("POST", b"body", {}, (501, "NotImplemented")),
    ],
)
async def test_a_request_that_was_changed_after_it_was_signed(
    endpoint: str, double: S3Double, method: str, sent: bytes | None, extra: dict[str, str], expected: tuple[int, str]
) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b""

    headers = signed(endpoint, method, "/bucket/key", b"body") | extra
    answer = await send(method, f"{endpoint}/bucket/key", content=nothing() if sent is None else sent, headers=headers)
    assert (answer.status_code, f"<Code>{expected[1]}</Code>" in answer.text) == (expected[0], True)
    assert double.mutations == []


@pytest.mark.parametrize(
    ("access_key", "secret", "expected"),
    [(ACCESS_KEY, "wrong", "SignatureDoesNotMatch"), ("AKIAOTHER", SECRET_KEY, "InvalidAccessKeyId")],
)
async def test_a_wrong_key_pair_is_refused(endpoint: str, access_key: str, secret: str, expected: str) -> None:
    client = client_for(boto3.Session(access_key, secret, region_name=REGION), endpoint)
    with pytest.raises(ClientError, match=expected):
        await asyncio.to_thread(client.put_object, Bucket="bucket", Key="key", Body=b"")


@pytest.mark.parametrize(
    ("offset", "in_the_header", "in_the_query"),
    [(110, 200, 200), (125, 200, 403), (890, 200, 403), (910, 403, 403), (-890, 200, 200), (-910, 403, 403)],
)
async def test_a_signature_expires_by_the_stores_clock(
    client: S3Client, status: Call, double: S3Double, offset: float, in_the_header: int, in_the_query: int
) -> None:
    """One in the header lives for fifteen minutes, one in the query as long as it says: two minutes here."""
    url = presigned(client, "put_object")
    double.behave(clock_offset=offset)
    assert (await status("put_object", Key="key", Body=b""))[0] == in_the_header
    answer = await send("PUT", url, content=b"")
    assert answer.status_code == in_the_query
    assert ("<Message>Request has expired</Message>" in answer.text) == (offset > 120)
    assert len(double.mutations) == [in_the_header, in_the_query].count(200)


def presigned(client: S3Client, operation: Any, expires: int = 120, **parameters: Any) -> str:
    return client.generate_presigned_url(operation, {"Bucket": "bucket", "Key": "key", **parameters}, expires)


async def test_query_signed_requests_are_served(call: Call, client: S3Client, double: S3Double) -> None:
    for key in (key for key in KEYS if ".." not in key and "//" not in key):
        answer = await send("PUT", presigned(client, "put_object", Key=key), content=b"body")
        assert answer.status_code == 200
        assert double.objects("bucket")[key].content.body == b"body"
        assert double.mutations[-1].signed_at is not None
        assert (await send("GET", presigned(client, "get_object", Key=key))).content == b"body"
    upload = (await call("create_multipart_upload", Key="key"))["UploadId"]
    sent = await send("PUT", presigned(client, "upload_part", PartNumber=1, UploadId=upload), content=b"part")
    assert (sent.status_code, double.requests[-1].operation) == (200, "UploadPart")


async def test_signed_headers_are_part_of_the_signature(client: S3Client, double: S3Double) -> None:
    url = presigned(client, "put_object", Metadata={"color": "red"})
    for headers, expected in [
        ({"x-amz-meta-color": "blue"}, "SignatureDoesNotMatch"),
        ({}, "SignatureDoesNotMatch"),
        ({"x-amz-meta-color": "red", "x-amz-meta-more": "1"}, "AccessDenied"),
    ]:
        answer = await send("PUT", url, content=b"", headers=headers)
        assert (answer.status_code, expected in answer.text) == (403, True)
    assert double.mutations == []
    assert (await send("PUT", url, content=b"", headers={"x-amz-meta-color": "red"})).status_code == 200


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("/bucket/key", "/bucket/other", (403, "SignatureDoesNotMatch")),
        ("X-Amz-Expires=120", "X-Amz-Expires=121", (403, "SignatureDoesNotMatch")),
        ("X-Amz-Expires=120", "X-Amz-Expires=604801", (400, "AuthorizationQueryParametersError")),
        ("X-Amz-Expires=120", "X-Amz-Expires=0", (400, "AuthorizationQueryParametersError")),
        ("&X-Amz-Expires=120", "", (400, "AuthorizationQueryParametersError")),
        ("AKIADOUBLE", "AKIAOTHER", (403, "InvalidAccessKeyId")),
        ("us-east-1", "eu-west-1", (400, "AuthorizationQueryParametersError")),
        ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA1", (400, "AuthorizationQueryParametersError")),
        ("X-Amz-Signature=", "prefix=a&X-Amz-Signature=", (403, "SignatureDoesNotMatch")),
    ],
)
async def test_a_changed_url_is_refused(
    client: S3Client, double: S3Double, old: str, new: str, expected: tuple[int, str]
) -> None:
    url = presigned(client, "put_object")
    assert old in url
    answer = await send("PUT", url.replace(old, new), content=b"")
    assert (answer.status_code, expected[1] in answer.text) == (expected[0], True)
    assert double.mutations == []


async def test_two_signatures_are_one_too_many(client: S3Client) -> None:
    answer = await send("GET", presigned(client, "get_object"), headers={"Authorization": "AWS4-HMAC-SHA256 x"})
    assert (answer.status_code, "InvalidArgument" in answer.text) == (400, True)
