"""A request that reaches the store a second time, long after it was answered, undoes nothing that came after it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import Duplicates
from tests.doubles.s3 import Rule, S3Double
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged
from tests.objects.sweeping import forgetful, sweeper
from tests.running import ACCESS_KEY, SECRET_KEY
from tests.waiting import PATIENCE

ADMIN = {"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "groups": ["admins"]}
GONE = (404, "NoSuchKey")
DONE = (200, "")
TAGS = {"TagSet": [{"Key": "stage", "Value": "draft"}]}

both = pytest.mark.parametrize("duplicates", Duplicates)


@asynccontextmanager
async def repeating(
    postgres: EmbeddedPostgres, duplicates: Duplicates, double: S3Double | None = None, **sections: Any
) -> AsyncIterator[Stage]:
    settings = {"duplicates": duplicates, "pending_wait": 0.1}
    async with staged(postgres, double, s3=settings, **sections) as stage:
        yield stage


async def arrives_again(copy: Rule) -> list[int | None]:
    """Return the store's answers to the copy."""
    copy.release()
    async with asyncio.timeout(PATIENCE):
        await copy.finished.wait()
    return copy.statuses


async def half_an_hour_later(stage: Stage) -> None:
    """The signatures of everything that is over are dead."""
    await stage.rows("UPDATE fencing.spent SET dead_at = dead_at - interval '31 minutes'")
    await stage.rows("UPDATE fencing.forbidden SET dead_at = dead_at - interval '31 minutes'")


@both
async def test_an_acknowledged_object_stays(postgres_server: EmbeddedPostgres, duplicates: Duplicates) -> None:
    async with repeating(postgres_server, duplicates) as stage:
        before = await call(connect(stage.origin, "42").put_object, Key="k", Body=b"state")
        copy = stage.double.repeat(operation="PutObject", key="k")
        await call(connect(stage.origin, "43").put_object, Key="k", Body=b"other")
        after = await call(connect(stage.origin, "52").put_object, Key="k", Body=b"state")
        assert await arrives_again(copy) == [412]
        assert stage.body("k") == b"state"
        assert before["ETag"] != after["ETag"]


@pytest.mark.thorough
@both
@pytest.mark.parametrize("conditional", [True, False])
async def test_a_deleted_object_that_was_written_again_stays(
    postgres_server: EmbeddedPostgres,
    duplicates: Duplicates,
    conditional: bool,  # noqa: FBT001
) -> None:
    """Also where a delete is the write of a tombstone."""
    double = S3Double(buckets=["bucket"]) if conditional else forgetful()
    double.put("bucket", "k", b"state")
    async with repeating(postgres_server, duplicates, double) as stage:
        copy = double.repeat(operation="DeleteObject" if conditional else "PutObject", key="k")
        await call(connect(stage.origin, "43").delete_object, Key="k")
        await call(connect(stage.origin, "52").put_object, Key="k", Body=b"state")
        assert await arrives_again(copy) == [412]
        assert await body_of(connect(stage.origin), "k") == b"state"


@both
async def test_a_newer_holders_delete_stays(postgres_server: EmbeddedPostgres, duplicates: Duplicates) -> None:
    """A tombstone stands for absence until the signature of the create is dead."""
    async with repeating(postgres_server, duplicates) as stage, sweeper(stage) as (sweeping, _):
        copy = stage.double.repeat(operation="PutObject", key="k")
        await call(connect(stage.origin, "43").put_object, Key="k", Body=b"made")
        await call(connect(stage.origin, "52").delete_object, Key="k")
        assert await sweeping.sweep_tombstones() == 0
        assert await arrives_again(copy) == [412]
        assert await outcome(connect(stage.origin).get_object, Key="k") == GONE
        await half_an_hour_later(stage)
        assert await sweeping.sweep_tombstones() == 1
        assert stage.body("k") is None


@both
async def test_the_condition_of_a_write_that_failed_is_remembered(
    postgres_server: EmbeddedPostgres, duplicates: Duplicates
) -> None:
    """The first attempt takes the key to be absent, because nothing is known of it."""
    double = S3Double(buckets=["bucket"])
    double.put("bucket", "k", b"from before")
    async with repeating(postgres_server, duplicates, double) as stage:
        copy = double.repeat(operation="PutObject", key="k")
        await call(connect(stage.origin, "43").put_object, Key="k", Body=b"made")
        await call(connect(stage.origin, "52").delete_object, Key="k")
        assert await arrives_again(copy) == [412]
        assert await outcome(connect(stage.origin).get_object, Key="k") == GONE


async def test_two_contents_in_turn_pass_by_default(postgres_server: EmbeddedPostgres) -> None:
    async with repeating(postgres_server, Duplicates.TOLERATE) as stage:
        writer = connect(stage.origin, "1")
        etags = [(await call(writer.put_object, Key="k", Body=body))["ETag"] for body in (b"a", b"b") * 4]
        assert etags[:4] == etags[4:], "the form that was used longest ago comes first"
        assert len(set(etags[:4])) == 4


async def test_two_contents_in_turn_wait(postgres_server: EmbeddedPostgres) -> None:
    async with repeating(postgres_server, Duplicates.WAIT) as stage:
        writer = connect(stage.origin, "1")
        for body in (b"a", b"b", b"a", b"b"):
            await call(writer.put_object, Key="k", Body=body)
        status, _, message = await refused(writer.put_object, Key="k", Body=b"a")
        assert status == 503
        assert "Nothing was written" in message
        assert stage.body("k") == b"b"
        assert await outcome(writer.put_object, Key="k", Body=b"c") == DONE, "other bytes need not wait"
        await half_an_hour_later(stage)
        assert await outcome(writer.put_object, Key="k", Body=b"a") == DONE


@both
async def test_the_same_upload_again(postgres_server: EmbeddedPostgres, duplicates: Duplicates) -> None:
    """Its bytes have one form only. If the gateway waits, the wait resolves the conflict."""
    async with repeating(postgres_server, duplicates) as stage:
        writer = connect(stage.origin, "1")

        async def upload() -> tuple[int, str]:
            place: Any = {"Key": "k", "UploadId": (await call(writer.create_multipart_upload, Key="k"))["UploadId"]}
            etag = (await call(writer.upload_part, **place, PartNumber=1, Body=b"large"))["ETag"]
            parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
            return await outcome(writer.complete_multipart_upload, **place, MultipartUpload=parts)

        assert await upload() == DONE
        again = [(await upload())[0] for _ in range(2)]
        assert again == [200, 200] if duplicates is Duplicates.TOLERATE else [503, 503]
        await half_an_hour_later(stage)
        assert await upload() == DONE
        assert stage.body("k") == b"large"


async def test_an_amendment_stays_announced_where_writes_wait(postgres_server: EmbeddedPostgres) -> None:
    """It has no condition, so nothing but the end of its signature stops a copy."""
    async with repeating(postgres_server, Duplicates.WAIT) as stage:
        await call(connect(stage.origin, "43").put_object, Key="k", Body=b"x")
        assert await outcome(connect(stage.origin, "43").put_object_tagging, Key="k", Tagging=TAGS) == DONE
        assert (await stage.barrier("s3/bucket/k", "52")).status_code == 503
        await stage.rows("UPDATE fencing.intent SET signed_at = signed_at - interval '8 minutes'")
        assert (await stage.barrier("s3/bucket/k", "52")).status_code == 200
        assert await outcome(connect(stage.origin, "52").put_object, Key="k", Body=b"y") == DONE


@both
async def test_a_bucket_keeps_young_tombstones(postgres_server: EmbeddedPostgres, duplicates: Duplicates) -> None:
    async with repeating(postgres_server, duplicates, callers=[ADMIN]) as stage:
        await call(connect(stage.origin, "1").put_object, Key="k", Body=b"x")
        await call(connect(stage.origin, "2").delete_object, Key="k")
        assert await outcome(connect(stage.origin, "2").delete_bucket) == (409, "BucketNotEmpty")
        await half_an_hour_later(stage)
        assert await outcome(connect(stage.origin, "2").delete_bucket) == (204, "")


async def test_a_delete_of_the_holders_own_object_leaves_no_tombstone_by_default(
    postgres_server: EmbeddedPostgres,
) -> None:
    async with repeating(postgres_server, Duplicates.TOLERATE) as stage:
        writer = connect(stage.origin, "1")
        await call(writer.put_object, Key="k", Body=b"x")
        await call(writer.delete_object, Key="k")
        assert stage.body("k") is None
        assert await stage.count("tombstone", "k") == 0


async def test_dead_conditions_are_swept(postgres_server: EmbeddedPostgres) -> None:
    async with repeating(postgres_server, Duplicates.TOLERATE) as stage, sweeper(stage) as (sweeping, _):
        await call(connect(stage.origin, "1").put_object, Key="k", Body=b"x")
        assert (await sweeping.sweep()).conditions == 0
        await half_an_hour_later(stage)
        assert (await sweeping.sweep()).conditions >= 1
        assert await stage.count("spent", "k") == 0
