"""CopyObject: small objects through memory, large ones inside the store, and both as fenced writes."""

import hashlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.doubles.s3.objects import Checksum
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, entomb, module_stage, store
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")
FAILED = (412, "PreconditionFailed")
MEBIBYTE = 1024 * 1024
BODIES = {"small": b"hello", "empty": b"", "large": bytes(range(256)) * (6 * MEBIBYTE // 256)}
SIZES = ["small", "large"]
KEPT = ("content-type", "cache-control", "content-encoding", "content-language", "content-disposition")


# The bucket "other" keeps versions.
shared = module_stage(lambda: store(versioned=["other"]), limits={"memory_threshold": MEBIBYTE})


async def sourced(stage: Stage, key: str, size: str = "small", bucket: str = "bucket") -> dict[str, Any]:
    """Put a source with everything an object can have; the answer to its put."""
    return await call(
        connect(stage.origin, "7", "source-holder").put_object,
        Bucket=bucket,
        Key=f"{key}/a source+ä?",
        Body=BODIES[size],
        ContentType="text/css",
        CacheControl="no-store",
        ContentEncoding="gzip",
        ContentLanguage="de",
        ContentDisposition="attachment",
        Metadata={"colour": "red"},
        Tagging="a=b%20c&d=",
    )


def named(key: str, bucket: str = "bucket", **more: str) -> dict[str, Any]:
    """The arguments of a copy from that source."""
    return {"Key": key, "CopySource": {"Bucket": bucket, "Key": f"{key}/a source+ä?", **more}}


@pytest.mark.parametrize("size", ["small", "large", pytest.param("empty", marks=pytest.mark.thorough)])
async def test_a_copy_takes_over_all_metadata_but_the_gateways_own(shared: Stage, key: str, size: str) -> None:
    await sourced(shared, key, size)
    since = len(shared.double.requests)
    s3 = connect(shared.origin, "34", "ann")
    copied = await call(s3.copy_object, **named(key))
    stored = shared.double.objects("bucket")[key].content
    source = shared.double.objects("bucket")[f"{key}/a source+ä?"].content
    assert stored.body == BODIES[size]
    assert {name: stored.headers[name] for name in KEPT} == {
        "content-type": "text/css",
        "cache-control": "no-store",
        "content-encoding": "gzip",
        "content-language": "de",
        "content-disposition": "attachment",
    }
    assert stored.tags == {"a": "b c", "d": ""}
    own = {name: value for name, value in stored.metadata.items() if name.startswith("fencing-")}
    for mark in ("fencing-write-id", "fencing-invocation", "fencing-signature"):
        assert own.pop(mark) != source.metadata[mark]
    assert own == {"fencing-token": "34", "fencing-resource": f"s3/bucket/{key}"}
    assert stored.metadata["colour"] == "red"
    found = await call(s3.head_object, Key=key)
    assert (copied["CopyObjectResult"]["ETag"], found["Metadata"]) == (found["ETag"], {"colour": "red"})
    age = datetime.now(UTC) - copied["CopyObjectResult"]["LastModified"]
    assert abs(age) < timedelta(minutes=1)
    assert copied["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "34"
    used = {each.operation.value for each in shared.written(since) if each.method != "GET"}
    assert used == (
        {"CreateMultipartUpload", "UploadPartCopy", "CompleteMultipartUpload"} if size == "large" else {"PutObject"}
    ), "what is large does not pass through the gateway"
    assert await shared.fence(f"s3/bucket/{key}") == "34"
    assert await shared.fence("s3/bucket/" + f"{key}/a%20source+%C3%A4%3F") == "7", "reading raises nothing"
    assert await shared.count("upload", key) == 0


@pytest.mark.parametrize("size", SIZES)
async def test_metadata_and_tags_can_be_replaced(shared: Stage, key: str, size: str) -> None:
    await sourced(shared, key, size)
    s3 = connect(shared.origin, "34")
    replaced = {"Metadata": {"size": "big"}, "ContentType": "text/plain", "Tagging": "x=y"}
    await call(s3.copy_object, **named(key), **replaced)
    stored = shared.double.objects("bucket")[key].content
    assert (stored.metadata["colour"], stored.headers["content-type"]) == ("red", "text/css"), "without a directive"
    assert stored.tags == {"a": "b c", "d": ""}
    await call(s3.copy_object, **named(key), **replaced, MetadataDirective="REPLACE")
    stored = shared.double.objects("bucket")[key].content
    assert {name: value for name, value in stored.metadata.items() if not name.startswith("fencing-")} == {
        "size": "big"
    }
    assert {name: stored.headers.get(name) for name in KEPT} == dict.fromkeys(KEPT) | {"content-type": "text/plain"}
    assert stored.tags == {"a": "b c", "d": ""}, "tags have a directive of their own"
    await call(s3.copy_object, **named(key), TaggingDirective="REPLACE", Tagging="x=y")
    stored = shared.double.objects("bucket")[key].content
    assert (stored.tags, stored.metadata["colour"]) == ({"x": "y"}, "red")
    await call(s3.copy_object, **named(key), TaggingDirective="REPLACE")
    assert shared.double.objects("bucket")[key].content.tags == {}


class TestChecksum:
    @pytest.mark.parametrize(("named_for_it", "expected"), [({}, "sha1"), ({"ChecksumAlgorithm": "SHA256"}, "sha256")])
    async def test_a_small_copy_keeps_that_of_its_source_or_has_the_one_asked_for(
        self, shared: Stage, key: str, named_for_it: dict[str, Any], expected: str
    ) -> None:
        s3 = connect(shared.origin, "34")
        await call(s3.put_object, Key=f"{key}/a source+ä?", Body=b"hello", ChecksumAlgorithm="SHA1")
        copied = (await call(s3.copy_object, **named(key), **named_for_it))["CopyObjectResult"]
        value = b64encode(hashlib.new(expected, b"hello").digest()).decode()
        assert copied[f"Checksum{expected.upper()}"] == value
        assert shared.double.objects("bucket")[key].content.checksum == Checksum(expected, value)

    async def test_an_unknown_one_is_refused(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        assert await outcome(s3.copy_object, **named(key), ChecksumAlgorithm="ADLER32") == (400, "InvalidRequest")


class TestOntoItself:
    async def test_without_a_change_it_is_a_mistake(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        await call(s3.put_object, Key=key, Body=b"x")
        since = len(shared.double.requests)
        copy = {"Key": key, "CopySource": f"bucket/{key}"}
        assert await outcome(s3.copy_object, **copy) == (400, "InvalidRequest")
        assert await outcome(s3.copy_object, **copy, Tagging="x=y", TaggingDirective="REPLACE") == (
            *(400, "InvalidRequest"),
        )
        assert shared.written(since) == []


class TestSource:
    @pytest.mark.parametrize(
        ("source", "code"), [("tombstone", "NoSuchKey"), ("nothing", "NoSuchKey"), ("no bucket", "NoSuchBucket")]
    )
    async def test_a_missing_source_is_refused(self, shared: Stage, key: str, source: str, code: str) -> None:
        if source == "tombstone":
            await entomb(shared, f"{key}-source")
        since = len(shared.double.requests)
        place = f"{'nowhere' if source == 'no bucket' else 'bucket'}/{key}-source"
        assert await outcome(connect(shared.origin, "34").copy_object, Key=key, CopySource=place) == (404, code)
        assert shared.written(since) == []

    @pytest.mark.parametrize("size", first(SIZES))
    async def test_one_of_its_versions(self, shared: Stage, key: str, size: str) -> None:
        first = await sourced(shared, key, size, bucket="other")
        await call(connect(shared.origin, "7", "source-holder").put_object,
                   Bucket="other", Key=f"{key}/a source+ä?", Body=b"newer")  # fmt: skip
        s3 = connect(shared.origin, "34")
        copied = await call(s3.copy_object, **named(key, "other", VersionId=first["VersionId"]))
        assert copied["CopySourceVersionId"] == first["VersionId"]
        stored = shared.double.objects("bucket")[key].content
        assert stored.body == BODIES[size]
        assert stored.tags == {"a": "b c", "d": ""}
        await call(s3.copy_object, **named(key, "other"))
        assert shared.body(key) == b"newer"

    @pytest.mark.parametrize(("size", "read"), [("large", "UploadPartCopy"), ("small", "GetObject")])
    async def test_one_that_changes_meanwhile(self, shared: Stage, key: str, size: str, read: str) -> None:
        """A copy is of one state of its source, the one before or the one after."""
        await sourced(shared, key, size)
        copying = outcome(connect(shared.origin, "34").copy_object, **named(key))
        held, copy = await shared.late(copying, operation=read)
        shared.double.put("bucket", f"{key}/a source+ä?", BODIES[size].swapcase())
        held.release()
        assert await copy == (200, "")
        assert shared.body(key) == BODIES[size].swapcase()
        assert shared.uploads(key) == []
        assert await shared.count("upload", key) == 0

    async def test_one_that_goes_meanwhile(self, shared: Stage, key: str) -> None:
        await sourced(shared, key)
        copying = outcome(connect(shared.origin, "34").copy_object, **named(key))
        held, copy = await shared.late(copying, operation="GetObject")
        await call(shared.beside().delete_object, Key=f"{key}/a source+ä?")
        held.release()
        assert await copy == (404, "NoSuchKey")
        assert shared.body(key) is None


@pytest.mark.parametrize("size", first(SIZES))
async def test_conditions_on_the_source_and_on_the_target(shared: Stage, key: str, size: str) -> None:
    await sourced(shared, key, size)
    s3 = connect(shared.origin, "34")
    assert await outcome(s3.copy_object, **named(key), CopySourceIfMatch='"other"') == FAILED
    assert await outcome(s3.copy_object, **named(key), IfMatch='"e"') == (404, "NoSuchKey")
    assert await outcome(s3.copy_object, **named(key), IfNoneMatch="*") == (200, "")
    etag = (await call(s3.put_object, Key=key, Body=b"other"))["ETag"]
    before = shared.double.sequence
    assert await outcome(s3.copy_object, **named(key), IfNoneMatch="*") == FAILED
    assert await outcome(s3.copy_object, **named(key), IfMatch='"e"') == FAILED
    assert not shared.applied(before)
    assert await outcome(s3.copy_object, **named(key), IfMatch=etag) == (200, "")
    assert shared.body(key) == BODIES[size]
    assert shared.uploads(key) == []


class TestToken:
    @pytest.mark.parametrize("size", first(reversed(SIZES)))
    async def test_a_stale_one_is_refused_and_on_record(self, shared: Stage, key: str, size: str) -> None:
        await sourced(shared, key, size)
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        since = len(shared.double.requests)
        assert await outcome(connect(shared.origin).copy_object, **named(key)) == (428, "FencingTokenRequired")
        assert await outcome(connect(shared.origin, "33").copy_object, **named(key)) == STALE
        assert shared.written(since) == [], "it is refused before anything is staged"
        (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
        assert (rejection["token"], rejection["fence"], rejection["method"]) == ("33", "34", "PUT")

    @pytest.mark.parametrize(("size", "operation"), [("small", "PutObject"), ("large", "CompleteMultipartUpload")])
    async def test_one_that_is_overtaken_on_its_way(self, shared: Stage, key: str, size: str, operation: str) -> None:
        await sourced(shared, key, size)
        copying = outcome(connect(shared.origin, "33").copy_object, **named(key))
        held, zombie = await shared.late(copying, operation=operation, key=key)
        assert await outcome(connect(shared.origin, "34").put_object, Key=key, Body=b"new") == (200, "")
        held.release()
        assert await zombie == STALE
        assert held.statuses == [412]
        assert shared.body(key) == b"new"
        assert shared.uploads(key) == []
