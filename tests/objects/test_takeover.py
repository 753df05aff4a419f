"""A new holder takes over while an old one's request is still on its way: the request never takes effect."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.intent import DEAD_AFTER
from tests.doubles.s3 import S3Double
from tests.doubles.s3.conditions import UNCONDITIONAL
from tests.doubles.s3.state import Content, Origin
from tests.objects.clients import body_of, call, connect, outcome, warm_up
from tests.objects.object_gateway import Stage, staged
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")
MEBIBYTE = 1024 * 1024


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    rules = [{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules) as one:
        await warm_up(connect(one.origin, "1"), "warm")
        yield one


@pytest.mark.parametrize("first", [b"X", None])
async def test_the_same_state_again_does_not_let_a_late_write_in(shared: Stage, key: str, first: bytes | None) -> None:
    """The zombie's condition is on X (or on absence); the successor writes Z and then restores exactly that."""
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    etag = None if first is None else (await call(old.put_object, Key=key, Body=first))["ETag"]
    held = shared.double.hold(operation="PutObject", key=key)
    zombie = asyncio.ensure_future(outcome(old.put_object, Key=key, Body=b"Y"))
    await held.arrived.wait()
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
    else:
        assert await body_of(new, key) == first
    assert await shared.count("intent", key) == 0
    (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["fence"]) == ("33", "34")


async def test_a_late_delete(shared: Stage, key: str) -> None:
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    await call(old.put_object, Key=key, Body=b"X")
    held = shared.double.hold(operation="DeleteObject", key=key)
    zombie = asyncio.ensure_future(outcome(old.delete_object, Key=key))
    await held.arrived.wait()
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    assert shared.body(key) == b"X", "the barrier changes the ETag, not the object"
    await call(new.put_object, Key=key, Body=b"X")
    held.release()
    assert await zombie == STALE
    assert await body_of(new, key) == b"X"


async def test_a_takeover_of_one_key_settles_every_key_of_the_resource(shared: Stage) -> None:
    job = uuid4().hex
    one, other = f"jobs/{job}/one", f"jobs/{job}/deep/er/other"
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    await call(old.put_object, Key=one, Body=b"one")
    await call(old.put_object, Key=other, Body=b"other")
    held = shared.double.hold(operation="PutObject", key=one)
    zombie = asyncio.ensure_future(outcome(old.put_object, Key=one, Body=b"zombie"))
    await held.arrived.wait()
    put = await call(new.put_object, Key=other, Body=b"new")
    assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == f"job/{job}"
    held.release()
    assert await zombie == STALE
    assert held.statuses == [412]
    assert (shared.body(one), shared.body(other)) == (b"one", b"new")
    assert await outcome(old.delete_object, Key=one) == STALE
    assert await outcome(connect(shared.origin, "33").put_object, Key=f"jobs/{uuid4().hex}/x", Body=b"x") == (200, "")


async def test_one_holders_writes_to_many_keys_run_side_by_side(shared: Stage) -> None:
    job = uuid4().hex
    keys = [f"jobs/{job}/{number}" for number in range(12)]
    s3 = connect(shared.origin, "33", "ann")
    held = [shared.double.hold(operation="PutObject", key=key) for key in keys]
    writes = asyncio.gather(*(outcome(s3.put_object, Key=key, Body=key.encode()) for key in keys))
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(each.arrived.wait() for each in held))
    for each in held:
        each.release()
    assert await writes == [(200, "")] * len(keys)
    assert [shared.body(key) for key in keys] == [key.encode() for key in keys]
    assert await shared.fence(f"job/{job}") == "33"


BODIES = {
    "empty": b"",
    "small": b"hello",
    "just in memory": bytes(8 * MEBIBYTE),
    "in one part": bytes(9 * MEBIBYTE),
    "in several parts": bytes(range(256)) * (20 * MEBIBYTE // 256),
}


@pytest.mark.parametrize("name", BODIES)
async def test_settling_keeps_the_object_as_it_is(shared: Stage, key: str, name: str) -> None:
    """An intent was left behind, by a process that died maybe; the barrier bumps the object it is conditioned on."""
    body = BODIES[name]
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
    assert not shared.double.store.bucket("bucket").uploads.running(datetime.now(UTC))
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
    etags = [shared.double.put("bucket", key, b"hello").etag]
    await leave_intent(shared, key, etags[0])
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    etags.append(shared.double.objects("bucket")[key].etag)
    await leave_intent(shared, key, etags[1], token=34)
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


async def test_a_write_of_the_key_needs_no_other_form(shared: Stage, key: str) -> None:
    """It changes the ETag itself. So does a delete."""
    etags = [shared.double.put("bucket", key, b"hello").etag]
    await leave_intent(shared, key, etags[0])
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    etags.append(shared.double.objects("bucket")[key].etag)
    await leave_intent(shared, key, etags[1], token=34)
    assert await outcome(connect(shared.origin, "35").put_object, Key=key, Body=b"other") == (200, "")
    assert await shared.count("intent", key) == 0
    await leave_intent(shared, key, shared.double.objects("bucket")[key].etag, token=35)
    assert await outcome(connect(shared.origin, "36").delete_object, Key=key) == (204, "")
    assert await outcome(connect(shared.origin, "36").get_object, Key=key) == (404, "NoSuchKey")


async def test_bytes_whose_every_etag_is_waited_for_come_back_later(shared: Stage, key: str) -> None:
    """Until no request that waits for them can be valid, by the store's clock."""
    etags = [shared.double.put("bucket", key, b"hello").etag]
    await leave_intent(shared, key, etags[0])
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    etags.append(shared.double.objects("bucket")[key].etag)
    await leave_intent(shared, key, etags[1], token=34)
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
