"""If the store cannot bump objects, only the end of a signature stops a late write, so every signature is short."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.integration.objects.clients import call, connect, outcome
from tests.integration.objects.object_gateway import Stage, staged
from tests.integration.objects.recording import Asked, RecordingDouble

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETE = "CompleteMultipartUpload"
WEAK = {"complete": frozenset({COMPLETE}), "complete and delete": frozenset({COMPLETE, "DeleteObject"})}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WEAK)
async def weak(request: pytest.FixtureRequest, postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    double = RecordingDouble()
    double.behave(ignored_conditions=WEAK[request.param])
    async with staged(postgres_server, double, s3={"timeout": 3.0, "pending_wait": 0.1}) as one:
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


async def test_every_write_is_signed_for_two_minutes(weak: Stage, key: str) -> None:
    asked = await everything(weak, key)
    assert [each.lifetime for each in asked] == [120] * len(asked)


async def test_on_a_strong_store_the_signature_is_in_the_headers(strong: Stage, key: str) -> None:
    asked = await everything(strong, key)
    assert [each.lifetime for each in asked] == [None] * len(asked)


async def test_the_intent_has_the_lifetime_of_the_signature(weak: Stage, strong: Stage, key: str) -> None:
    """The settler believes the intent, so the two must never part."""
    for stage, seconds in ((weak, 7 * 60), (strong, 30 * 60)):
        assert isinstance(stage.double, RecordingDouble)
        held = stage.double.cut(operation="PutObject", key=key)
        since = len(stage.double.asked)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"x")
        assert held.struck == 1
        (asked,) = stage.double.changing(since)
        (intent,) = await stage.rows("SELECT * FROM fencing.intent WHERE key = $1", key)
        assert intent["dead_after"].total_seconds() == seconds
        assert asked.signed_at == intent["signed_at"].replace(microsecond=0)
        assert (asked.lifetime or 15 * 60) < seconds


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
    assert [each.lifetime for each in weak.double.changing(since)] == ([120] if body is None else [])
    held.release()
    await held.finished.wait()
    assert held.statuses == [412 if body is None else 200]
    assert (await weak.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    assert await outcome(connect(weak.origin, "33").put_object, Key=key, Body=b"x") == (412, "StaleFencingToken")


@pytest.mark.thorough
async def test_a_late_write_is_settled_by_the_clock_of_the_store(postgres_server: EmbeddedPostgres, key: str) -> None:
    double = RecordingDouble()
    double.behave(ignored_conditions=WEAK["complete"])
    async with staged(postgres_server, double, s3={"timeout": 3.0, "pending_wait": 0.1}) as stage:
        await call(connect(stage.origin, "33").put_object, Key=key, Body=b"before")
        held = double.hold(at="arrival", operation="PutObject", key=key)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"zombie")
        for minutes, status in ((6.9, 503), (7.1, 200)):
            double.behave(clock_offset=minutes * 60)
            assert (await stage.barrier(f"s3/bucket/{key}", "34")).status_code == status
        held.release()
        await held.finished.wait()
        assert held.statuses == [None], "the store refuses it unread"
        assert stage.body(key) == b"before"
