"""Every write is signed with the store's clock, for 15 seconds, and its intent says so.

If the store cannot bump objects, only the end of that signature stops a late write.
"""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import DEAD_AFTER, LATE_AFTER
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.objects.recording import Asked, RecordingDouble

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETE = "CompleteMultipartUpload"
TIMEOUT = 6.0
"""Seconds that the gateway waits for the store: longer than a busy machine takes to answer when no test holds it up."""
WEAK = {"complete": frozenset({COMPLETE}), "complete and delete": frozenset({COMPLETE, "DeleteObject"})}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WEAK)
async def weak(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    double = RecordingDouble()
    double.behave(ignored_conditions=WEAK[request.param])
    async with staged(postgres_server, double, s3={"timeout": TIMEOUT, "pending_wait": 0.1}) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strong(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, RecordingDouble()) as one:
        yield one


async def everything(stage: Stage, key: str) -> list[Asked]:
    """Return the requests that puts, copies and deletes of all kinds send to the store."""
    assert isinstance(stage.double, RecordingDouble)
    s3, newer = connect(stage.origin, "33"), connect(stage.origin, "34")
    await call(s3.get_bucket_location)
    await call(s3.list_objects_v2)
    await outcome(s3.put_object, Key=f"{key}-first", Body=b"the probe comes before it")
    since = len(stage.double.asked)
    await call(s3.put_object, Key=key, Body=b"new")
    await call(s3.put_object, Key=key, Body=b"over", Metadata={"colour": "red"}, Tagging="a=b")
    etag = (await call(s3.put_object, Key=key, Body=b"and over"))["ETag"]
    await call(s3.put_object, Key=key, Body=b"again", IfMatch=etag)
    await call(s3.put_object, Key=f"{key}-2", Body=b"", IfNoneMatch="*")
    await call(s3.copy_object, Key=f"{key}-3", CopySource=f"bucket/{key}")
    await call(s3.delete_object, Key=key)
    await call(newer.put_object, Key=key, Body=b"after a delete")
    await call(newer.delete_objects, Delete={"Objects": [{"Key": each} for each in (key, f"{key}-2", f"{key}-3")]})
    asked = stage.double.changing(since)
    assert len(asked) == 11
    return asked


async def test_every_write_is_signed_for_seconds(weak: Stage, strong: Stage, key: str) -> None:
    for stage in (weak, strong):
        asked = await everything(stage, key)
        assert [each.lifetime for each in asked] == [15] * len(asked)


async def test_a_signature_covers_all_headers_and_the_body(strong: Stage, key: str) -> None:
    """The body by its MD5, which the store compares."""
    for asked in await everything(strong, key):
        signed = set(asked.parameters["X-Amz-SignedHeaders"].split(";"))
        assert asked.headers.keys() - signed <= {"content-length"}
        assert asked.method != "PUT" or "content-md5" in signed or asked.headers["content-length"] == "0"
        assert signed & {"if-match", "if-none-match"}


async def test_the_intent_has_the_time_and_the_end_of_the_signature(weak: Stage, strong: Stage, key: str) -> None:
    """The settler believes the intent, so the two must never part."""
    for stage in (weak, strong):
        assert isinstance(stage.double, RecordingDouble)
        held = stage.double.cut(operation="PutObject", key=key)
        since = len(stage.double.asked)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"x")
        assert held.struck == 1
        (asked,) = stage.double.changing(since)
        (intent,) = await stage.rows("SELECT * FROM fencing.intent WHERE key = $1", key)
        assert intent["dead_after"] == DEAD_AFTER
        assert asked.signed_at == intent["signed_at"].replace(microsecond=0)
        assert asked.lifetime is not None
        assert asked.lifetime + LATE_AFTER.total_seconds() == DEAD_AFTER.total_seconds()


async def test_the_clock_of_the_store_counts_whatever_the_database_says(postgres_server: EmbeddedPostgres) -> None:
    """It is a day ahead here, and jumps back later. A write that meets the jump is signed again."""
    double = RecordingDouble()
    double.behave(clock_offset=86_400.0)
    async with staged(postgres_server, double) as stage:
        writer = connect(stage.origin, "33")
        assert await outcome(writer.put_object, Key="k", Body=b"ahead") == (200, "")
        double.behave(clock_offset=-86_400.0)
        assert await outcome(writer.put_object, Key="k", Body=b"behind") == (200, "")
        assert await outcome(writer.get_object, Key="k") == (200, "")
        assert stage.body("k") == b"behind"


async def test_late_after_is_a_setting(postgres_server: EmbeddedPostgres, key: str) -> None:
    """A request that has begun in time may take effect for so long. The intent says so to every gateway."""
    double = RecordingDouble()
    double.behave(ignored_conditions=WEAK["complete"])
    settings = {"pending_wait": 0.1, "late_after": 3_600.0}
    async with staged(postgres_server, double, s3=settings) as stage:
        await call(connect(stage.origin, "33").put_object, Key=key, Body=b"before")
        double.cut(operation="PutObject", key=key)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"zombie")
        for seconds, status in ((3_000.0, 503), (3_620.0, 200)):  # a slow machine may take minutes before the first
            double.behave(clock_offset=seconds)
            assert (await stage.barrier(f"s3/bucket/{key}", "34")).status_code == status


@pytest.mark.thorough
@pytest.mark.parametrize("body", [b"before", None])
async def test_a_settlers_write_has_a_short_signature_too(weak: Stage, key: str, body: bytes | None) -> None:
    """A settler's own tombstone may be late too. If it would displace an object, the gateway can only wait."""
    assert isinstance(weak.double, RecordingDouble)
    if body is not None:
        await call(connect(weak.origin, "33").put_object, Key=key, Body=body)
    held = weak.double.hold(operation="PutObject", key=key)
    assert await outcome(connect(weak.origin, "33").put_object, Key=key, Body=b"zombie") == (
        *(503, "FencingOutcomeUnknown"),
    )
    since = len(weak.double.asked)
    barrier = await weak.barrier(f"s3/bucket/{key}", "34")
    assert barrier.status_code == (200 if body is None else 503)
    assert [each.lifetime for each in weak.double.changing(since)] == ([15] if body is None else [])
    held.release()
    await held.finished.wait()
    assert held.statuses == [412 if body is None else 200]
    assert (await weak.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    assert await outcome(connect(weak.origin, "33").put_object, Key=key, Body=b"x") == (412, "StaleFencingToken")


@pytest.mark.thorough
async def test_a_late_write_is_settled_by_the_clock_of_the_store(postgres_server: EmbeddedPostgres, key: str) -> None:
    double = RecordingDouble()
    double.behave(ignored_conditions=WEAK["complete"])
    async with staged(postgres_server, double, s3={"timeout": TIMEOUT, "pending_wait": 0.1}) as stage:
        await call(connect(stage.origin, "33").put_object, Key=key, Body=b"before")
        held = double.hold(at="arrival", operation="PutObject", key=key)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"zombie")
        for seconds, status in ((DEAD_AFTER.total_seconds() - 10, 503), (DEAD_AFTER.total_seconds() + 2, 200)):
            double.behave(clock_offset=seconds)
            assert (await stage.barrier(f"s3/bucket/{key}", "34")).status_code == status
        held.release()
        await held.finished.wait()
        assert held.statuses == [None], "the store refuses it unread"
        assert stage.body(key) == b"before"
