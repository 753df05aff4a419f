"""A dead or unlucky holder blocks no living one for long: lost requests, the same bytes again, housekeeping."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome, warm_up
from tests.objects.object_gateway import Stage, staged
from tests.objects.sweeping import entomb, forgetful, sweeper
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

DONE = (200, "")
UNKNOWN = (503, "FencingOutcomeUnknown")
SETTINGS = {"pending_wait": 0.2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, S3Double(buckets=["bucket"]), s3=SETTINGS) as one:
        await warm_up(connect(one.origin, "1"), "warm")
        yield one


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


@pytest.mark.parametrize("body", [b"X", b"Y", b"Z"])
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


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("conditional", [True, False], ids=["If-Match", "no condition"])
async def test_housekeeping_blocks_no_holder(
    postgres_server: EmbeddedPostgres,
    at: str,
    conditional: bool,  # noqa: FBT001
) -> None:
    """The removal of a tombstone is lost: it closes neither the resource nor the key."""
    double = S3Double(buckets=["bucket"]) if conditional else forgetful()
    async with staged(postgres_server, double, s3=SETTINGS) as stage:
        await warm_up(connect(stage.origin, "1"), "warm")
        await entomb(stage, "gone")
        assert (await stage.barrier("s3/bucket/gone", "1")).status_code == 200
        double.cut(at=at, operation="DeleteObject", key="gone")
        async with sweeper(stage) as (sweeping, _):
            await sweeping.sweep_tombstones()
        async with asyncio.timeout(PATIENCE):
            barrier = await stage.barrier("s3/bucket/gone", "2")
            assert barrier.status_code == 200, barrier.text
            assert await outcome(connect(stage.origin, "3").put_object, Key="gone", Body=b"Y") == DONE
        assert stage.body("gone") == b"Y"
