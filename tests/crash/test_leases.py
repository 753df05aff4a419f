"""A gateway is killed or paused while granting, keeping and releasing: one holder, one token, nothing lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.crash.processes import Gateway, Nursery, Victims
from tests.leases.asking import Caller, calling, problem, value
from tests.tiers import first
from tests.waiting import PATIENCE

HANGS_UP = httpx.TransportError


class Gateways:
    """One that is well, and others that will not be."""

    def __init__(self, hatch: Callable[[], Gateway]) -> None:
        self.healthy, self.victims = hatch(), Victims(hatch)

    @asynccontextmanager
    async def callers(self) -> AsyncIterator[tuple[Gateway, Caller, Caller]]:
        """Yield a gateway to be disturbed, a caller of it, and a caller of the healthy gateway."""
        victim, sound = self.victims.take(), False
        try:
            async with calling(_origin(victim)) as doomed, calling(_origin(self.healthy)) as well:
                yield victim, doomed, well
                sound = True
        finally:
            self.victims.give_back(victim, sound=sound)


@pytest.fixture(scope="module")
def gateways(crash_dsn: str) -> Iterator[Gateways]:
    with Nursery({"dsn": crash_dsn}) as nursery:
        built = Gateways(nursery.hatch)
        yield built
        built.victims.close()


@pytest.fixture
def job() -> str:
    """A lock that no other test uses."""
    return f"job/{uuid4().hex}"


async def _down(
    victim: Gateway, step: str, how: str, asking: Coroutine[Any, Any, httpx.Response]
) -> "asyncio.Task[httpx.Response]":
    """Ask, and return the pending request once the gateway is down at the step."""
    victim.trap(step, 1, how)
    pending = asyncio.create_task(asking)
    # A killed process hangs up a moment before it is seen to be dead.
    await asyncio.to_thread(victim.wait_down, how, lambda: pending.done() and pending.exception() is None)
    return pending


def _origin(gateway: Gateway) -> str:
    return f"http://127.0.0.1:{gateway.port}"


@pytest.mark.thorough
@pytest.mark.parametrize("barrier", first([True, False]))
@pytest.mark.parametrize("how", first(["stop", "kill"]))
@pytest.mark.parametrize("step", ["leases.acquire.before", "leases.acquire.after"])
async def test_while_granting(gateways: Gateways, job: str, step: str, how: str, *, barrier: bool) -> None:
    """The caller retries the same request at another gateway. It never gets a second token."""
    wish = {"ttl": 30, "request": "r", "barrier": barrier}
    async with gateways.callers() as (victim, doomed, well):
        pending = await _down(victim, step, how, doomed.acquire(job, "a", **wish))
        again = await well.acquire(job, "a", **wish)
        assert again.status_code == (201 if step.endswith("before") else 200)
        assert value(lease := again.json()) == 1
        assert problem(await well.acquire(job, "b")) == (409, "lock-held")
        if how == "stop":
            victim.resume()
            late = await pending
            assert late.status_code in (200, 201)
            assert (late.json()["lease"], late.json()["token"]) == (lease["lease"], "1")
        else:
            with pytest.raises(HANGS_UP):
                await pending
        fence = (await well.http.get(f"/v1/fences/{job}")).json()
        assert fence["token"] == ("1" if barrier else None)
        view = await well.lock(job)
        assert [(hold["holder"], hold["token"]) for hold in view["holders"]] == [("a", "1")]
        assert (await well.release(lease)).status_code == 204
        assert value(await well.got(job, "b")) == 2


async def test_paused_until_the_lease_is_over(gateways: Gateways, job: str) -> None:
    """The grant reaches its holder when another holder already has the lock. That grant is worthless."""
    async with gateways.callers() as (victim, doomed, well):
        pending = await _down(victim, "leases.acquire.after", "stop", doomed.acquire(job, "a", ttl=0.3))
        successor = await well.got(job, "b", wait=PATIENCE, barrier=True)
        assert value(successor) == 2
        victim.resume()
        late = (await pending).json()
        assert value(late) == 1
        for caller in (doomed, well):
            assert problem(await caller.renew(late)) == (410, "lease-lost")
            assert problem(await caller.release(late)) == (410, "lease-lost")
            assert problem(await caller.barrier(job, late["token"])) == (412, "token-stale")
        assert (await well.renew(successor)).status_code == 200


async def test_killed_with_somebody_in_the_queue(gateways: Gateways, job: str) -> None:
    """It keeps its place for the moment that its client needs to turn to another gateway."""
    async with gateways.callers() as (victim, doomed, well):
        lease = await well.got(job, "a")
        pending = asyncio.ensure_future(doomed.acquire(job, "b", wait=PATIENCE, request="r"))
        await well.until(job, waiters=1)
        behind = asyncio.ensure_future(well.got(job, "c", wait=PATIENCE))
        await well.until(job, waiters=2)
        victim.kill()
        with pytest.raises(HANGS_UP):
            await pending
        await well.release(lease)
        resumed = await well.got(job, "b", wait=PATIENCE, request="r")
        assert value(resumed) == 2
        assert not behind.done()
        await well.release(resumed)
        assert value(await behind) == 3


@pytest.mark.parametrize(
    ("step", "again", "held"),
    [
        ("leases.renew.before", 200, True),
        ("leases.renew.after", 200, True),
        ("leases.release.before", 204, False),
        ("leases.release.after", 410, False),
    ],
)
@pytest.mark.parametrize("how", first(["kill", "stop"]))
async def test_while_keeping_and_releasing(
    gateways: Gateways, job: str, step: str, again: int, how: str, *, held: bool
) -> None:
    """Sent again to another gateway, it does what it would have done; 410 after a release says that it had."""
    async with gateways.callers() as (victim, doomed, well):
        lease = await doomed.got(job, "a")
        ask = Caller.renew if held else Caller.release
        pending = await _down(victim, step, how, ask(doomed, lease))
        assert (await ask(well, lease)).status_code == again
        assert bool((await well.lock(job))["holders"]) is held
        if how == "stop":
            victim.resume()
            # The first answer to the release is late by then: it may say that another request has released the lease.
            assert (await pending).status_code in (again, 204, 410)
        else:
            with pytest.raises(HANGS_UP):
                await pending
        assert bool((await well.lock(job))["holders"]) is held
