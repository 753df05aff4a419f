"""Tags, ACLs, legal holds and retentions: kept, read back, logged, and struck by faults like any write."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError

from tests.doubles.conftest import Call
from tests.doubles.s3 import S3Double
from tests.doubles.test_s3_double import begin_upload
from tests.doubles.test_s3_faults import soon

TAGS = {"TagSet": [{"Key": "color", "Value": "red & blue"}, {"Key": "size", "Value": ""}]}
AMENDMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("put_object_tagging", {"Tagging": TAGS}, "PutObjectTagging"),
    ("delete_object_tagging", {}, "DeleteObjectTagging"),
    ("put_object_acl", {"ACL": "public-read"}, "PutObjectAcl"),
    ("put_object_legal_hold", {"LegalHold": {"Status": "ON"}}, "PutObjectLegalHold"),
    (
        "put_object_retention",
        {"Retention": {"Mode": "GOVERNANCE", "RetainUntilDate": datetime(2030, 1, 1, tzinfo=UTC)}},
        "PutObjectRetention",
    ),
]


async def test_tags_are_set_read_and_removed(call: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"body")
    await call("put_object_tagging", Key="key", Tagging=TAGS)
    assert (await call("get_object_tagging", Key="key"))["TagSet"] == TAGS["TagSet"]
    counted = (await call("head_object", Key="key"))["ResponseMetadata"]["HTTPHeaders"]
    assert counted["x-amz-tagging-count"] == "2"
    assert (await call("get_object", Key="key"))["TagCount"] == 2
    await call("delete_object_tagging", Key="key")
    assert (await call("get_object_tagging", Key="key"))["TagSet"] == []
    assert "TagCount" not in await call("get_object", Key="key")


async def test_writes_bring_tags(call: Call, double: S3Double) -> None:
    async def tags(key: str) -> dict[str, str]:
        return {tag["Key"]: tag["Value"] for tag in (await call("get_object_tagging", Key=key))["TagSet"]}

    await call("put_object", Key="key", Body=b"", Tagging="color=red%20%26%20blue&size=")
    assert await tags("key") == {"color": "red & blue", "size": ""}
    await call("copy_object", Key="copy", CopySource="bucket/key")
    assert await tags("copy") == await tags("key")
    await call("copy_object", Key="copy", CopySource="bucket/key", Tagging="a=b", TaggingDirective="REPLACE")
    assert await tags("copy") == {"a": "b"}
    upload = await begin_upload(call, b"body", Tagging="part=s")
    await call("complete_multipart_upload", **upload)
    assert await tags("key") == {"part": "s"}
    assert double.objects("bucket")["key"].content.tags == {"part": "s"}


@pytest.mark.parametrize("count", [10, 11])
async def test_ten_tags_are_the_most(status: Call, double: S3Double, count: int) -> None:
    double.put("bucket", "key", b"")
    tagging = {"TagSet": [{"Key": f"k{number}", "Value": "v"} for number in range(count)]}
    expected = (200, "") if count == 10 else (400, "InvalidTag")
    assert await status("put_object_tagging", Key="key", Tagging=tagging) == expected


async def test_acls_are_kept(call: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"")
    private = await call("get_object_acl", Key="key")
    assert [grant["Permission"] for grant in private["Grants"]] == ["FULL_CONTROL"]
    await call("put_object_acl", Key="key", ACL="public-read")
    public = await call("get_object_acl", Key="key")
    assert public["Grants"][1]["Grantee"]["URI"].endswith("/AllUsers")
    policy = {"Owner": private["Owner"], "Grants": [{"Grantee": {"Type": "CanonicalUser", "ID": "x"}}]}
    await call("put_object_acl", Key="key", AccessControlPolicy=policy)
    assert (await call("get_object_acl", Key="key"))["Grants"][0]["Grantee"]["ID"] == "x"
    await call("put_object", Key="key", Body=b"", ACL="authenticated-read")
    assert (await call("get_object_acl", Key="key"))["Grants"][1]["Grantee"]["URI"].endswith("/AuthenticatedUsers")


async def test_locks_are_kept_and_not_found_before(call: Call, status: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"")
    assert await status("get_object_legal_hold", Key="key") == (404, "NoSuchObjectLockConfiguration")
    assert await status("get_object_retention", Key="key") == (404, "NoSuchObjectLockConfiguration")
    for operation, arguments, _ in AMENDMENTS[3:]:
        await call(operation, Key="key", **arguments)
    assert (await call("get_object_legal_hold", Key="key"))["LegalHold"] == {"Status": "ON"}
    assert (await call("get_object_retention", Key="key"))["Retention"] == AMENDMENTS[4][1]["Retention"]


@pytest.mark.parametrize(("operation", "arguments", "name"), AMENDMENTS)
async def test_an_amendment_is_logged_and_leaves_the_object_as_it_is(
    call: Call, status: Call, double: S3Double, operation: str, arguments: dict[str, Any], name: str
) -> None:
    before = double.put("bucket", "key", b"body")
    await call(operation, Key="key", **arguments)
    after = double.objects("bucket")["key"]
    assert (after.etag, after.modified, after.content.body) == (before.etag, before.modified, b"body")
    (amendment,) = double.applied(after=before.sequence)
    assert (amendment.operation, amendment.key, amendment.etag) == (name, "key", before.etag)
    assert await status(operation, Key="absent", **arguments) == (404, "NoSuchKey")
    assert double.mutations[-1] is amendment


@pytest.mark.parametrize(("operation", "arguments", "name"), AMENDMENTS)
async def test_an_amendment_can_be_held_and_cut(
    call: Call, double: S3Double, operation: str, arguments: dict[str, Any], name: str
) -> None:
    placed = double.put("bucket", "key", b"body")
    late = double.hold(operation=name, key="key")
    sent = asyncio.create_task(call(operation, Key="key", **arguments))
    await soon(late.arrived)
    assert double.applied(after=placed.sequence) == []
    late.release()
    await sent
    assert len(double.applied(after=placed.sequence)) == 1
    double.cut("after", operation=name)
    with pytest.raises(ConnectionClosedError):
        await call(operation, Key="key", **arguments)
    assert len(double.applied(after=placed.sequence)) == 2


async def test_an_amendment_is_no_change_to_a_conditional_completion(call: Call, double: S3Double) -> None:
    """It leaves ETag and date alone, and by these the store judges."""
    placed = double.put("bucket", "key", b"old")
    upload = await begin_upload(call, b"new")
    await call("put_object_tagging", Key="key", Tagging=TAGS)
    await call("complete_multipart_upload", IfMatch=placed.etag, **upload)
    assert double.objects("bucket")["key"].content.body == b"new"
