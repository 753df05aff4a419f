"""Tombstones hinder no client: a bucket with nothing else can be deleted, and one with versions shows markers."""

from collections.abc import AsyncIterator

import pytest
from botocore.exceptions import ClientError

from gateway.demo.embedded import EmbeddedPostgres
from gateway.observe.events import BucketAdministered
from tests.objects.clients import call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged
from tests.objects.sweeping import entomb, forgetful
from tests.running import ACCESS_KEY, SECRET_KEY

ADMIN = {"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "groups": ["admins"]}
NOT_EMPTY = (409, "BucketNotEmpty")


@pytest.fixture
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, forgetful("bucket", "other"), callers=[ADMIN]) as one:
        yield one


async def test_tombstones_that_may_go_do_not_keep_a_bucket(stage: Stage) -> None:
    client = connect(stage.origin, "1")
    for key in ("a", "b/c"):
        await call(client.put_object, Key=key, Body=b"x")
        await call(client.delete_object, Key=key)
    await entomb(stage, "elsewhere", bucket="other")
    assert len(stage.double.objects("bucket")) == 2
    assert await outcome(client.delete_bucket) == (204, "")
    assert set(stage.double.store.buckets) == {"other"}
    assert set(stage.double.objects("other")) == {"elsewhere"}, "only what is in the bucket is swept for it"
    assert [event.status for event in stage.events if isinstance(event, BucketAdministered)] == [204]
    assert len(await stage.rows("SELECT FROM fencing.administration")) == 1


async def test_tombstones_that_have_to_stay_are_named_as_the_reason(stage: Stage) -> None:
    await entomb(stage, "a")
    await entomb(stage, "b", forbidden=True)
    status, code, message = await refused(connect(stage.origin).delete_bucket)
    assert (status, code) == NOT_EMPTY
    assert "late request may be waiting" in message
    assert set(stage.double.objects("bucket")) == {"b"}


async def test_an_object_is_reason_enough(stage: Stage) -> None:
    await entomb(stage, "a")
    stage.double.put("bucket", "b", b"x")
    status, code, message = await refused(connect(stage.origin).delete_bucket)
    assert (status, code) == NOT_EMPTY
    assert "late" not in message
    assert set(stage.double.objects("bucket")) == {"a", "b"}
    stage.double.put("other", "b", b"x")
    assert await outcome(connect(stage.origin).delete_bucket, Bucket="other") == NOT_EMPTY


@pytest.mark.thorough
@pytest.mark.parametrize("many", [False, True])
async def test_a_tombstone_reads_as_a_delete_marker(stage: Stage, *, many: bool) -> None:
    client = connect(stage.origin, "1")
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
