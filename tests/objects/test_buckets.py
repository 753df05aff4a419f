"""Buckets are administered by callers who may, and it is on record before the store is asked."""

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.store.probe import PREFIX
from gateway.observe.events import BucketAdministered
from tests.objects.clients import call, connect, outcome, refused
from tests.objects.object_gateway import (
    ADMIN,
    WRITER,
    RecordingDouble,
    Stage,
    entomb,
    forgetful,
    module_stage,
    recorded,
    staged,
)
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = {"access_key": "AKIAROOT", "secret_key": "root-secret"}


CALLERS = [WRITER, {**ADMIN, "name": "root", "access_key_id": "AKIAROOT", "secret_access_key": "root-secret",
                    "api_key": "root-key"}]  # fmt: skip


DENIED = (403, "AccessDenied")


ENABLED: Any = {"Status": "Enabled"}


shared = module_stage(RecordingDouble, callers=CALLERS, limits={"store_timeout": 10.0})


@pytest.fixture
def bucket() -> str:
    """The name of a bucket that no other test uses and that does not exist yet."""
    return f"bucket-{uuid4().hex[:12]}"


async def on_record(stage: Stage, bucket: str) -> list[tuple[str, str, str]]:
    """Return each caller, its operation on the bucket, and the target."""
    rows = await stage.rows("SELECT * FROM fencing.administration WHERE bucket = $1 ORDER BY at", bucket)
    assert all(row["client"] == "127.0.0.1" and row["request_id"] for row in rows)
    return [(row["caller"], row["operation"], row["target"]) for row in rows]


def everything(s3: S3Client) -> dict[str, tuple[Any, dict[str, Any]]]:
    return {
        "CreateBucket": (s3.create_bucket, {}),
        "PutBucketVersioning": (s3.put_bucket_versioning, {"VersioningConfiguration": ENABLED}),
        "DeleteBucket": (s3.delete_bucket, {}),
    }


async def test_an_admin_administers(shared: Stage, bucket: str) -> None:
    """No token is asked for: a bucket is no object."""
    s3 = connect(shared.origin, **ROOT)
    assert await outcome(s3.create_bucket, Bucket=bucket) == (200, "")
    assert bucket in shared.double.store.buckets
    assert await outcome(s3.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=ENABLED) == (200, "")
    assert shared.double.store.bucket(bucket).versioning == "Enabled"
    assert await outcome(s3.delete_bucket, Bucket=bucket) == (204, "")
    assert bucket not in shared.double.store.buckets
    assert await on_record(shared, bucket) == [
        ("root", "CreateBucket", f"PUT /{bucket}"),
        ("root", "PutBucketVersioning", f"PUT /{bucket}?versioning"),
        ("root", "DeleteBucket", f"DELETE /{bucket}"),
    ]
    told = [each for each in shared.events if isinstance(each, BucketAdministered) and each.bucket == bucket]
    assert [(each.caller, each.operation, each.status) for each in told] == [
        ("root", "CreateBucket", 200),
        ("root", "PutBucketVersioning", 200),
        ("root", "DeleteBucket", 204),
    ]


@pytest.mark.parametrize("caller", ["writer", "fenced", "fenced for the bucket"])
async def test_a_caller_without_the_right_does_not(shared: Stage, bucket: str, caller: str) -> None:
    """Fenced credentials are good for the writes they name, even if an admin has them."""
    s3 = connect(shared.origin, "34") if caller == "writer" else await fenced(shared, bucket, caller)
    since = len(recorded(shared).asked)
    for operation, (function, arguments) in everything(s3).items():
        there = operation != "CreateBucket"
        if there and bucket not in shared.double.store.buckets:
            shared.double.store.create_bucket(bucket, shared.double.service.now())
        assert await outcome(function, Bucket=bucket, **arguments) == DENIED
        assert (bucket in shared.double.store.buckets) == there
    assert recorded(shared).changing(since) == []
    assert await on_record(shared, bucket) == []


@pytest.mark.parametrize(
    ("resource", "read", "answer"),
    [
        ("s3/{bucket}/**", "own", (409, "BucketAlreadyOwnedByYou")),
        ("s3/{bucket}/one/key", "own", (409, "BucketAlreadyOwnedByYou")),
        ("s3/other/**", "own", DENIED),
        ("s3/other/**", "all", DENIED),
    ],
)
async def test_a_writer_that_creates_its_bucket_hears_that_it_exists(
    shared: Stage, bucket: str, resource: str, read: str, answer: tuple[int, str]
) -> None:
    """rclone does so before each upload. A caller that may not write there does not even hear this."""
    issued = await shared.issued("root-key", resource=resource.format(bucket=bucket), token="34", read=read)
    s3, since = connect(shared.origin, **issued), len(recorded(shared).asked)
    status, code, message = await refused(s3.create_bucket, Bucket=bucket)
    assert (status, code) == DENIED
    assert "Fenced credentials administer no bucket." in message
    shared.double.store.create_bucket(bucket, shared.double.service.now())
    assert await outcome(s3.create_bucket, Bucket=bucket) == answer
    assert recorded(shared).changing(since) == []
    asked = [each.path for each in recorded(shared).asked[since:]]
    assert asked == ([f"/{bucket}"] * 2 if answer != DENIED else []), "existence is not even asked for"
    assert await on_record(shared, bucket) == []


async def test_a_store_that_is_away_does_not_pass_for_a_missing_bucket(shared: Stage, bucket: str) -> None:
    """rclone takes a refusal for final."""
    shared.double.store.create_bucket(bucket, shared.double.service.now())
    failing = shared.double.fail(status=500, operation="HeadBucket", bucket=bucket, times=None)
    assert (await outcome(connect(shared.origin, "34").create_bucket, Bucket=bucket))[0] == 503
    shared.double.faults.remove(failing)


async def fenced(stage: Stage, bucket: str, caller: str) -> S3Client:
    """A client with fenced credentials that were issued to the admin."""
    resource = f"s3/{bucket}" if caller == "fenced for the bucket" else f"s3/{bucket}/**"
    return connect(stage.origin, **await stage.issued("root-key", resource=resource, token="34"))


class TestOnRecord:
    async def test_it_is_before_the_store_is_asked(self, shared: Stage, bucket: str) -> None:
        root = connect(shared.origin, **ROOT)
        creating = outcome(root.create_bucket, Bucket=bucket)
        held, create = await shared.late(creating, at="arrival", operation="CreateBucket", bucket=bucket)
        assert await on_record(shared, bucket) == [("root", "CreateBucket", f"PUT /{bucket}")]
        assert bucket not in shared.double.store.buckets
        held.release()
        assert await create == (200, "")

    @pytest.mark.parametrize("operation", first(["CreateBucket", "PutBucketVersioning", "DeleteBucket"]))
    async def test_it_is_even_if_the_store_is_down(self, shared: Stage, bucket: str, operation: str) -> None:
        cut = shared.double.cut(operation=operation, bucket=bucket, times=None)
        function, arguments = everything(connect(shared.origin, **ROOT))[operation]
        assert await outcome(function, Bucket=bucket, **arguments) == (503, "FencingOutcomeUnknown")
        shared.double.faults.remove(cut)
        assert [name for _, name, _ in await on_record(shared, bucket)] == [operation]

    async def test_without_a_record_the_store_is_not_asked(self, shared: Stage, bucket: str) -> None:
        closed = "ADD CONSTRAINT closed CHECK (kind <> 'administration') NOT VALID"
        await shared.rows(f"ALTER TABLE fencing.intake {closed}")
        try:
            since = len(recorded(shared).asked)
            status, _ = await outcome(connect(shared.origin, **ROOT).create_bucket, Bucket=bucket)
            assert status >= 500
            assert recorded(shared).asked[since:] == []
            assert bucket not in shared.double.store.buckets
        finally:
            await shared.rows("ALTER TABLE fencing.intake DROP CONSTRAINT closed")


class TestProfile:
    async def test_it_is_found_out_again_when_versioning_changes(self, shared: Stage, bucket: str) -> None:
        root, s3 = connect(shared.origin, **ROOT), connect(shared.origin, "34")
        await call(root.create_bucket, Bucket=bucket)
        assert await probed(shared, bucket, s3), "once"
        assert not await probed(shared, bucket, s3)
        await call(root.put_bucket_versioning, Bucket=bucket, VersioningConfiguration=ENABLED)
        assert await probed(shared, bucket, s3)
        assert not await probed(shared, bucket, s3)

    async def test_a_bucket_that_comes_back_is_another_one(self, shared: Stage, bucket: str) -> None:
        root, s3 = connect(shared.origin, **ROOT), connect(shared.origin, "34")
        await call(root.create_bucket, Bucket=bucket)
        assert await probed(shared, bucket, s3)
        await call(s3.delete_object, Bucket=bucket, Key="k")
        await call(root.delete_bucket, Bucket=bucket)
        await call(root.create_bucket, Bucket=bucket)
        assert await probed(shared, bucket, s3)


async def probed(stage: Stage, bucket: str, s3: S3Client) -> bool:
    """Whether a write has the store probed."""
    since = len(stage.double.requests)
    await call(s3.put_object, Bucket=bucket, Key="k", Body=b"x")
    return any((each.key or "").startswith(PREFIX) for each in stage.double.requests[since:])


# Tombstones hinder no client: a bucket with nothing else can be deleted, and one with versions shows markers.

NOT_EMPTY = (409, "BucketNotEmpty")


@pytest_asyncio.fixture(loop_scope="module")
async def burying(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, forgetful("bucket", "other"), callers=[ADMIN]) as one:
        yield one


async def test_tombstones_that_may_go_do_not_keep_a_bucket(burying: Stage) -> None:
    client = connect(burying.origin, "1")
    for key in ("a", "b/c"):
        await call(client.put_object, Key=key, Body=b"x")
        await call(client.delete_object, Key=key)
    await entomb(burying, "elsewhere", bucket="other")
    assert len(burying.double.objects("bucket")) == 2
    assert await outcome(client.delete_bucket) == (204, "")
    assert set(burying.double.store.buckets) == {"other"}
    assert set(burying.double.objects("other")) == {"elsewhere"}, "only what is in the bucket is swept for it"
    assert [event.status for event in burying.events if isinstance(event, BucketAdministered)] == [204]
    assert len(await burying.rows("SELECT FROM fencing.administration")) == 1


async def test_tombstones_that_have_to_stay_are_named_as_the_reason(burying: Stage) -> None:
    await entomb(burying, "a")
    await entomb(burying, "b", forbidden=True)
    status, code, message = await refused(connect(burying.origin).delete_bucket)
    assert (status, code) == NOT_EMPTY
    assert "late request may be waiting" in message
    assert set(burying.double.objects("bucket")) == {"b"}


@pytest.mark.thorough
async def test_an_object_is_reason_enough(burying: Stage) -> None:
    await entomb(burying, "a")
    burying.double.put("bucket", "b", b"x")
    status, code, message = await refused(connect(burying.origin).delete_bucket)
    assert (status, code) == NOT_EMPTY
    assert "late" not in message
    assert set(burying.double.objects("bucket")) == {"a", "b"}
    burying.double.put("other", "b", b"x")
    assert await outcome(connect(burying.origin).delete_bucket, Bucket="other") == NOT_EMPTY


@pytest.mark.thorough
@pytest.mark.parametrize("many", [False, True])
async def test_a_tombstone_reads_as_a_delete_marker(burying: Stage, *, many: bool) -> None:
    client = connect(burying.origin, "1")
    await call(client.put_bucket_versioning, VersioningConfiguration={"Status": "Enabled"})
    await call(client.put_object, Key="k", Body=b"x")
    if many:
        (said,) = (await call(client.delete_objects, Delete={"Objects": [{"Key": "k"}]}))["Deleted"]
        marker = said["DeleteMarkerVersionId"]
    else:
        said = await call(client.delete_object, Key="k")
        marker = said["VersionId"]
    assert said["DeleteMarker"] is True
    for version, expected in ((None, (404, "NoSuchKey")), (marker, (405, "MethodNotAllowed"))):
        with pytest.raises(ClientError) as refusal:
            await call(client.get_object, Key="k", **({"VersionId": version} if version else {}))
        answer = refusal.value.response
        assert (answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]) == expected
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        assert (headers["x-amz-delete-marker"], headers["x-amz-version-id"]) == ("true", marker)
