"""Real boto3 finds an S3 in the double: operations, conditions, multipart uploads, signatures."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.doubles.conftest import Call, client_for
from tests.doubles.s3 import S3Double

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

KEYS = ["a b", "a+b", "a/../b", "a//b", "%2F", "ü/ß", "a?b", "a&b=c", "~tilde", "dots.", "\x01"]


def quoted(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


async def test_an_object_comes_back_as_it_was_put(call: Call) -> None:
    put = await call("put_object", Key="key", Body=b"body", Metadata={"color": "red"}, ContentType="text/plain")
    got = await call("get_object", Key="key", ChecksumMode="ENABLED")
    assert put["ETag"] == got["ETag"] == quoted(b"body")
    assert got["Body"].read() == b"body"
    assert got["Metadata"] == {"color": "red"}
    assert got["ContentType"] == "text/plain"
    assert got["ChecksumCRC32"] == put["ChecksumCRC32"]


@pytest.mark.parametrize("key", KEYS)
async def test_a_key_is_taken_literally(call: Call, double: S3Double, key: str) -> None:
    """Neither the signature nor the store normalises a key."""
    await call("put_object", Key=key, Body=b"body")
    assert list(double.objects("bucket")) == [key]
    listed = await call("list_objects_v2")
    assert [entry["Key"] for entry in listed["Contents"]] == [key]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Range": "bytes=1-2"}, b"bc"),
        ({"Range": "bytes=3-"}, b"de"),
        ({"Range": "bytes=-2"}, b"de"),
        ({"Range": "bytes=0-99"}, b"abcde"),
        ({"Range": "lines=1-2"}, b"abcde"),
        ({"Range": "bytes=9-"}, (416, "InvalidRange")),
        ({"IfMatch": quoted(b"abcde")}, b"abcde"),
        ({"IfMatch": "*"}, b"abcde"),
        ({"IfMatch": quoted(b"other")}, (412, "PreconditionFailed")),
        ({"IfNoneMatch": quoted(b"other")}, b"abcde"),
        ({"IfNoneMatch": quoted(b"abcde")}, (304, "304")),
    ],
)
async def test_reads_honour_ranges_and_conditions(
    call: Call, double: S3Double, headers: dict[str, str], expected: bytes | tuple[int, str]
) -> None:
    double.put("bucket", "key", b"abcde")
    if isinstance(expected, bytes):
        assert (await call("get_object", Key="key", **headers))["Body"].read() == expected
        return
    with pytest.raises(ClientError) as caught:
        await call("get_object", Key="key", **headers)
    response = caught.value.response
    assert (response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]) == expected


async def test_reads_honour_dates(status: Call, double: S3Double) -> None:
    modified = double.put("bucket", "key", b"body").modified
    earlier, later = modified - timedelta(hours=1), modified + timedelta(hours=1)
    assert await status("get_object", Key="key", IfModifiedSince=later) == (304, "304")
    assert await status("get_object", Key="key", IfModifiedSince=earlier) == (200, "")
    assert await status("get_object", Key="key", IfUnmodifiedSince=earlier) == (412, "PreconditionFailed")


async def test_what_is_absent_is_not_found(status: Call) -> None:
    assert await status("get_object", Key="absent") == (404, "NoSuchKey")
    assert await status("head_object", Key="absent") == (404, "404")
    assert await status("delete_object", Key="absent") == (204, "")
    assert await status("head_bucket", Bucket="absent") == (404, "404")
    assert await status("list_objects_v2", Bucket="absent") == (404, "NoSuchBucket")


async def test_what_the_double_does_not_have_is_refused(status: Call, double: S3Double) -> None:
    """An operation that is taken for another one would make every proof worthless."""
    double.put("bucket", "key", b"body")
    assert await status("get_object_torrent", Key="key") == (501, "NotImplemented")
    assert await status("restore_object", Key="key", RestoreRequest={"Days": 1}) == (501, "NotImplemented")
    assert await status("get_bucket_policy") == (501, "NotImplemented")


async def test_buckets(call: Call, client: S3Client) -> None:
    await call("create_bucket", Bucket="another")
    listed = await asyncio.to_thread(client.list_buckets)
    assert [bucket["Name"] for bucket in listed["Buckets"]] == ["another", "bucket"]
    assert (await call("get_bucket_location"))["LocationConstraint"] is None


async def test_lists_are_ordered_grouped_and_paged(client: S3Client, double: S3Double) -> None:
    for key in ["a/1", "a/2", "b", "c/1", "d", "z", "\U00010000"]:
        double.put("bucket", key, b"")

    def pages(**arguments: Any) -> tuple[list[str], list[str]]:
        paginator = client.get_paginator("list_objects_v2")
        found = list(paginator.paginate(Bucket="bucket", PaginationConfig={"PageSize": 1}, **arguments))
        keys = [entry["Key"] for page in found for entry in page.get("Contents", [])]
        return keys, [entry["Prefix"] for page in found for entry in page.get("CommonPrefixes", [])]

    assert await asyncio.to_thread(pages, Delimiter="/") == (["b", "d", "z", "\U00010000"], ["a/", "c/"])
    assert await asyncio.to_thread(pages, Prefix="a/") == (["a/1", "a/2"], [])
    assert await asyncio.to_thread(pages, StartAfter="a/1", Delimiter="/", Prefix="a") == ([], ["a/"])
    assert await asyncio.to_thread(pages, StartAfter="d") == (["z", "\U00010000"], [])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"IfNoneMatch": "*"}, (412, "PreconditionFailed")),
        ({"IfMatch": quoted(b"old")}, (200, "")),
        ({"IfMatch": quoted(b"other")}, (412, "PreconditionFailed")),
        ({"IfMatch": "*"}, (501, "NotImplemented")),
        ({"IfNoneMatch": quoted(b"old")}, (501, "NotImplemented")),
        ({"IfMatch": quoted(b"old"), "IfNoneMatch": "*"}, (501, "NotImplemented")),
    ],
)
@pytest.mark.parametrize("operation", ["put", "copy", "complete"])
async def test_conditional_writes(
    call: Call, status: Call, double: S3Double, operation: str, condition: dict[str, str], expected: tuple[int, str]
) -> None:
    """The three ways to write an object judge a condition alike, and a refused one changes nothing."""
    double.put("bucket", "source", b"new")
    old = double.put("bucket", "key", b"old")
    before = double.sequence
    if operation == "put":
        assert await status("put_object", Key="key", Body=b"new", **condition) == expected
    elif operation == "copy":
        assert await status("copy_object", Key="key", CopySource="bucket/source", **condition) == expected
    else:
        upload = await begin_upload(call, b"new")
        assert await status("complete_multipart_upload", **upload, **condition) == expected
    written = double.objects("bucket")["key"].content.body
    assert written == (b"new" if expected[0] == 200 else old.content.body)
    assert len(double.applied(after=before)) == (1 if expected[0] == 200 else 0)


async def test_absence_is_a_condition_too(status: Call) -> None:
    assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"")) == (404, "NoSuchKey")
    assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (200, "")


@pytest.mark.parametrize(
    ("body", "condition", "expected"),
    [
        (b"old", quoted(b"old"), (204, "")),
        (b"old", "*", (204, "")),
        (b"old", quoted(b"other"), (412, "PreconditionFailed")),
        (None, quoted(b"old"), (404, "NoSuchKey")),
    ],
)
async def test_conditional_deletes(
    status: Call, double: S3Double, body: bytes | None, condition: str, expected: tuple[int, str]
) -> None:
    if body is not None:
        double.put("bucket", "key", body)
    assert await status("delete_object", Key="key", IfMatch=condition) == expected
    assert bool(double.objects("bucket")) == (expected[0] == 412)


async def test_a_completion_notices_that_its_key_was_written_with_the_same_bytes(
    call: Call, status: Call, double: S3Double
) -> None:
    """The ETag is the same again, yet AWS answers 409: the key changed after the upload was initiated."""
    double.put("bucket", "key", b"old")
    upload = await begin_upload(call, b"new")
    double.put("bucket", "key", b"old")
    expected = (409, "ConditionalRequestConflict")
    assert await status("complete_multipart_upload", IfMatch=quoted(b"old"), **upload) == expected
    double.behave(guard_initiation=False)
    assert await status("complete_multipart_upload", IfMatch=quoted(b"old"), **upload) == (200, "")


async def test_a_completion_notices_that_its_key_was_deleted(call: Call, status: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"old")
    upload = await begin_upload(call, b"new")
    await call("delete_object", Key="key")
    expected = (409, "ConditionalRequestConflict")
    assert await status("complete_multipart_upload", IfNoneMatch="*", **upload) == expected
    assert await status("complete_multipart_upload", **upload) == (200, "")


async def test_multipart_uploads(call: Call, status: Call, double: S3Double) -> None:
    double.behave(minimum_part_size=1)
    upload = await begin_upload(call, b"one", b"two")
    listed = await call("list_multipart_uploads")
    assert [entry["UploadId"] for entry in listed["Uploads"]] == [upload["UploadId"]]
    parts = await call("list_parts", Key="key", UploadId=upload["UploadId"])
    assert [part["Size"] for part in parts["Parts"]] == [3, 3]
    done = await call("complete_multipart_upload", **upload)
    digests = hashlib.md5(b"one").digest() + hashlib.md5(b"two").digest()
    assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert double.objects("bucket")["key"].content.body == b"onetwo"
    assert double.mutations[-1].write_id == "w"
    assert await status("complete_multipart_upload", **upload) == (404, "NoSuchUpload")
    await call("copy_object", Key="key", CopySource="bucket/key", Metadata={}, MetadataDirective="REPLACE")
    assert double.objects("bucket")["key"].etag == hashlib.md5(b"onetwo").hexdigest()


async def test_a_part_can_be_copied(call: Call, double: S3Double) -> None:
    double.put("bucket", "source", b"abcdef")
    created = await call("create_multipart_upload", Key="key")
    place = {"Key": "key", "UploadId": created["UploadId"]}
    copied = await call(
        "upload_part_copy", PartNumber=1, CopySource="bucket/source", CopySourceRange="bytes=1-3", **place
    )
    parts = [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]
    await call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **place)
    assert double.objects("bucket")["key"].content.body == b"bcd"


async def test_an_aborted_upload_is_gone_when_the_list_says_so(call: Call, status: Call, double: S3Double) -> None:
    """AWS may answer an abort early; until the list no longer shows the upload, it can still be completed."""
    double.behave(abort_delay=60)
    upload = await begin_upload(call, b"late")
    place = {"Key": "key", "UploadId": upload["UploadId"]}
    assert await status("abort_multipart_upload", **place) == (204, "")
    assert len((await call("list_multipart_uploads"))["Uploads"]) == 1
    double.behave(clock_offset=61)
    assert "Uploads" not in await call("list_multipart_uploads")
    assert await status("complete_multipart_upload", **upload) == (404, "NoSuchUpload")
    assert await status("abort_multipart_upload", **place) == (204, "")
    assert await status("abort_multipart_upload", Key="key", UploadId="unknown") == (404, "NoSuchUpload")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
async def test_boto3_agrees_on_checksums(session: boto3.Session, endpoint: str, algorithm: Any) -> None:
    """The transfer manager sends checksums of parts and verifies that of the object it gets."""
    client = client_for(session, endpoint)

    def transfer() -> bytes:
        body = bytes(range(256)) * 24 * 1024
        created = client.create_multipart_upload(Bucket="bucket", Key="key", ChecksumAlgorithm=algorithm)
        place: Any = {"Bucket": "bucket", "Key": "key", "UploadId": created["UploadId"]}
        parts: list[Any] = [
            client.upload_part(PartNumber=count, Body=piece, ChecksumAlgorithm=algorithm, **place)
            for count, piece in enumerate([body, b"end"], start=1)
        ]
        field: Any = f"Checksum{algorithm}"
        chosen: Any = [
            {"PartNumber": count, "ETag": part["ETag"], field: part[field]} for count, part in enumerate(parts, start=1)
        ]
        client.complete_multipart_upload(MultipartUpload={"Parts": chosen}, **place)
        got = client.get_object(Bucket="bucket", Key="key", ChecksumMode="ENABLED")
        assert field in got
        return got["Body"].read()[-3:]

    assert await asyncio.to_thread(transfer) == b"end"


async def test_a_body_that_is_not_what_it_claims_is_refused(status: Call, double: S3Double) -> None:
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert await status("put_object", Key="key", Body=b"body", ContentMD5=wrong) == (400, "BadDigest")
    assert await status("put_object", Key="key", Body=b"body", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    assert double.mutations == []


@pytest.mark.parametrize(
    ("access_key", "secret", "expected"),
    [
        ("AKIADOUBLE", "wrong", "SignatureDoesNotMatch"),
        ("AKIAOTHER", "double-secret", "InvalidAccessKeyId"),
    ],
)
async def test_a_wrong_signature_is_refused(endpoint: str, access_key: str, secret: str, expected: str) -> None:
    client = client_for(boto3.Session(access_key, secret, region_name="us-east-1"), endpoint)
    with pytest.raises(ClientError, match=expected):
        await asyncio.to_thread(client.put_object, Bucket="bucket", Key="key", Body=b"")


@pytest.mark.parametrize(("offset", "expected"), [(890, 200), (-890, 200), (910, 403), (-910, 403)])
async def test_a_signature_lives_for_fifteen_minutes(
    status: Call, double: S3Double, offset: float, expected: int
) -> None:
    double.behave(clock_offset=offset)
    assert (await status("put_object", Key="key", Body=b""))[0] == expected
    assert len(double.mutations) == (1 if expected == 200 else 0)


async def test_the_date_is_the_stores_own(call: Call, double: S3Double) -> None:
    """The gateway forgets by this header, so a test that moves the store's clock must move it too."""
    double.behave(clock_offset=600)
    dated = (await call("head_bucket"))["ResponseMetadata"]["HTTPHeaders"]["date"]
    assert abs(parsedate_to_datetime(dated) - double.service.now()) < timedelta(minutes=1)


async def begin_upload(call: Call, *bodies: bytes, **options: Any) -> dict[str, Any]:
    """Upload the parts of `key` under the write-id w; what is given back completes it."""
    created = await call("create_multipart_upload", Key="key", Metadata={"fencing-write-id": "w"}, **options)
    place = {"Key": "key", "UploadId": created["UploadId"]}
    parts = []
    for count, body in enumerate(bodies, start=1):
        part = await call("upload_part", PartNumber=count, Body=body, **place)
        parts.append({"PartNumber": count, "ETag": part["ETag"]})
    return {**place, "MultipartUpload": {"Parts": parts}}
