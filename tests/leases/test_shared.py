"""Sharing holders have one token, and the next exclusive holder has a higher one. No waiter starves."""

import asyncio

import pytest

from gateway.errors import LockHeld
from gateway.fencing.lease import LockMode
from gateway.fencing.token import Token
from tests.leases.stage import Gateway, gone, rows
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

Pair = tuple[Gateway, Gateway]


async def test_those_who_share_have_one_token_and_the_next_a_higher_one(pair: Pair, job: str) -> None:
    first, second = pair
    shared = [await one.acquire(job, f"h{number}", mode="shared") for number, one in enumerate((first, second, first))]
    assert {lease.token for lease in shared} == {Token(0, 1)}
    assert len({lease.id for lease in shared}) == 3
    with pytest.raises(LockHeld) as refused:
        await second.acquire(job, "writer")
    assert refused.value.facts["mode"] == "shared"
    waiting = await second.waits(job, "writer")
    for lease in shared:
        assert not waiting.done()
        await first.release(lease)
    alone = await waiting
    assert (alone.mode, alone.token) == (LockMode.EXCLUSIVE, Token(0, 2))
    await second.release(alone)
    assert (await first.acquire(job, "h0", mode="shared")).token == Token(0, 3)


async def test_who_wants_to_share_queues_behind_who_wants_it_alone(pair: Pair, job: str) -> None:
    first, second = pair
    reader = await first.acquire(job, "r1", mode="shared")
    writer = await second.waits(job, "w")
    with pytest.raises(LockHeld) as refused:
        await first.acquire(job, "r2", mode="shared")
    assert refused.value.facts["position"] == 2
    late = [await one.waits(job, f"r{number}", mode="shared") for number, one in enumerate((first, second, first), 2)]
    last = await second.waits(job, "w2")
    await first.release(reader)
    alone = await writer
    assert not any(task.done() for task in late)
    await second.release(alone)
    together = await asyncio.gather(*late)
    assert {lease.token for lease in together} == {Token(0, 3)}
    assert not last.done()
    for lease in together:
        await first.release(lease)
    assert (await last).token == Token(0, 4)


async def test_when_who_wants_it_alone_leaves_those_behind_may_share(pair: Pair, job: str) -> None:
    reader = await pair[0].acquire(job, "r1", mode="shared")
    writer = await pair[1].waits(job, "w")
    late = await pair[0].waits(job, "r2", mode="shared")
    await gone([writer])
    assert (await late).token == reader.token


async def test_many_share_at_once(pair: Pair, job: str) -> None:
    alone = await pair[0].acquire(job, "w", ttl=600.0)
    tasks = [
        asyncio.create_task(pair[number % 2].acquire(job, f"r{number}", mode="shared", wait=4 * PATIENCE))
        for number in range(300)
    ]
    await pair[0].until(job, lambda view: view.waiters == 300)
    await pair[0].release(alone)
    assert {lease.token for lease in await asyncio.gather(*tasks)} == {Token(0, 2)}


async def test_a_holder_that_shares_cannot_have_it_alone(pair: Pair, job: str) -> None:
    shared = await pair[0].acquire(job, "ann", mode="shared")
    for wait in (0.0, 5.0):
        with pytest.raises(LockHeld, match="itself") as refused:
            await pair[1].acquire(job, "ann", wait=wait)
        assert refused.value.facts["holder"] == "ann"
    await pair[0].release(shared)
    alone = await pair[0].acquire(job, "ann")
    # The other way round there is nothing to wait for: what it has is more than it asks for.
    again = await pair[0].acquire(job, "ann", mode="shared")
    assert (again.id, again.mode) == (alone.id, LockMode.EXCLUSIVE)


async def test_who_joins_never_gets_a_token_that_the_fence_refuses(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "r1", mode="shared")
    await rows(pair[0], "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, 1)", job)
    assert (await pair[0].acquire(job, "r2", mode="shared")).token == Token(0, 1)
    await rows(pair[0], "UPDATE fencing.fence SET value = 7 WHERE resource = $1", job)
    assert (await pair[0].acquire(job, "r3", mode="shared")).token == Token(0, 8)
    assert (await pair[1].acquire(job, "r4", mode="shared")).token == Token(0, 8)
