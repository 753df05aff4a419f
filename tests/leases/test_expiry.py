"""Leases end by the database's clock alone; what has lapsed never comes back; and what it leaves behind."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.errors import LeaseLost, LockHeld
from gateway.fencing.lease import Lease, Renewal
from gateway.fencing.token import Token
from tests.leases.stage import DEAF_TO_TIME, Gateway, Pair, gateway, gone, pass_time, recorded, rows
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def timely(dsn_of_module: str) -> AsyncIterator[Pair]:
    async with gateway(dsn_of_module, DEAF_TO_TIME) as first, gateway(dsn_of_module, DEAF_TO_TIME) as second:
        yield first, second


async def test_what_has_lapsed_is_lost_though_nobody_else_has_it(pair: Pair, job: str) -> None:
    first, second = pair
    lease = await first.acquire(job, "ann", ttl=600.0)
    await pass_time(first, job, 400)
    await second.renew(lease)
    await pass_time(first, job, 400)
    await first.renew(lease)
    await pass_time(first, job, 600)
    for act in (first.renew, second.renew, first.release, first.renew):
        with pytest.raises(LeaseLost):
            await act(lease)
    assert await first.service.renew_many([Renewal(job, lease.id, "writer", 60.0)]) == [None]
    again = await first.acquire(job, "ann")
    assert (again.token, again.id != lease.id) == (Token(0, 2), True), "the same name is a new holder by now"
    with pytest.raises(LeaseLost):
        await first.renew(lease)
    assert (await first.service.inspect(job)).holders[0].token == Token(0, 2)


async def test_a_lapse_is_on_record_once(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "ann")
    await pass_time(pair[0], job, 31)
    assert (await pair[0].service.inspect(job)).holders == ()
    await asyncio.gather(*(one.service._heartbeat.sweep() for one in pair))
    (event,) = await recorded(pair[0], "lease-expired", job)
    assert (event["caller"], event["holder"], event["epoch"], event["value"]) == ("writer", "ann", 0, 1)
    assert await rows(pair[0], "SELECT FROM fencing.lease WHERE resource = $1", job) == []


async def test_the_next_is_served_when_the_lease_is_over(timely: Pair, job: str) -> None:
    lease = await timely[0].acquire(job, "ann", ttl=600.0)
    waiting = await timely[1].waits(job, "bob")
    behind = await timely[1].waits(job, "cid")
    begun = time.monotonic()
    await timely[0].renew(lease, 1.2)
    # A look that comes too early, as where a lease was renewed meanwhile, is followed by another.
    await rows(timely[0], "SELECT pg_notify('fencing_lease', concat_ws(' ', 0, 0.2, $1::text))", job)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).token == Token(0, 2)
    assert time.monotonic() - begun > 1.19
    await gone([behind])


async def test_a_lease_that_ends_earlier_than_the_one_waited_for(timely: Pair, job: str) -> None:
    """The holder whose end was waited for gives way to one with a short lease, which is then let lapse."""
    lease = await timely[0].acquire(job, "ann", ttl=600.0)
    first, second = await timely[0].waits(job, "bob", ttl=0.2), await timely[1].waits(job, "cid")
    await timely[0].release(lease)
    # It may take the gateway too long to collect a lease of 0.2 s. Then bob has had it without a word, and waits again.
    async with asyncio.timeout(PATIENCE):
        assert (await second).token == Token(0, 3), "after bob's"
    await gone([first])


@pytest.mark.parametrize("mode", ["exclusive", "shared"])
async def test_after_a_lapse_the_lock_is_kept_back(pair: Pair, job: str, mode: str) -> None:
    first, second = pair
    await first.acquire(job, "ann", delay=600.0, mode=mode)
    await pass_time(first, job, 130)
    with pytest.raises(LockHeld) as refused:
        await second.acquire(job, "bob", mode=mode)
    assert (refused.value.facts["delayed"], refused.value.facts["holder"]) == (True, None)
    view = await first.service.inspect(job)
    assert view.delayed_for is not None
    assert 450 < view.delayed_for <= 500, "from the end of the lease, not from when it was noticed"
    waiting = await second.waits(job, "bob", mode=mode)
    with pytest.raises(LockHeld):
        await first.acquire(job, "ann", mode=mode)
    assert not waiting.done()
    await pass_time(first, job, 500)
    assert (await waiting).token == Token(0, 2)


@pytest.mark.parametrize("renewed", [False, True])
async def test_after_a_release_nothing_is_kept_back(pair: Pair, job: str, renewed: bool) -> None:  # noqa: FBT001
    lease = await pair[0].acquire(job, "ann", delay=60.0)
    if renewed:
        await pair[0].renew(lease)
    waiting = await pair[1].waits(job, "bob", delay=60.0)
    await pair[0].release(lease)
    lease = await waiting
    await pair[1].service.withdraw(job, "bob", "writer", "no such request")
    await pair[1].release(lease)
    assert (await pair[0].service.inspect(job)).delayed_for is None


async def test_after_a_break_the_waiter_is_kept_waiting(timely: Pair, job: str) -> None:
    await timely[0].acquire(job, "ann", delay=0.2)
    waiting = await timely[1].waits(job, "bob")
    begun = time.monotonic()
    await timely[1].service.break_lock(job, Token(0, 1), "operator", "a test")
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).token == Token(0, 2)
    assert time.monotonic() - begun > 0.19


async def renewing(one: Gateway, lease: Lease, pause: float) -> None:
    """Renew a lease for as long as it is there, each time at the last moment, and later and later."""
    while True:
        await one.renew(lease, 0.012)
        await asyncio.sleep(pause)
        pause += 0.00001


async def test_no_renewal_slips_in_while_others_wait_for_the_end(pair: Pair, job: str) -> None:
    """Renewals race with the looks of the waiters. The loser of a race learns that it has lost."""
    for number in range(5):
        name = f"{job}/{number}"
        lease = await pair[0].acquire(name, "ann", ttl=0.05)
        taking = asyncio.create_task(pair[1].acquire(name, "bob", wait=PATIENCE))
        with pytest.raises(LeaseLost):
            await renewing(pair[0], lease, 0.01 + number / 1000)
        assert (await taking).token == Token(0, 2)
        with pytest.raises(LeaseLost):
            await pair[0].renew(lease)
