"""The queue of a lock, over all gateways and in this process: first come, first served, woken without polling."""

import asyncio

import asyncpg
import pytest

from gateway.errors import LockHeld
from gateway.fencing.lease import Lease
from gateway.fencing.token import Token
from gateway.leases.wake_ups import WaitQueues
from gateway.observe.events import ServiceUnreachable
from tests.leases.stage import DEAF_TO_TIME, QUICK, Gateway, Pair, gateway, gone, pass_time, rows
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_release_at_another_gateway_is_heard_of_at_once(dsn_of_module: str, job: str) -> None:
    async with gateway(dsn_of_module, DEAF_TO_TIME) as first, gateway(dsn_of_module, DEAF_TO_TIME) as second:
        lease = await first.acquire(job, "ann")
        waiting = await second.waits(job, "bob")
        async with asyncio.timeout(PATIENCE):
            await first.release(lease)
            await waiting


async def test_without_listen_the_queue_is_looked_at(dsn_of_module: str, job: str) -> None:
    async with gateway(dsn_of_module) as first, gateway(dsn_of_module, listens=False) as second:
        lease = await first.acquire(job, "ann")
        waiting = await second.waits(job, "bob")
        await first.release(lease)
        assert (await waiting).token == Token(0, 2)
        later = await second.waits(job, "cid")
        async with asyncio.timeout(PATIENCE):
            await second.release(await waiting)
            await later


async def test_a_lost_session_that_listened_is_replaced(dsn_of_module: str, job: str) -> None:
    # It hears again after 0.1 s; until then looking has to do.
    async with gateway(dsn_of_module) as first, gateway(dsn_of_module) as second:
        lease = await first.acquire(job, "ann")
        waiting = await second.waits(job, "bob")
        listeners = "application_name = 'fencing-gateway listening' AND datname = current_database()"
        ended = await rows(first, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {listeners}")
        assert len(ended) >= 2
        async with asyncio.timeout(PATIENCE):
            while not unreachable(second):
                await asyncio.sleep(0.005)
            await first.release(lease)
            await waiting
            while not second.service._heartbeat._hears:
                await asyncio.sleep(0.01)
        assert len(unreachable(second)) == 1, "it is said once"


def unreachable(one: Gateway) -> list[ServiceUnreachable]:
    return [event for event in one.events if isinstance(event, ServiceUnreachable)]


async def test_at_the_end_of_its_wait_a_waiter_leaves_the_queue(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "ann")
    first = await pair[0].waits(job, "bob")
    with pytest.raises(LockHeld) as refused:
        await pair[1].acquire(job, "cid", wait=0.05)
    assert (refused.value.facts["holder"], refused.value.facts["position"]) == ("ann", 2)
    assert [one.holder for one in (await pair[0].service.inspect(job)).queue] == ["bob"]
    await gone([first])
    await pair[0].until(job, lambda view: view.waiters == 0)


async def test_who_hangs_up_while_it_is_handed_the_lock_passes_it_on(pair: Pair, job: str) -> None:
    for _ in range(10):
        lease = await pair[0].acquire(job, "ann")
        first, second = await pair[1].waits(job, "bob"), await pair[0].waits(job, "cid")
        first.cancel()
        async with asyncio.timeout(QUICK.collect):
            await pair[0].release(lease)
            await pair[0].release(await second)


async def leaves_no_place(one: Gateway, job: str) -> None:
    """Wait for the end of what the gateway does for clients that hung up, and look for a place in the queue."""
    await one.service._acquiring.close(PATIENCE)
    await asyncio.sleep(0)
    await one.service._leaving.close(PATIENCE)
    assert await rows(one, "SELECT FROM fencing.waiter WHERE resource = $1", job) == []


async def test_who_hangs_up_before_it_has_its_place_leaves_none(dsn_of_module: str, job: str) -> None:
    async with gateway(dsn_of_module, DEAF_TO_TIME) as one:
        await one.acquire(job, "ann")
        asking = asyncio.create_task(one.acquire(job, "bob", wait=PATIENCE))
        while not one.service._acquiring._tasks:
            await asyncio.sleep(0)
        await gone([asking])
        await leaves_no_place(one, job)


async def test_who_hangs_up_while_it_is_given_its_place_leaves_none(dsn_of_module: str, job: str) -> None:
    """The database is at it already, and will not hear of it: what it gives is given back at once."""
    async with gateway(dsn_of_module, DEAF_TO_TIME) as one:
        await one.acquire(job, "ann")
        stuck = await asyncpg.connect(dsn_of_module)
        try:
            async with stuck.transaction():
                await stuck.execute("SELECT FROM fencing.lock WHERE resource = $1 FOR UPDATE", job)
                asking = asyncio.create_task(one.acquire(job, "bob", wait=PATIENCE))
                async with asyncio.timeout(PATIENCE):
                    while not await stuck.fetch(
                        "SELECT FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
                    ):
                        await asyncio.sleep(0.01)
                await gone([asking])
        finally:
            await stuck.close()
        await leaves_no_place(one, job)


async def test_a_lock_that_nobody_has_is_looked_at(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "ann")
    waiting = await pair[1].waits(job, "bob")
    await rows(pair[0], "DELETE FROM fencing.lease WHERE resource = $1", job)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).token == Token(0, 2)


async def test_one_place_for_a_holder_however_often_it_asks(pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann")
    tasks = [await pair[0].waits(job, "bob")]
    tasks += [asyncio.create_task(one.acquire(job, "bob", wait=PATIENCE)) for one in pair]
    async with asyncio.timeout(PATIENCE):
        while not pair[1].service.waiting():
            await asyncio.sleep(0.005)
    assert (await pair[0].service.inspect(job)).waiters == 1
    await pair[1].release(lease)
    assert len({lease.id for lease in await asyncio.gather(*tasks)}) == 1


async def test_a_place_that_is_lost_is_asked_for_again(pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann")
    waiting = await pair[1].waits(job, "bob")
    await rows(pair[0], "DELETE FROM fencing.waiter WHERE resource = $1", job)
    await pair[0].until(job, lambda view: view.waiters == 1)
    await pair[0].release(lease)
    assert (await waiting).token == Token(0, 2)


async def test_a_place_nobody_waits_with_is_given_up(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "ann")
    waiting = await pair[0].waits(job, "bob")
    await rows(
        pair[0],
        "INSERT INTO fencing.waiter (resource, holder, caller, mode, ttl, delay, collect, attendant) "
        "SELECT resource, 'stray', caller, mode, ttl, delay, collect, attendant FROM fencing.waiter "
        "WHERE resource = $1",
        job,
    )
    view = await pair[0].until(job, lambda view: view.waiters == 1)
    assert [one.holder for one in view.queue] == ["bob"]
    await gone([waiting])


async def test_who_waits_at_another_gateway_by_now_stays(pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann")
    before = await pair[0].waits(job, "bob")
    after = asyncio.create_task(pair[1].acquire(job, "bob", wait=PATIENCE))
    there = pair[1].service._place.attendant
    async with asyncio.timeout(PATIENCE):
        while await rows(pair[0], "SELECT FROM fencing.waiter WHERE resource = $1 AND attendant <> $2", job, there):
            await asyncio.sleep(0.005)
    await gone([before])
    await pair[0].service._leaving.close(PATIENCE)
    assert [one.holder for one in (await pair[0].service.inspect(job)).queue] == ["bob"]
    await pair[0].release(lease)
    assert (await after).token == Token(0, 2)


async def test_a_gateway_that_died_before_it_collected_is_passed_over(dsn_of_module: str, pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann")
    async with gateway(dsn_of_module, running=False) as dying:
        dead = await dying.waits(job, "bob")
        late = await pair[1].waits(job, "cid")
        await pair[0].release(lease)
        view = await pair[1].service.inspect(job)
        assert ([hold.holder for hold in view.holders], view.token) == (["bob"], Token(0, 2)), "it is bob's for now"
        assert not late.done()
        await pass_time(pair[0], job, QUICK.collect)
        assert (await late).token == Token(0, 3)
        await gone([dead])
    told = await rows(pair[0], "SELECT holder FROM fencing.event WHERE resource = $1 AND holder = 'bob'", job)
    assert told == [], "nobody was told of it"


async def test_a_holder_may_change_what_it_waits_for(pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann", mode="shared")
    first = await pair[0].waits(job, "bob")
    await pair[1].waits(job, "cid", mode="shared")
    leases: list[Lease] = [await pair[1].acquire(job, "bob", mode="shared", wait=5.0)]
    assert leases[0].token == lease.token, "nobody waits for it alone any more"
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(LockHeld, match="shares"):
            await first


# The waiters in this process: tickets wake them, with one look for a whole line, by the first event.


@pytest.fixture
def looks() -> list[str]:
    return []


@pytest.fixture
def waiters(looks: list[str]) -> WaitQueues:
    return WaitQueues(looks.append)


async def test_news_that_overtake_the_answer_are_not_lost(waiters: WaitQueues) -> None:
    with waiters.line("a") as line:
        with waiters.asking(line) as asking:
            waiters.go_on("a", 5, None)
            assert waiters.take(line, asking, 5).done()
            assert not waiters.take(line, asking, 6).done()
        # Announcements from before the question are out of date: the database may have begun to count anew.
        with waiters.asking(line) as asking:
            assert not waiters.take(line, asking, 5).done()


async def test_a_line_is_looked_at_once_and_as_early_as_anybody_knows(waiters: WaitQueues, looks: list[str]) -> None:
    with waiters.line("a"):
        for look_in in (60.0, 0.01, 0.02, 30.0):
            waiters.go_on("a", None, look_in)
        await asyncio.sleep(0.1)
        assert looks == ["a"]
        waiters.go_on("a", None, 0.0)
        await asyncio.sleep(0.02)
        assert looks == ["a", "a"]
        waiters.go_on("a", None, 0.01)
    await asyncio.sleep(0.05)
    waiters.go_on("a", 1, 0.0)
    await asyncio.sleep(0.01)
    assert looks == ["a", "a"], "nobody waits any more"


async def test_a_ticket_is_given_up_by_the_last_who_waits_with_it(waiters: WaitQueues) -> None:
    with waiters.line("a") as line, waiters.asking(line) as asking:
        first, second = waiters.take(line, asking, 5), waiters.take(line, asking, 5)
        assert not waiters.give_up(line, 5, first)
        assert waiters.tickets() == {5}
        assert waiters.give_up(line, 5, second)
        assert waiters.tickets() == set()
