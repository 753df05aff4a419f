"""Stores that do less than AWS, or take keys for one another: it is found out first, and made up for or refused."""

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import DEAD_AFTER
from gateway.fencing.resource import escape_path
from tests.doubles.s3 import S3Double
from tests.objects.clients import body_of, call, connect, opened, outcome, refused
from tests.objects.object_gateway import ADMIN, Stage, module_stage, staged, store
from tests.objects.test_forms import TOKEN, code, post, signed
from tests.tiers import first

GONE = (404, "NoSuchKey")


@pytest.mark.parametrize(
    ("ignored", "probe"), [("PutObject:If-Match", "put-if-match"), ("PutObject:If-None-Match", "put-if-none-match")]
)
async def test_a_store_that_ignores_conditions_is_not_written_to(
    postgres_server: EmbeddedPostgres, ignored: str, probe: str
) -> None:
    async with staged(postgres_server, store("bucket", ignored_conditions=frozenset({ignored}))) as stage:
        stage.double.put("bucket", "there", b"precious")
        s3 = connect(stage.origin, "33")
        before = stage.double.sequence
        for operation, arguments in ((s3.put_object, {"Key": "k", "Body": b"x"}), (s3.delete_object, {"Key": "there"})):
            status, error, message = await refused(operation, **arguments)
            assert (status, error) == (501, "NotImplemented")
            assert probe in message
            assert "gateway doctor" in message
        assert not stage.applied(before)
        assert set(stage.double.objects("bucket")) == {"there"}, "and the probe leaves nothing behind"
        assert await stage.fence("s3/bucket/k") is None
        assert await body_of(s3, "there") == b"precious", "reads go on"


async def test_without_conditional_deletes_a_tombstone_stands_for_absence(postgres_server: EmbeddedPostgres) -> None:
    async with staged(postgres_server, store("bucket", ignored_conditions=frozenset({"DeleteObject"}))) as stage:
        s3 = connect(stage.origin, "33")
        await call(s3.put_object, Key="k", Body=b"x")
        since = len(stage.double.requests)
        assert await outcome(s3.delete_object, Key="k") == (204, "")
        assert {each.operation for each in stage.written(since)} == {"PutObject"}
        await assert_tombstone(stage, "k")
        assert await outcome(s3.delete_object, Key="k") == (204, ""), "deleting nothing succeeds"
        assert await outcome(s3.put_object, Key="k", Body=b"y", IfMatch='"e"') == GONE
        assert await outcome(s3.put_object, Key="k", Body=b"y", IfNoneMatch="*") == (200, ""), "it counts as absent"
        assert await body_of(s3, "k") == b"y"
        assert await outcome(connect(stage.origin, "32").delete_object, Key="k") == (412, "StaleFencingToken")


async def assert_tombstone(stage: Stage, key: str) -> None:
    """Assert that an object exists and that no client can see it."""
    s3 = connect(stage.origin)
    assert stage.double.objects("bucket")[key].content.metadata["fencing-tombstone"] == "true"
    assert await outcome(s3.get_object, Key=key) == GONE
    assert (await outcome(s3.head_object, Key=key))[0] == 404
    assert await outcome(s3.get_object, Key=key, Range="bytes=0-3") == GONE


async def test_where_etags_are_unique(postgres_server: EmbeddedPostgres) -> None:
    async with staged(postgres_server, store("bucket", etags="unique")) as stage:
        s3 = connect(stage.origin, "33")
        etags = [(await call(s3.put_object, Key="k", Body=b"same"))["ETag"] for _ in range(3)]
        assert len(set(etags)) == 3
        assert (await call(s3.head_object, Key="k"))["ETag"] == etags[-1]
        putting = outcome(s3.put_object, Key="k", Body=b"zombie")
        held, zombie = await stage.late(putting, operation="PutObject", key="k")
        successor = connect(stage.origin, "34")
        assert await outcome(successor.put_object, Key="k", Body=b"same") == (200, "")
        held.release()
        assert await zombie == (412, "StaleFencingToken")
        assert stage.body("k") == b"same"
        assert await outcome(successor.delete_object, Key="k") == (204, "")
        assert await outcome(successor.get_object, Key="k") == (404, "NoSuchKey")
        assert await stage.count("tombstone", "k") == 1, "a copy of the older holder's create may still come"


async def test_where_etags_are_unique_but_for_the_writers_own_encryption(postgres_server: EmbeddedPostgres) -> None:
    """The zombie's condition is on the hash of X, which its successor writes again."""
    async with staged(postgres_server, store("bucket", etags="unique")) as stage:
        old, new = connect(stage.origin, "33"), connect(stage.origin, "34")
        first = await call(old.put_object, Key="k", Body=b"X", ServerSideEncryption="AES256")
        putting = outcome(old.put_object, Key="k", Body=b"zombie")
        held, zombie = await stage.late(putting, operation="PutObject", key="k")
        since = stage.applied(0)[-1].sequence
        await call(new.put_object, Key="k", Body=b"Z")
        again = await call(new.put_object, Key="k", Body=b"X", ServerSideEncryption="AES256")
        assert first["ETag"] not in {f'"{each.etag}"' for each in stage.applied(since)}
        assert again["ETag"] != first["ETag"]
        held.release()
        assert await zombie == (412, "StaleFencingToken")
        assert stage.body("k") == b"X"


# MinIO takes keys that end in a slash by PutObject only, so that bytes have one ETag there.

MARKERS: dict[str, Any] = {"marker_uploads": "refused", "ignored_conditions": frozenset({"DeleteObject"})}


def with_markers() -> S3Double:
    return store("bucket", **MARKERS)


markers = module_stage(with_markers)


async def put_marker(stage: Stage, s3: S3Client, key: str) -> tuple[int, str]:
    return await outcome(s3.put_object, Key=key, Body=b"")


async def copy_marker(stage: Stage, s3: S3Client, key: str) -> tuple[int, str]:
    await call(s3.put_object, Key="empty", Body=b"")
    return await outcome(s3.copy_object, Key=key, CopySource="bucket/empty")


async def post_marker(stage: Stage, s3: S3Client, key: str) -> tuple[int, str]:
    return (await post(signed(stage.origin, key, {TOKEN: "33"}), b"")).status_code, ""


async def delete_marker(stage: Stage, s3: S3Client, key: str) -> tuple[int, str]:
    return await outcome(s3.delete_object, Key=key)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("make", [put_marker, copy_marker, post_marker])
async def test_a_directory_is_made_and_removed_again_and_again(markers: Stage, key: str, make: Any) -> None:
    s3, key = connect(markers.origin, "33"), f"{key}/"
    for change in (make, make, delete_marker, make, make, delete_marker, delete_marker, make):
        status, error = await change(markers, s3, key)
        assert status in (200, 204), error
        assert (key in await _listed(s3, key)) == (change is make)
    assert await outcome(connect(markers.origin, "32").put_object, Key=key, Body=b"") == (412, "StaleFencingToken")
    assert await markers.count("intent", key) == 0


async def _listed(s3: S3Client, prefix: str) -> set[str]:
    return {one["Key"] for one in (await call(s3.list_objects_v2, Prefix=prefix)).get("Contents", [])}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("arrives", [True, False])
async def test_a_late_write_of_a_directory_is_waited_for(markers: Stage, key: str, *, arrives: bool) -> None:
    """Its condition cannot be made to fail, because the bytes have no other ETag."""
    key = f"{key}/"
    old, new = connect(markers.origin, "33"), connect(markers.origin, "34")
    await call(old.put_object, Key=key, Body=b"")
    held, zombie = await markers.late(outcome(old.put_object, Key=key, Body=b"late"), operation="PutObject", key=key)
    resource = f"s3/bucket/{escape_path(key)}"
    blocked = await markers.barrier(resource, "34")
    assert (blocked.status_code, "clears_at" in blocked.json()) == (503, True), blocked.text
    assert (await outcome(new.put_object, Key=key, Body=b""))[0] == 503, "the only form is waited for"
    try:
        if arrives:
            held.release()
            await zombie
        else:
            markers.double.behave(clock_offset=DEAD_AFTER.total_seconds() + 2)
        assert (await markers.barrier(resource, "34")).status_code == 200
        assert await outcome(new.put_object, Key=key, Body=b"newer") == (200, "")
        held.release()
        await zombie
        assert markers.body(key) == b"newer"
    finally:
        markers.double.behave(clock_offset=0.0)
        await call(connect(markers.origin).head_object, Key=key)


async def test_equal_bytes_with_one_form_are_refused_while_they_stand(postgres_server: EmbeddedPostgres) -> None:
    """Only with ``duplicates = "wait"``: no copy of the first write may pass for the second."""
    async with staged(postgres_server, with_markers(), s3={"duplicates": "wait"}) as stage:
        s3 = connect(stage.origin, "33")
        await call(s3.put_object, Key="d/", Body=b"")
        for _ in range(2):
            status, error, message = await refused(s3.put_object, Key="d/", Body=b"")
            assert (status, error) == (503, "ServiceUnavailable")
            assert "delete the object" in message
            stage.double.behave(clock_offset=DEAD_AFTER.total_seconds() + 2)
            await call(connect(stage.origin).head_object, Key="d/")
        assert await outcome(s3.put_object, Key="d/", Body=b"other") == (200, "")
        assert await outcome(s3.delete_object, Key="d/") == (204, "")
        stage.double.behave(clock_offset=2 * (DEAD_AFTER.total_seconds() + 2))
        await outcome(s3.head_object, Key="d/")
        assert await outcome(s3.put_object, Key="d/", Body=b"") == (200, "")


# No way of writing gets at an object by another spelling of its key, even if keys are taken for one another.

TAGS = {"TagSet": [{"Key": "by", "Value": "an older holder"}]}


LARGE = b"x" * 4096


Attempt = Callable[[Stage, S3Client, str], Awaitable[tuple[int, str, str]]]


def through(operation: str, **arguments: Any) -> Attempt:
    """A call of boto3 with a key of the test's choice."""

    async def attempt(_: Stage, s3: S3Client, key: str) -> tuple[int, str, str]:
        return await refused(getattr(s3, operation), Key=key, **arguments)

    return attempt


async def one_of_many(_: Stage, s3: S3Client, key: str) -> tuple[int, str, str]:
    """DeleteObjects: the others go their way."""
    answer = await call(s3.delete_objects, Delete={"Objects": [{"Key": key}, {"Key": "another"}]})
    assert [each["Key"] for each in answer["Deleted"]] == ["another"]
    (error,) = answer["Errors"]
    assert error["Key"] == key
    return 400, error["Code"], error["Message"]


async def by_form(stage: Stage, _: S3Client, key: str) -> tuple[int, str, str]:
    answer = await post(signed(stage.origin, key, {TOKEN: "1"}))
    return *code(answer), answer.text


MUTATIONS: dict[str, Attempt] = {
    "put": through("put_object", Body=b"late"),
    "put, conditional": through("put_object", Body=b"late", IfNoneMatch="*"),
    "put, in parts": through("put_object", Body=LARGE),
    "form": by_form,
    "copy": through("copy_object", CopySource="bucket/source"),
    "upload": through("create_multipart_upload"),
    "delete": through("delete_object"),
    "delete of a version": through("delete_object", VersionId="null"),
    "delete of many": one_of_many,
    "tags": through("put_object_tagging", Tagging=TAGS),
    "no tags": through("delete_object_tagging"),
    "ACL": through("put_object_acl", ACL="private"),
}


AS_PATHS = ["/d/k", "//d/k", "d//k", "d/./k", "./d/k", "d/../d/k", "d/k/", "d/k/."]


# A store that takes keys for paths; each test keeps to a directory of its own.
paths = module_stage(lambda: store("bucket", keys="paths"), limits={"memory_threshold": 1024})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("mutation", first(MUTATIONS))
async def test_an_older_holder_has_no_other_spelling(paths: Stage, mutation: str) -> None:
    """The key in another spelling has a fence of its own, which knows nothing of the newer holder."""
    directory = uuid4().hex
    plain = f"{directory}/k"
    newer, older = connect(paths.origin, "2"), connect(paths.origin, "1")
    await call(newer.put_object, Key=plain, Body=b"the newer holder's")
    await call(older.put_object, Key="source", Body=b"late")
    assert (await refused(older.put_object, Key=plain, Body=b"late"))[:2] == (412, "StaleFencingToken")
    before = paths.double.sequence
    for path in AS_PATHS:
        key = path.replace("d", directory)
        status, error, message = await MUTATIONS[mutation](paths, older, key)
        assert (status, error) == (400, "InvalidArgument"), key
        assert "Nothing was written" in message
        assert "refused" in message
        assert await paths.fence(f"s3/bucket/{escape_path(key)}") is None, "nobody has been acknowledged"
    assert not [each for each in paths.applied(before) if each.key != "another"]
    assert not paths.double.store.bucket("bucket").uploads.running(now=paths.double.service.now())
    assert paths.body(plain) == b"the newer holder's"
    assert await body_of(older, f"{directory}//k") == b"the newer holder's", "reads pass"
    assert await outcome(newer.put_object, Key=plain, Body=b"again") == (200, ""), "the plain key is as ever"
    assert await outcome(newer.delete_object, Key=plain) == (204, "")


@pytest.mark.thorough
async def test_an_upload_of_old_is_not_completed(postgres_server: EmbeddedPostgres) -> None:
    """One that was opened when the bucket, or what is in front of it, was another."""
    async with staged(postgres_server, store("bucket"), callers=[ADMIN]) as stage:
        older = connect(stage.origin, "1")
        completion = await opened(older, "/k", [b"late"])
        stage.double.behave(keys="paths")
        enabled = {"Status": "Enabled"}
        await call(connect(stage.origin).put_bucket_versioning, VersioningConfiguration=enabled)  # probed anew
        refusal = await refused(older.complete_multipart_upload, **completion)
        assert refusal[:2] == (400, "InvalidArgument"), refusal
        assert stage.body("k") is None
