"""A new holder takes over while an old one's request is on its way: it has no effect, and blocks no one for long."""

import hashlib
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from botocore.exceptions import ClientError

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import DEAD_AFTER, LATE_AFTER
from tests.doubles.s3.conditions import UNCONDITIONAL
from tests.doubles.s3.state import Content, Origin
from tests.objects.clients import body_of, call, connect, outcome, warm_up
from tests.objects.object_gateway import RecordingDouble, Stage, module_stage, recorded, staged, store
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")
LIMITS = {"pending_wait": 0.2}


MEBIBYTE = 1024 * 1024


shared = module_stage(
    lambda: store("bucket"),
    lambda one: warm_up(connect(one.origin, "1"), "warm"),
    objects=[{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}],
    limits=LIMITS,
)


@pytest.mark.parametrize("first", [b"X", None])
async def test_the_same_state_again_does_not_let_a_late_write_in(shared: Stage, key: str, first: bytes | None) -> None:
    """The zombie's condition is on X (or on absence); the successor writes Z and then restores exactly that."""
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    etag = None if first is None else (await call(old.put_object, Key=key, Body=first))["ETag"]
    putting = outcome(old.put_object, Key=key, Body=b"Y")
    held, zombie = await shared.late(putting, operation="PutObject", key=key)
    await call(new.put_object, Key=key, Body=b"Z")
    if first is None:
        await call(new.delete_object, Key=key)
    else:
        restored = await call(new.put_object, Key=key, Body=first)
        assert restored["ETag"] != etag, "the same bytes, but not the ETag that is waited for"
        assert (await call(new.head_object, Key=key))["ETag"] == restored["ETag"]
    held.release()
    assert await zombie == STALE
    assert held.statuses == [412]
    if first is None:
        assert await outcome(new.get_object, Key=key) == (404, "NoSuchKey")
        assert await shared.count("tombstone", key) == 1, "absence itself would let the zombie in"
        assert await outcome(new.put_object, Key=key, Body=b"again") == (200, "")
    else:
        assert await body_of(new, key) == first
    assert await shared.count("intent", key) == 0
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["fence"]) == ("33", "34")


async def test_a_takeover_of_one_key_settles_every_key_of_the_resource(shared: Stage) -> None:
    job = uuid4().hex
    one, other = f"jobs/{job}/one", f"jobs/{job}/deep/er/other"
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    await call(old.put_object, Key=one, Body=b"one")
    await call(old.put_object, Key=other, Body=b"other")
    putting = outcome(old.put_object, Key=one, Body=b"zombie")
    held, zombie = await shared.late(putting, operation="PutObject", key=one)
    put = await call(new.put_object, Key=other, Body=b"new")
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == f"job/{job}"
    held.release()
    assert await zombie == STALE
    assert held.statuses == [412]
    assert (shared.body(one), shared.body(other)) == (b"one", b"new")
    assert await outcome(old.delete_object, Key=one) == STALE
    assert await outcome(connect(shared.origin, "33").put_object, Key=f"jobs/{uuid4().hex}/x", Body=b"x") == (200, "")


@pytest.mark.parametrize("size", first([5, 0, 8 * MEBIBYTE, 9 * MEBIBYTE, 20 * MEBIBYTE]))
async def test_settling_keeps_the_object_as_it_is(shared: Stage, key: str, size: int) -> None:
    """An intent was left behind, by a process that died maybe; the barrier bumps the object it is conditioned on."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    metadata = {
        "colour": "red",
        "fencing-token": "33",
        "fencing-resource": f"s3/bucket/{key}",
        "fencing-write-id": str(uuid4()),
    }
    headers = {"content-type": "text/x-kept", "content-encoding": "gzip", "cache-control": "no-store"}
    before = shared.double.store.put(
        *("bucket", key, Content(body, headers=headers, metadata=metadata)), UNCONDITIONAL, Origin(datetime.now(UTC))
    )
    await leave_intent(shared, key, before.etag)
    barrier = await shared.barrier(f"s3/bucket/{key}", "34")
    assert barrier.status_code == 200, barrier.text
    after = shared.double.objects("bucket")[key]
    assert after.etag != before.etag
    assert hashlib.md5(after.content.body).digest() == hashlib.md5(body).digest()
    assert dict(after.content.metadata) == metadata
    assert {name: after.content.headers.get(name) for name in headers} == headers
    uploads = shared.double.store.bucket("bucket").uploads.running(datetime.now(UTC))
    assert not [one for one in uploads if one.key == key]
    assert await shared.count("intent", key) == 0
    assert [row["etag"] for row in await shared.rows("SELECT etag FROM fencing.forbidden WHERE key = $1", key)] == [
        before.etag
    ]
    head = await call(connect(shared.origin).head_object, Key=key)
    assert (head["ContentType"], head["Metadata"], head["ContentLength"]) == (
        *("text/x-kept", {"colour": "red"}),
        len(body),
    )


async def test_an_object_both_of_whose_forms_are_waited_for_is_bumped_later(shared: Stage, key: str) -> None:
    """Two forms of the same bytes are two ETags. If both are forbidden, the answer is "not yet", never "done".

    The gateway's own writes do not get that far: they go as uploads where a request got lost.
    """
    await forbid_both_forms(shared, key)
    held_up = await shared.barrier(f"s3/bucket/{key}", "35")
    assert held_up.status_code == 503
    told = held_up.json()
    assert told["blocked_by"] == f"conditional write of bucket/{key}, token 34"
    assert 90 < int(held_up.headers["retry-after"]) <= DEAD_AFTER.total_seconds() + 2
    clears_at = datetime.fromisoformat(told["clears_at"])
    assert clears_at - datetime.now(UTC) <= DEAD_AFTER
    assert await shared.count("intent", key) == 1, "it is still there to be settled"
    assert shared.body(key) == b"hello"
    try:
        shared.double.behave(clock_offset=DEAD_AFTER.total_seconds() / 2)
        assert (await shared.barrier(f"s3/bucket/{key}", "35")).status_code == 503
        shared.double.behave(clock_offset=DEAD_AFTER.total_seconds() + 2)
        assert (await shared.barrier(f"s3/bucket/{key}", "35")).status_code == 200
    finally:
        shared.double.behave(clock_offset=0.0)
        await call(connect(shared.origin).head_object, Key=key)
    assert await shared.count("intent", key) == 0


async def test_bytes_whose_every_etag_is_waited_for_come_back_later(shared: Stage, key: str) -> None:
    """Until no request that waits for them can be valid, by the store's clock."""
    etags = await forbid_both_forms(shared, key)
    s3 = connect(shared.origin, "35")
    await call(s3.put_object, Key=key, Body=b"other")
    with pytest.raises(ClientError) as refused:
        await call(s3.put_object, Key=key, Body=b"hello")
    answer = refused.value.response
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert 0 < int(answer["ResponseMetadata"]["HTTPHeaders"]["retry-after"]) <= DEAD_AFTER.total_seconds() + 2
    assert "Write other bytes" in answer["Error"]["Message"]
    assert shared.body(key) == b"other"
    await call(s3.put_object, Key=key, Body=b"hello again")
    try:
        shared.double.behave(clock_offset=DEAD_AFTER.total_seconds() + 2)
        await call(s3.put_object, Key=key, Body=b"hello")
        assert shared.double.objects("bucket")[key].etag in etags
    finally:
        shared.double.behave(clock_offset=0.0)
        await call(connect(shared.origin).head_object, Key=key)


async def leave_intent(shared: Stage, key: str, expected: str | None, token: int = 33) -> None:
    """As a gateway that was killed between announcing a put and sending it."""
    resource = f"s3/bucket/{key}"
    assert (await shared.barrier(resource, str(token))).status_code == 200
    await shared.rows(
        "INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, expected, attempt) "
        "VALUES ($1, 'bucket', $2, gen_random_uuid(), 0, $3, $4, 1)",
        *(resource, key, token, expected),
    )


async def forbid_both_forms(shared: Stage, key: str) -> list[str]:
    """Have late requests wait for both ETags of "hello" at the key, the second of token 34; return the ETags."""
    etags = [shared.double.put("bucket", key, b"hello").etag]
    await leave_intent(shared, key, etags[0])
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    etags.append(shared.double.objects("bucket")[key].etag)
    await leave_intent(shared, key, etags[1], token=34)
    return etags


# A dead or unlucky holder blocks no living one for long: lost requests, the same bytes again.

DONE = (200, "")


UNKNOWN = (503, "FencingOutcomeUnknown")


async def lose_a_put(stage: Stage, key: str, token: int, body: bytes) -> None:
    """Send a put whose request is lost on its way: the gateway cannot know whether it will still arrive."""
    lost = [
        stage.double.cut(at="before", operation=operation, key=key)
        for operation in ("PutObject", "CompleteMultipartUpload")
    ]
    assert await outcome(connect(stage.origin, str(token)).put_object, Key=key, Body=body) == UNKNOWN
    for each in lost:
        stage.double.faults.remove(each)


async def test_lost_writes_of_the_same_bytes_block_no_barrier(shared: Stage, key: str) -> None:
    """Small bytes have two forms. Both are soon in use where each holder loses a write of the same bytes."""
    await call(connect(shared.origin, "1").put_object, Key=key, Body=b"X")
    for token in range(2, 8):
        await lose_a_put(shared, key, token, b"Y")
        barrier = await shared.barrier(f"s3/bucket/{key}", str(token + 1))
        assert barrier.status_code == 200, f"after {token - 1} lost writes: {barrier.text}"
        assert await outcome(connect(shared.origin, str(token + 1)).put_object, Key=key, Body=b"X") == DONE


@pytest.mark.parametrize("body", first([b"X", b"Y", b"Z"]))
async def test_a_living_holder_is_never_shut_out_of_its_own_key(shared: Stage, key: str, body: bytes) -> None:
    """Its puts met restarts of the store, one after the other. It may put any bytes, and delete."""
    holder = connect(shared.origin, "1")
    await call(holder.put_object, Key=key, Body=b"X")
    for lost in (b"Y", b"X", b"Y", b"X"):
        await lose_a_put(shared, key, 1, lost)
        assert await outcome(holder.put_object, Key=key, Body=body) == DONE
    await lose_a_put(shared, key, 1, b"Y")
    assert await outcome(holder.delete_object, Key=key) == (204, "")
    await lose_a_put(shared, key, 1, b"X")
    assert await outcome(holder.put_object, Key=key, Body=body) == DONE


# Every write is signed with the store's clock, for 15 seconds, and its intent says so.
#
# If the store cannot bump objects, only the end of that signature stops a late write.

TIMEOUT = 6.0
"""Seconds that the gateway waits for the store: longer than a busy machine takes to answer when no test holds it up."""


recording = module_stage(RecordingDouble, limits={"store_timeout": TIMEOUT})


async def test_the_intent_has_the_time_and_the_end_of_the_signature(recording: Stage, key: str) -> None:
    """The settler believes the intent, so the two must never part."""
    held = recording.double.cut(operation="PutObject", key=key)
    since = len(recorded(recording).asked)
    await outcome(connect(recording.origin, "33").put_object, Key=key, Body=b"x")
    assert held.struck == 1
    (asked,) = recorded(recording).changing(since)
    (intent,) = await recording.rows("SELECT * FROM fencing.intent WHERE key = $1", key)
    assert intent["dead_after"] == DEAD_AFTER
    assert asked.signed_at == intent["signed_at"].replace(microsecond=0)
    assert asked.lifetime is not None
    assert asked.lifetime + LATE_AFTER.total_seconds() == DEAD_AFTER.total_seconds()


@pytest.mark.thorough
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


@pytest.mark.thorough
async def test_late_after_is_a_setting(postgres_server: EmbeddedPostgres, key: str) -> None:
    """A request that has begun in time may take effect for so long. The intent says so to every gateway."""
    double = store(kind=RecordingDouble, ignored_conditions=frozenset({"CompleteMultipartUpload"}))
    settings, limits = {"late_after": 3_600.0}, {"pending_wait": 0.1}
    async with staged(postgres_server, double, s3=settings, limits=limits) as stage:
        await call(connect(stage.origin, "33").put_object, Key=key, Body=b"before")
        double.cut(operation="PutObject", key=key)
        await outcome(connect(stage.origin, "33").put_object, Key=key, Body=b"zombie")
        for seconds, status in ((3_000.0, 503), (3_620.0, 200)):  # a slow machine may take minutes before the first
            double.behave(clock_offset=seconds)
            assert (await stage.barrier(f"s3/bucket/{key}", "34")).status_code == status
