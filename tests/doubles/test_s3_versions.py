"""Buckets with versions: ids, delete markers, lists, and conditions that look at the current version."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.doubles.conftest import Call
from tests.doubles.s3 import S3Double
from tests.doubles.test_s3_double import begin_upload, quoted


@pytest.fixture(autouse=True)
def versioned(double: S3Double) -> None:
    double.behave(versioned=True)


async def put(call: Call, body: bytes, key: str = "key", **arguments: Any) -> str:
    return str((await call("put_object", Key=key, Body=body, **arguments))["VersionId"])


async def test_every_write_makes_a_version(call: Call, double: S3Double) -> None:
    first = await put(call, b"first")
    copied = (await call("copy_object", Key="key", CopySource=f"bucket/key?versionId={first}", **REPLACE))["VersionId"]
    completed = (await call("complete_multipart_upload", **await begin_upload(call, b"third")))["VersionId"]
    deleted = await call("delete_object", Key="key")
    assert deleted["DeleteMarker"] is True
    versions = [first, copied, completed, deleted["VersionId"]]
    assert len(set(versions)) == 4
    assert [mutation.version_id for mutation in double.mutations] == versions
    assert (await call("get_object", Key="key", VersionId=first))["Body"].read() == b"first"
    assert (await call("head_object", Key="key", VersionId=completed))["ContentLength"] == 5
    assert double.objects("bucket") == {}


REPLACE: Any = {"MetadataDirective": "REPLACE", "Metadata": {"a": "b"}}


async def test_a_delete_marker_hides_the_key(call: Call, status: Call) -> None:
    first = await put(call, b"body")
    marker = (await call("delete_object", Key="key"))["VersionId"]
    with pytest.raises(ClientError) as caught:
        await call("get_object", Key="key")
    headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
    assert (headers["x-amz-delete-marker"], headers["x-amz-version-id"]) == ("true", marker)
    assert await status("get_object", Key="key", VersionId=marker) == (405, "MethodNotAllowed")
    assert "Contents" not in await call("list_objects_v2")
    removed = await call("delete_object", Key="key", VersionId=marker)
    assert (removed["DeleteMarker"], removed["VersionId"]) == (True, marker)
    assert (await call("get_object", Key="key"))["VersionId"] == first


async def test_a_version_is_removed_for_good_and_the_older_one_is_back(
    call: Call, status: Call, double: S3Double
) -> None:
    """The ETag of the older version comes back with it: a hazard for every condition on it."""
    first, second = await put(call, b"first"), await put(call, b"second")
    await call("delete_object", Key="key", VersionId=second)
    assert (await call("head_object", Key="key"))["VersionId"] == first
    assert (double.mutations[-1].operation, double.mutations[-1].version_id) == ("DeleteObject", second)
    assert await status("get_object", Key="key", VersionId=second) == (404, "NoSuchVersion")
    before = double.sequence
    assert await status("delete_object", Key="key", VersionId=second) == (204, "")
    assert double.sequence == before
    assert await status("get_object", Key="key", VersionId="no-version") == (400, "InvalidArgument")
    assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"first")) == (200, "")


async def test_conditions_look_at_the_current_version(call: Call, status: Call) -> None:
    await put(call, b"first")
    await put(call, b"second")
    assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"first")) == (412, "PreconditionFailed")
    assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (412, "PreconditionFailed")
    assert await status("delete_object", Key="key", IfMatch=quoted(b"second")) == (204, "")
    assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"second")) == (404, "NoSuchKey")
    assert await status("delete_object", Key="key", IfMatch=quoted(b"second")) == (404, "NoSuchKey")
    assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (200, "")


async def test_deleting_an_absent_key_leaves_a_marker(call: Call, double: S3Double) -> None:
    deleted = await call("delete_object", Key="absent")
    assert deleted["DeleteMarker"] is True
    assert [mutation.key for mutation in double.mutations] == ["absent"]


async def test_amendments_are_of_one_version(call: Call, double: S3Double) -> None:
    first = await put(call, b"first", Tagging="of=first")
    second = await put(call, b"second")
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    assert (await call("put_object_tagging", Key="key", VersionId=first, Tagging=tags))["VersionId"] == first
    assert (await call("get_object_tagging", Key="key", VersionId=first))["TagSet"] == tags["TagSet"]
    assert (await call("get_object_tagging", Key="key"))["TagSet"] == []
    assert double.mutations[-1].version_id == first
    assert double.objects("bucket")["key"].version_id == second


async def test_versioning_is_set_for_a_bucket(call: Call, double: S3Double) -> None:
    double.behave(versioned=False)
    assert "Status" not in await call("get_bucket_versioning")
    assert "VersionId" not in await call("put_object", Key="key", Body=b"unversioned")
    await call("put_bucket_versioning", VersioningConfiguration={"Status": "Enabled"})
    assert (await call("get_bucket_versioning"))["Status"] == "Enabled"
    await put(call, b"versioned")
    assert (await call("get_object", Key="key", VersionId="null"))["Body"].read() == b"unversioned"
    await call("put_bucket_versioning", VersioningConfiguration={"Status": "Suspended"})
    assert await put(call, b"suspended") == "null"
    assert [entry["VersionId"] == "null" for entry in (await call("list_object_versions"))["Versions"]] == [True, False]
    assert (await call("delete_object", Key="key"))["VersionId"] == "null"
    listed = await call("list_object_versions")
    assert (len(listed["Versions"]), len(listed["DeleteMarkers"])) == (1, 1)


@pytest.mark.parametrize("page_size", [1, 2, 1000])
async def test_versions_are_listed_page_by_page(call: Call, page_size: int) -> None:
    made = {key: [await put(call, body, key) for body in (b"1", b"2")] for key in ("a/1", "a/2", "b", "c/1")}
    marker = (await call("delete_object", Key="b"))["VersionId"]

    async def pages(**arguments: Any) -> tuple[list[tuple[str, str]], list[str]]:
        found, prefixes, more = [], [], {"MaxKeys": page_size}
        while more:
            page = await call("list_object_versions", **arguments, **more)
            entries = page.get("Versions", []) + page.get("DeleteMarkers", [])
            assert len(entries) + len(page.get("CommonPrefixes", [])) <= page_size
            found += [(entry["Key"], entry["VersionId"]) for entry in entries]
            prefixes += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            more = {"MaxKeys": page_size} if page["IsTruncated"] else {}
            if more:
                more["KeyMarker"] = page["NextKeyMarker"]
                more |= {"VersionIdMarker": page["NextVersionIdMarker"]} if "NextVersionIdMarker" in page else {}
        return found, prefixes

    newest_first = [(key, version) for key in made for version in reversed(made[key])]
    found, prefixes = await pages()
    assert sorted(found) == sorted([*newest_first, ("b", marker)])
    assert [each for each in found if each[0] != "b"] == [each for each in newest_first if each[0] != "b"]
    assert prefixes == []
    assert await pages(Prefix="a/") == ([each for each in newest_first if each[0].startswith("a/")], [])
    found, prefixes = await pages(Delimiter="/")
    assert sorted(found) == sorted([*newest_first[4:6], ("b", marker)])
    assert prefixes == ["a/", "c/"]
    latest = [entry["IsLatest"] for entry in (await call("list_object_versions", Prefix="b"))["Versions"]]
    assert latest == [False, False]
