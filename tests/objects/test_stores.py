"""Stores that do less than AWS: what they lack is found out first, and made up for or refused."""

import asyncio
from typing import Any

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import Stage, staged

GONE = (404, "NoSuchKey")


@pytest.fixture(scope="module", autouse=True)
def short_probe() -> None:
    """Keep the whole probe: these stores fail it."""


def double(**behaviour: Any) -> S3Double:
    one = S3Double(buckets=["bucket"])
    one.behave(**behaviour)
    return one


@pytest.mark.parametrize(
    ("ignored", "probe"),
    [("PutObject:If-Match", "put-if-match"), ("PutObject:If-None-Match", "put-if-none-match"), ("*", "put-if-")],
)
async def test_a_store_that_ignores_conditions_is_not_written_to(
    postgres_server: EmbeddedPostgres, ignored: str, probe: str
) -> None:
    async with staged(postgres_server, double(ignored_conditions=frozenset({ignored}))) as stage:
        stage.double.put("bucket", "there", b"precious")
        s3 = connect(stage.origin, "33")
        before = stage.double.sequence
        for operation, arguments in ((s3.put_object, {"Key": "k", "Body": b"x"}), (s3.delete_object, {"Key": "there"})):
            status, code, message = await refused(operation, **arguments)
            assert (status, code) == (501, "NotImplemented")
            assert probe in message
            assert "gateway doctor" in message
        assert not stage.applied(before)
        assert set(stage.double.objects("bucket")) == {"there"}, "and the probe leaves nothing behind"
        assert await stage.fence("s3/bucket/k") is None
        assert await body_of(s3, "there") == b"precious", "reads go on"


async def test_without_conditional_deletes_a_tombstone_stands_for_absence(postgres_server: EmbeddedPostgres) -> None:
    async with staged(postgres_server, double(ignored_conditions=frozenset({"DeleteObject"}))) as stage:
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


async def test_a_delete_leaves_a_tombstone_where_absence_is_forbidden(stage: Stage) -> None:
    """A late If-None-Match: * of a zombie would pass once the key is absent again."""
    held = stage.double.hold(operation="PutObject", key="k")
    put = connect(stage.origin, "33").put_object
    zombie = asyncio.ensure_future(outcome(put, Key="k", Body=b"zombie"))
    await held.arrived.wait()
    successor = connect(stage.origin, "34")
    assert await outcome(successor.put_object, Key="k", Body=b"new") == (200, "")
    assert await outcome(successor.delete_object, Key="k") == (204, "")
    await assert_tombstone(stage, "k")
    held.release()
    assert await zombie == (412, "StaleFencingToken")
    assert held.statuses == [412]
    await assert_tombstone(stage, "k")
    assert await outcome(successor.put_object, Key="k", Body=b"again") == (200, "")
    assert await body_of(successor, "k") == b"again"
    listed = await call(successor.list_objects_v2)
    assert [one["Size"] for one in listed["Contents"]] == [5]


@pytest.mark.thorough
async def test_without_conditional_completion_puts_go_on_and_a_late_one_blocks(
    postgres_server: EmbeddedPostgres,
) -> None:
    """Objects cannot be bumped there: a barrier over a request in flight waits until that is dead.

    A write of the key does not: it changes the key itself.
    """
    async with staged(
        postgres_server,
        double(ignored_conditions=frozenset({"CompleteMultipartUpload"})),
        s3={"timeout": 3.0, "pending_wait": 0.1},
    ) as stage:
        s3 = connect(stage.origin, "33")
        for body in (b"x", b"y", b"y"):
            assert await outcome(s3.put_object, Key="k", Body=body) == (200, "")
        held = stage.double.hold(operation="PutObject", key="k")
        assert await outcome(s3.put_object, Key="k", Body=b"zombie") == (503, "FencingOutcomeUnknown")
        assert (await stage.barrier("s3/bucket/k", "34")).status_code == 503
        assert stage.body("k") == b"y", "nothing is acknowledged that a late request could undo"
        successor = connect(stage.origin, "34")
        assert await outcome(successor.put_object, Key="k", Body=b"new") == (200, "")
        held.release()
        await held.finished.wait()
        assert held.statuses == [412]
        assert (await stage.barrier("s3/bucket/k", "35")).status_code == 200
        assert stage.body("k") == b"new"


async def test_where_etags_are_unique(postgres_server: EmbeddedPostgres) -> None:
    async with staged(postgres_server, double(etags="unique")) as stage:
        s3 = connect(stage.origin, "33")
        etags = [(await call(s3.put_object, Key="k", Body=b"same"))["ETag"] for _ in range(3)]
        assert len(set(etags)) == 3
        assert (await call(s3.head_object, Key="k"))["ETag"] == etags[-1]
        held = stage.double.hold(operation="PutObject", key="k")
        zombie = asyncio.ensure_future(outcome(s3.put_object, Key="k", Body=b"zombie"))
        await held.arrived.wait()
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
    async with staged(postgres_server, double(etags="unique")) as stage:
        old, new = connect(stage.origin, "33"), connect(stage.origin, "34")
        first = await call(old.put_object, Key="k", Body=b"X", ServerSideEncryption="AES256")
        held = stage.double.hold(operation="PutObject", key="k")
        zombie = asyncio.ensure_future(outcome(old.put_object, Key="k", Body=b"zombie"))
        await held.arrived.wait()
        since = stage.applied(0)[-1].sequence
        await call(new.put_object, Key="k", Body=b"Z")
        again = await call(new.put_object, Key="k", Body=b"X", ServerSideEncryption="AES256")
        assert first["ETag"] not in {f'"{each.etag}"' for each in stage.applied(since)}
        assert again["ETag"] != first["ETag"]
        held.release()
        assert await zombie == (412, "StaleFencingToken")
        assert stage.body("k") == b"X"
