"""The older list of objects, lists of uploads and parts by pages, many deletes at once, buckets, lingering uploads."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.doubles.conftest import Call
from tests.doubles.s3 import S3Double
from tests.doubles.test_s3_double import begin_upload, quoted

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


async def test_the_first_list_says_where_to_go_on_only_with_a_delimiter(call: Call, double: S3Double) -> None:
    for key in ["a/1", "a/2", "b", "c/1", "d"]:
        double.put("bucket", key, b"")
    plain = await call("list_objects", MaxKeys=2)
    assert [entry["Key"] for entry in plain["Contents"]] == ["a/1", "a/2"]
    assert (plain["IsTruncated"], plain.get("NextMarker")) == (True, None)
    assert [entry["Key"] for entry in (await call("list_objects", Marker="a/2"))["Contents"]] == ["b", "c/1", "d"]
    names, page = [], {"NextMarker": ""}
    while "NextMarker" in page:
        page = await call("list_objects", MaxKeys=1, Delimiter="/", Marker=page["NextMarker"])
        names += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        names += [entry["Key"] for entry in page.get("Contents", [])]
    assert names == ["a/", "b", "c/", "d"]


@pytest.mark.parametrize("page_size", [1, 2, 1000])
async def test_uploads_are_listed_page_by_page(client: S3Client, call: Call, page_size: int) -> None:
    keys = ["a/1", "a/1", "a +ü", "b/1", "b/2", "c"]
    uploads = [(key, (await call("create_multipart_upload", Key=key))["UploadId"]) for key in keys]

    def pages(**arguments: Any) -> tuple[list[tuple[str, str]], list[str]]:
        paginator = client.get_paginator("list_multipart_uploads")
        options: Any = {"PaginationConfig": {"PageSize": page_size}, "EncodingType": "url", **arguments}
        found = list(paginator.paginate(Bucket="bucket", **options))
        listed = [(entry["Key"], entry["UploadId"]) for page in found for entry in page.get("Uploads", [])]
        return listed, [entry["Prefix"] for page in found for entry in page.get("CommonPrefixes", [])]

    listed, _ = await asyncio.to_thread(pages)
    assert sorted(listed) == sorted((key.replace(" +ü", "%20%2B%C3%BC"), upload) for key, upload in uploads)
    assert [key for key, _ in listed] == ["a%20%2B%C3%BC", "a/1", "a/1", "b/1", "b/2", "c"]
    assert await asyncio.to_thread(pages, Prefix="a/") == (uploads[:2], [])
    grouped, prefixes = await asyncio.to_thread(pages, Delimiter="/")
    assert ([key for key, _ in grouped], prefixes) == (["a%20%2B%C3%BC", "c"], ["a/", "b/"])


async def test_parts_are_listed_page_by_page(client: S3Client, call: Call) -> None:
    upload = await begin_upload(call, b"1", b"22", b"333")
    place: Any = {"Bucket": "bucket", "Key": "key", "UploadId": upload["UploadId"]}

    def sizes() -> list[list[int]]:
        pages = client.get_paginator("list_parts").paginate(**place, PaginationConfig={"PageSize": 2})
        return [[part["Size"] for part in page["Parts"]] for page in pages]

    assert await asyncio.to_thread(sizes) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"CopySourceIfMatch": quoted(b"abcdef")}, (200, "")),
        ({"CopySourceIfMatch": quoted(b"other")}, (412, "PreconditionFailed")),
        ({"CopySourceIfNoneMatch": quoted(b"abcdef")}, (412, "PreconditionFailed")),
        ({"CopySourceRange": "bytes=3-9"}, (400, "InvalidArgument")),
    ],
)
async def test_a_part_is_copied_under_a_condition_on_its_source(
    call: Call, status: Call, double: S3Double, condition: dict[str, str], expected: tuple[int, str]
) -> None:
    double.put("bucket", "source", b"abcdef")
    place = {"Key": "key", "UploadId": (await call("create_multipart_upload", Key="key"))["UploadId"], "PartNumber": 1}
    arguments = {"CopySource": "bucket/source", "CopySourceRange": "bytes=1-3", **condition}
    assert await status("upload_part_copy", **place, **arguments) == expected
    parts = (await call("list_parts", Key="key", UploadId=place["UploadId"])).get("Parts", [])
    assert [part["ETag"] for part in parts] == ([quoted(b"bcd")] if expected[0] == 200 else [])


async def test_a_part_is_copied_from_a_version(call: Call, double: S3Double) -> None:
    double.behave(versioned=True)
    first = (await call("put_object", Key="source", Body=b"first"))["VersionId"]
    await call("put_object", Key="source", Body=b"second")
    place = {"Key": "key", "UploadId": (await call("create_multipart_upload", Key="key"))["UploadId"]}
    copied = await call("upload_part_copy", PartNumber=1, CopySource=f"bucket/source?versionId={first}", **place)
    assert copied["CopySourceVersionId"] == first
    assert copied["CopyPartResult"]["ETag"] == quoted(b"first")


async def test_many_are_deleted_each_on_its_own(call: Call, double: S3Double) -> None:
    for key in ["a", "b", "c & d", " e"]:
        double.put("bucket", key, b"body")
    before = double.sequence
    objects = [
        {"Key": "a"},
        {"Key": "b", "ETag": quoted(b"other")},
        {"Key": "c & d", "ETag": quoted(b"body")},
        {"Key": " e"},
        {"Key": "absent"},
    ]
    answer = await call("delete_objects", Delete={"Objects": objects})
    assert [entry["Key"] for entry in answer["Deleted"]] == ["a", "c & d", " e", "absent"]
    assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("b", "PreconditionFailed")]
    assert list(double.objects("bucket")) == ["b"]
    logged = [(mutation.operation, mutation.key) for mutation in double.applied(after=before)]
    assert logged == [("DeleteObjects", "a"), ("DeleteObjects", "c & d"), ("DeleteObjects", " e")]
    assert "Deleted" not in await call("delete_objects", Delete={"Objects": [{"Key": "b"}], "Quiet": True})
    assert double.objects("bucket") == {}


async def test_many_are_deleted_with_their_versions(call: Call, double: S3Double) -> None:
    double.behave(versioned=True)
    version = (await call("put_object", Key="key", Body=b"body"))["VersionId"]
    (marked,) = (await call("delete_objects", Delete={"Objects": [{"Key": "key"}]}))["Deleted"]
    assert marked["DeleteMarker"] is True
    marker = {"Key": "key", "VersionId": marked["DeleteMarkerVersionId"]}
    removed = await call("delete_objects", Delete={"Objects": [marker, {"Key": "key", "VersionId": version}]})
    assert [entry["VersionId"] for entry in removed["Deleted"]] == [marker["VersionId"], version]
    assert "Versions" not in await call("list_object_versions")


async def test_a_bucket_is_deleted_when_it_is_empty(call: Call, status: Call, double: S3Double) -> None:
    double.behave(versioned=True)
    version = (await call("put_object", Key="key", Body=b"body"))["VersionId"]
    marker = (await call("delete_object", Key="key"))["VersionId"]
    for each in (version, marker):
        assert await status("delete_bucket") == (409, "BucketNotEmpty")
        await call("delete_object", Key="key", VersionId=each)
    assert await status("delete_bucket") == (204, "")
    assert await status("delete_bucket") == (404, "NoSuchBucket")


async def test_an_aborted_upload_lingers_for_some_looks(call: Call, status: Call, double: S3Double) -> None:
    """Until a list no longer shows it, it can still be completed."""
    double.behave(lingering_uploads=2)
    first, second = await begin_upload(call, b"one"), await begin_upload(call, b"two")
    for upload in (first, second):
        await call("abort_multipart_upload", Key="key", UploadId=upload["UploadId"])
    assert "Uploads" not in await call("list_multipart_uploads", Prefix="other")
    assert len((await call("list_multipart_uploads"))["Uploads"]) == 2
    assert await status("complete_multipart_upload", **first) == (200, "")
    assert len((await call("list_multipart_uploads"))["Uploads"]) == 1
    assert "Uploads" not in await call("list_multipart_uploads")
    assert await status("complete_multipart_upload", **second) == (404, "NoSuchUpload")
    assert double.objects("bucket")["key"].content.body == b"one"


async def test_bodies_that_are_not_kept_are_hashed_and_counted(call: Call, status: Call, double: S3Double) -> None:
    double.behave(keeps_bodies=False)
    body = bytes(range(256)) * 40_000
    put = await call("put_object", Key="key", Body=body, ChecksumAlgorithm="SHA256")
    assert put["ETag"] == quoted(body)
    headed = await call("head_object", Key="key", ChecksumMode="ENABLED")
    assert (headed["ContentLength"], headed["ChecksumSHA256"]) == (len(body), put["ChecksumSHA256"])
    assert double.objects("bucket")["key"].content.body == b""
    assert (await call("list_objects_v2"))["Contents"][0]["Size"] == len(body)
    assert await status("get_object", Key="key") == (501, "NotImplemented")
    assert await status("put_object", Key="key", Body=b"x", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    assert (await call("copy_object", Key="copy", CopySource="bucket/key"))["CopyObjectResult"]["ETag"] == put["ETag"]
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    assert await status("put_object_tagging", Key="key", Tagging=tags) == (200, "")


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME"])
async def test_an_upload_of_parts_that_are_not_kept_is_the_same_object(
    call: Call, double: S3Double, algorithm: str
) -> None:
    """ETag, size, and the checksum over the whole, which is combined from the parts'."""
    body = bytes(range(256)) * 24_000
    options = {"ChecksumAlgorithm": algorithm, "ChecksumType": "FULL_OBJECT"}
    answers = []
    for keeps in (True, False):
        double.behave(keeps_bodies=keeps)
        upload = await begin_upload(call, body, b"end", **options)
        answers.append(await call("complete_multipart_upload", **upload, ChecksumType="FULL_OBJECT"))
        assert double.objects("bucket")["key"].content.size == len(body) + 3
    kept, unkept = answers
    assert (unkept["ETag"], unkept[f"Checksum{algorithm}"]) == (kept["ETag"], kept[f"Checksum{algorithm}"])
    digests = hashlib.md5(body).digest() + hashlib.md5(b"end").digest()
    assert unkept["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
