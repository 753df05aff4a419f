"""Fenced puts and deletes through boto3, against AWS's semantics."""

import asyncio
from itertools import pairwise
from uuid import UUID

import httpx

from gateway.observe.events import WriteRefused
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, refused
from tests.running import API_KEY, Events
from tests.waiting import PATIENCE


async def test_put_get_head_list_delete(origin: str, double: S3Double) -> None:
    s3 = connect(origin, "33")
    put = await call(s3.put_object, Bucket="bucket", Key="a/b c+d.txt", Body=b"hello", ContentType="text/plain")
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "33"
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == "s3/bucket/a/b%20c+d.txt"
    assert put["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    got = await call(s3.get_object, Bucket="bucket", Key="a/b c+d.txt")
    assert await asyncio.to_thread(got["Body"].read) == b"hello"
    assert got["ContentType"] == "text/plain"
    assert got["Metadata"] == {}
    head = await call(s3.head_object, Bucket="bucket", Key="a/b c+d.txt")
    assert head["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "33"
    listed = await call(s3.list_objects_v2, Bucket="bucket", Prefix="a/")
    assert [one["Key"] for one in listed["Contents"]] == ["a/b c+d.txt"]
    assert {one["Name"] for one in (await call(s3.list_buckets))["Buckets"]} == {"bucket", "other"}
    assert (await call(s3.head_bucket, Bucket="bucket"))["ResponseMetadata"]["HTTPStatusCode"] == 200
    await call(s3.delete_object, Bucket="bucket", Key="a/b c+d.txt")
    assert not double.objects("bucket")
    assert (await refused(s3.get_object, Bucket="bucket", Key="a/b c+d.txt"))[:2] == (404, "NoSuchKey")


async def test_a_zombie_is_refused_and_on_record(origin: str, double: S3Double, events: Events) -> None:
    old, new = connect(origin, "33", "ann"), connect(origin, "34", "bob")
    await call(old.put_object, Bucket="bucket", Key="k", Body=b"old")
    await call(new.put_object, Bucket="bucket", Key="k", Body=b"new")
    before = double.sequence
    status, code, message = await refused(old.put_object, Bucket="bucket", Key="k", Body=b"zombie")
    assert (status, code) == (412, "StaleFencingToken")
    assert "retrying cannot succeed" in message
    assert (await refused(old.delete_object, Bucket="bucket", Key="k"))[:2] == (412, "StaleFencingToken")
    assert not double.applied(after=before)
    assert double.objects("bucket")["k"].content.body == b"new"
    async with httpx.AsyncClient(
        base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE
    ) as api:
        page = (await api.get("/v1/rejections")).json()
    deleted, put = page["rejections"]
    assert (put["resource"], put["token"], put["fence"], put["reason"]) == ("s3/bucket/k", "33", "34", "token-stale")
    assert (put["raised_by"], put["holder"], put["caller"]) == ("bob", "ann", "writer")
    assert (put["method"], put["target"], put["client"]) == ("PUT", "/bucket/k", "127.0.0.1")
    assert put["enforced"] is True
    assert deleted["method"] == "DELETE"
    told = [event.rejection.id for event in events if isinstance(event, WriteRefused)]
    assert told == [UUID(put["id"]), UUID(deleted["id"])]


async def test_a_write_without_a_token_is_refused(origin: str, double: S3Double) -> None:
    assert (await refused(connect(origin).put_object, Bucket="bucket", Key="k", Body=b"x"))[:2] == (
        428,
        "FencingTokenRequired",
    )
    assert not double.objects("bucket")


async def test_the_token_can_stand_in_the_metadata(origin: str, double: S3Double) -> None:
    s3 = connect(origin)
    put = await call(
        s3.put_object, Bucket="bucket", Key="k", Body=b"x", Metadata={"fencing-token": "7", "colour": "red"}
    )
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "7"
    assert (await call(s3.head_object, Bucket="bucket", Key="k"))["Metadata"] == {"colour": "red"}


async def test_the_callers_own_condition_is_honoured(origin: str) -> None:
    s3 = connect(origin, "1")
    first = await call(s3.put_object, Bucket="bucket", Key="k", Body=b"x", IfNoneMatch="*")
    assert (await refused(s3.put_object, Bucket="bucket", Key="k", Body=b"y", IfNoneMatch="*"))[0] == 412
    assert (await refused(s3.put_object, Bucket="bucket", Key="k", Body=b"y", IfMatch='"other"'))[0] == 412
    await call(s3.put_object, Bucket="bucket", Key="k", Body=b"y", IfMatch=first["ETag"])
    assert (await refused(s3.put_object, Bucket="bucket", Key="none", Body=b"y", IfMatch='"other"'))[0] == 404


async def test_the_same_bytes_twice(origin: str, double: S3Double) -> None:
    s3 = connect(origin, "1")
    etags = [(await call(s3.put_object, Bucket="bucket", Key="k", Body=b"x"))["ETag"] for _ in range(3)]
    assert all(before != after for before, after in pairwise(etags)), "a copy of the second write would pass"
    assert double.objects("bucket")["k"].content.body == b"x"


async def test_deleting_nothing_succeeds_and_raises_the_fence(origin: str) -> None:
    await call(connect(origin, "5").delete_object, Bucket="bucket", Key="k")
    assert (await refused(connect(origin, "4").put_object, Bucket="bucket", Key="k", Body=b"x"))[0] == 412
