"""Stores that take keys for one another: there, no way of writing gets at an object by another spelling of its key."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.resource import escape_path
from tests.doubles.s3 import S3Double
from tests.objects import test_forms as forms
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

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


async def form(stage: Stage, _: S3Client, key: str) -> tuple[int, str, str]:
    answer = await forms.post(forms.signed(stage.origin, key, {forms.TOKEN: "1"}))
    return *forms.code(answer), answer.text


MUTATIONS: dict[str, Attempt] = {
    "put": through("put_object", Body=b"late"),
    "put, conditional": through("put_object", Body=b"late", IfNoneMatch="*"),
    "put, in parts": through("put_object", Body=LARGE),
    "form": form,
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


def store(**behaviour: Any) -> S3Double:
    one = S3Double(buckets=["bucket"])
    one.behave(**behaviour)
    return one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def paths(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """A store that takes keys for paths; each test keeps to a directory of its own."""
    async with staged(postgres_server, store(keys="paths"), s3={"memory_threshold": 1024}) as one:
        yield one


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("mutation", MUTATIONS)
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
        status, code, message = await MUTATIONS[mutation](paths, older, key)
        assert (status, code) == (400, "InvalidArgument"), key
        assert "Nothing was written" in message
        assert "refused" in message
        assert await paths.fence(f"s3/bucket/{escape_path(key)}") is None, "nobody has been acknowledged"
    assert not [each for each in paths.applied(before) if each.key != "another"]
    assert not paths.double.store.bucket("bucket").uploads.running(now=paths.double.service.now())
    assert paths.body(plain) == b"the newer holder's"
    assert await body_of(older, f"{directory}//k") == b"the newer holder's", "reads pass"
    assert await outcome(newer.put_object, Key=plain, Body=b"again") == (200, ""), "the plain key is as ever"
    assert await outcome(newer.delete_object, Key=plain) == (204, "")


async def test_an_upload_of_old_is_not_completed(postgres_server: EmbeddedPostgres) -> None:
    """One that was opened when the bucket, or what is in front of it, was another."""
    root = {
        "name": "root", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY,
        "groups": ["admins"],
    }  # fmt: skip
    async with staged(postgres_server, store(), callers=[root]) as stage:
        older = connect(stage.origin, "1")
        upload = {"Key": "/k", "UploadId": (await call(older.create_multipart_upload, Key="/k"))["UploadId"]}
        etag = (await call(older.upload_part, **upload, PartNumber=1, Body=b"late"))["ETag"]
        stage.double.behave(keys="paths")
        enabled = {"Status": "Enabled"}
        await call(connect(stage.origin).put_bucket_versioning, VersioningConfiguration=enabled)  # probed anew
        parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
        status, code, message = await refused(older.complete_multipart_upload, **upload, MultipartUpload=parts)
        assert (status, code) == (400, "InvalidArgument"), message
        assert stage.body("k") is None


@pytest.mark.thorough
@pytest.mark.parametrize(("plain", "other"), [("k", "K"), ("a/k", "A/k"), ("e", "\u00e9"), ("e", "e\u0301")])
async def test_letters_that_are_one_to_the_store(postgres_server: EmbeddedPostgres, plain: str, other: str) -> None:
    """Of a file system that folds case there is no telling what it makes of what is not ASCII."""
    async with staged(postgres_server, store(keys="letters")) as stage:
        assert await outcome(connect(stage.origin, "2").put_object, Key=plain, Body=b"x") == (200, "")
        status, code, message = await refused(connect(stage.origin, "1").put_object, Key=other, Body=b"late")
        assert (status, code) == (400, "InvalidArgument")
        assert "capital letters" in message
        assert stage.body(plain) == b"x"
        async with stage.api() as api:
            missing = (await api.get("/v1/health")).json()["buckets"]["bucket"]["missing"]
        assert set(missing) == {"keys-case", "keys-unicode"}


async def test_a_store_that_keeps_keys_apart_takes_them_all(stage: Stage) -> None:
    s3, keys = connect(stage.origin, "1"), [*AS_PATHS, "d/k", "D/K", "e\u0301", "\u00e9", "d__XLDIR__", "d\\k", "d/k."]
    for key in keys:
        assert await outcome(s3.put_object, Key=key, Body=key.encode()) == (200, ""), key
    assert {key: stage.body(key) for key in keys} == {key: key.encode() for key in keys}
