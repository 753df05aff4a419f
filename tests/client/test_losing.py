"""How a program gets to know that its lock is lost, and what becomes of the work it is at."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from gateway.client import FencedClient, Held, LockLost, NotAcquired, Stale, Unavailable, source
from gateway.client.lock import Lock
from tests.client.stage import Counter, Stage, slow
from tests.waiting import PATIENCE

SOON: dict[str, Any] = {"ttl": 0.9, "barrier": False}
"""Renewed after 0.3 s, which is when a loss shows. By the slow clock it lasts for a minute and a half."""


@dataclass
class Hand:
    """A clock that stands still until a test moves it."""

    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def counter() -> Counter:
    return Counter(clock=slow)


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[FencedClient]:
    async with stage.client(clock=slow) as one:
        yield one


async def test_the_work_is_cancelled(client: FencedClient, counter: Counter, job: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    cancelled: list[bool] = []
    with pytest.raises(LockLost, match="given it to somebody else") as lost:
        async with client.lock(job, source=counter, **SOON) as lock:
            counter.take_away(job)
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                cancelled.append(lock.lost.is_set())
                raise
    assert cancelled == [True]
    assert isinstance(lost.value.__cause__, LockLost)
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # no cancellation is left over that would hit the next await


async def test_a_lock_lost_while_the_next_one_is_waited_for(stage: Stage, client: FencedClient, job: str) -> None:
    """The place in the queue of the second is given up."""
    counter = Counter(clock=slow)
    async with client.lock(f"{job}/busy"):
        with pytest.raises(LockLost):
            async with client.lock(f"{job}/outer", source=counter, **SOON):
                counter.take_away(f"{job}/outer")
                await client.lock(f"{job}/busy").__aenter__()
        assert stage.standing(f"{job}/busy")["waiters"] == 0


async def test_the_work_is_told(client: FencedClient, counter: Counter, job: str) -> None:
    told: list[str] = []
    async with client.lock(job, source=counter, on_loss="tell", on_lost=lambda: told.append("lost"), **SOON) as lock:
        assert not lock.lost.is_set()
        assert 0 < lock.expires_in < 0.9
        counter.take_away(job)
        await asyncio.wait_for(lock.lost.wait(), PATIENCE)
        assert (told, lock.expires_in) == (["lost"], 0.0)
        with pytest.raises(LockLost):
            lock.check()
    with pytest.raises(LockLost, match="given it to somebody else"):
        lock.check()


async def test_cancellations_by_others_are_theirs(client: FencedClient, counter: Counter, job: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), client.lock(job, source=counter, **SOON):
            await asyncio.sleep(20)
    assert counter.holders == {}

    async def work() -> None:
        async with client.lock(job, source=counter, **SOON) as lock:
            counter.take_away(job)
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                assert lock.lost.is_set()
                stopped.set()
                await asyncio.sleep(20)  # the cleanup, when another task wants the end, too

    stopped = asyncio.Event()
    task = asyncio.create_task(work())
    await asyncio.wait_for(stopped.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancellation_as_anyio_does_it(stage: Stage, client: FencedClient, job: str) -> None:
    """A task that waits below its scope is cancelled at every step, and releases the lock all the same."""
    with anyio.CancelScope() as scope:
        async with client.lock(job):
            scope.cancel()
            await asyncio.sleep(20)
    assert scope.cancelled_caught
    assert stage.standing(job)["holders"] == []


async def test_a_loss_before_the_block_begins(
    client: FencedClient, counter: Counter, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The barrier may take long; the lock is kept meanwhile, or known to be lost."""

    async def stand(self: Lock, held: Held) -> None:
        while counter.renewals < 2:
            await asyncio.sleep(0.01)
        counter.take_away(job)
        await asyncio.sleep(20)

    monkeypatch.setattr(Lock, "_stand", stand)
    with pytest.raises(LockLost):
        await client.lock(job, source=counter, ttl=0.9).__aenter__()


async def test_what_the_work_raises_is_raised(client: FencedClient, counter: Counter, job: str) -> None:
    with pytest.raises(KeyError):
        async with client.lock(job, source=counter, **SOON):
            counter.trouble = Unavailable("No release either.")
            raise KeyError
    counter.trouble = None
    counter.take_away(job)
    with pytest.raises(KeyError):
        async with client.lock(job, source=counter, **SOON) as lock:
            counter.take_away(job)
            try:
                await lock.lost.wait()
            finally:
                raise KeyError


@pytest.mark.parametrize("on_loss", ["cancel", "tell"])
async def test_work_that_did_not_look_has_not_succeeded(stage: Stage, job: str, on_loss: Any) -> None:
    """The event loop was blocked past the end of the lease; on return, the clock tells."""
    hand = Hand()

    async def work() -> bool:
        async with (
            stage.client(clock=hand) as client,
            client.lock(job, source=Counter(clock=hand), on_loss=on_loss, **SOON) as lock,
        ):
            hand.at += 1
            return lock.lost.is_set() if on_loss == "tell" else True

    if on_loss == "tell":
        assert await work()
    else:
        with pytest.raises(LockLost, match="not renewed in time"):
            await work()


async def test_trouble_that_passes_in_time(client: FencedClient, counter: Counter, job: str) -> None:
    async with client.lock(job, source=counter, **SOON) as lock:
        counter.trouble = Unavailable("Not now.")
        async with asyncio.timeout(PATIENCE):
            while counter.refused < 2:
                await asyncio.sleep(0.01)
        counter.trouble = None
        async with asyncio.timeout(PATIENCE):
            while counter.renewals < 2:
                await asyncio.sleep(0.01)
        lock.check()


@pytest.mark.thorough
@pytest.mark.parametrize("trouble", [Unavailable("Not now."), ConnectionResetError("gone"), "silence"])
async def test_trouble_that_lasts(stage: Stage, job: str, trouble: Any) -> None:
    hand = Hand()
    counter = Counter(clock=hand)
    with pytest.raises(LockLost, match="not renewed in time") as lost:
        async with stage.client(clock=hand) as client, client.lock(job, source=counter, **SOON) as lock:
            if trouble == "silence":
                counter.silent = True
            else:
                counter.trouble = trouble
            async with asyncio.timeout(PATIENCE):
                while counter.refused + counter.unanswered < 2:
                    await asyncio.sleep(0.01)
            lock.check()
            hand.at += 1
            await asyncio.sleep(PATIENCE)
    cause = lost.value.__cause__
    assert isinstance(cause, TimeoutError) if trouble == "silence" else cause is trouble


@pytest.mark.thorough
async def test_the_clock_of_a_machine_that_was_suspended(stage: Stage, job: str) -> None:
    """Timers stood still with the machine; the clock went on, and is looked at before anything is sent."""
    hand = Hand()
    counter = Counter(clock=hand)
    async with stage.client(clock=hand) as client:
        async with client.lock(job, source=counter, ttl=3600, on_loss="tell") as lock:
            assert lock.expires_in == pytest.approx(3600 * 0.99)
            hand.at += 3560
            assert not lock.lost.is_set()
            hand.at += 10
            with pytest.raises(LockLost, match="not renewed in time"):
                await lock.http.put("/v1/tables/accounts?id=eq.1", json={"id": 1})
            assert lock.lost.is_set()
        with pytest.raises(LockLost):  # and soon by itself, whatever the timers say
            async with client.lock(job, source=counter, ttl=3600):
                hand.at += 3600
                await asyncio.sleep(20)
    assert stage.rejections(job) == []


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock for it")
def test_the_clock_is_one_that_runs_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = {time.CLOCK_BOOTTIME: 7.0}
    monkeypatch.setattr(time, "clock_gettime", readings.__getitem__)
    assert source.now() == 7.0


async def test_a_refusal_in_the_midst_of_the_work(stage: Stage, client: FencedClient) -> None:
    """The sender of the stale write gets ``Stale``, and no cancellation on top of that."""
    number = stage.account()
    resource = f"public.accounts/{number}"
    row = {"id": number, "owner": "x"}
    with pytest.raises(Stale):
        async with client.lock(resource) as lock:
            stage.raised(resource, "1000")
            await lock.http.put(f"/v1/tables/accounts?id=eq.{number}", json=row)
    await asyncio.sleep(0)
    # A program that swallows it does not look as if it had succeeded.
    with pytest.raises(LockLost, match="taken over") as lost:
        async with client.lock(resource) as lock:
            stage.raised(resource, "2000")
            with pytest.raises(Stale):
                await lock.http.put(f"/v1/tables/accounts?id=eq.{number}", json=row)
    assert lost.value.facts["fence"] == "2000"
    # Sent by a part of the work, it ends all of it.
    with pytest.raises(ExceptionGroup) as group:
        async with client.lock(resource) as lock, asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(asyncio.sleep(20))
            stage.raised(resource, "3000")
            tasks.create_task(lock.http.put(f"/v1/tables/accounts?id=eq.{number}", json=row))
    assert group.group_contains(Stale)
    assert waiting.cancelled()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_another_fence_is_no_loss_of_this_lock(stage: Stage, client: FencedClient, job: str) -> None:
    number = stage.account()
    stage.raised(f"public.accounts/{number}", "1000")
    async with client.lock(job) as lock:
        with pytest.raises(Stale):
            await lock.http.put(
                f"/v1/tables/accounts?id=eq.{number}",
                json={"id": number},
                headers={"Fencing-Token": lock.token, "Fencing-Holder": lock.holder},
            )
        lock.check()


async def test_after_the_block_nothing_is_written(client: FencedClient, counter: Counter, job: str) -> None:
    async with client.lock(job, source=counter, **SOON) as lock:
        kept = lock.http
    with pytest.raises(LockLost, match="has been released"):
        await kept.get("/v1/tables/accounts")
    assert not lock.lost.is_set()
    with pytest.raises(RuntimeError, match="once"):
        await lock.__aenter__()


async def test_another_token_from_a_renewal(client: FencedClient, counter: Counter, job: str) -> None:
    with pytest.raises(LockLost, match="another token"):
        async with client.lock(job, source=counter, **SOON):
            counter.renew = _renewed_as_another  # type: ignore[method-assign]
            await asyncio.sleep(20)


async def _renewed_as_another(held: Any, ttl: float) -> Any:
    return type(held)(held.resource, held.holder, held.value + 1, held.valid_until + ttl)


async def test_release_that_does_not_come_back(
    client: FencedClient, counter: Counter, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.client.lock.RELEASE", 0.05)

    async def hang(held: object) -> None:
        await asyncio.Event().wait()

    counter.release = hang  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE), client.lock(job, source=counter, **SOON):
        pass
    with pytest.raises(NotAcquired):
        await client.lock(job, source=counter, **SOON).__aenter__()


async def test_release_survives_a_cancellation(client: FencedClient, counter: Counter, job: str) -> None:
    """Also one that comes while it is under way."""
    releasing, go_on = asyncio.Event(), asyncio.Event()
    release = counter.release

    async def slow(held: Any) -> None:
        releasing.set()
        await go_on.wait()
        await release(held)

    async def work() -> None:
        async with client.lock(job, source=counter, ttl=20, barrier=False):
            entered.set()
            await asyncio.sleep(20)

    entered = asyncio.Event()
    counter.release = slow  # type: ignore[method-assign]
    task = asyncio.create_task(work())
    await asyncio.wait_for(entered.wait(), PATIENCE)
    task.cancel()
    await asyncio.wait_for(releasing.wait(), PATIENCE)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert counter.holders == {}
