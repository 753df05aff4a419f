"""The promises of every source (gateway/client/source.py), shown against real servers, and behind a gateway."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import httpx
import pytest

from gateway.client.client import FencedClient
from gateway.client.errors import LockLost, NotAcquired, Unavailable
from tests.doctor.test_doctor import execute
from tests.processes import closed_port
from tests.running import API_KEY, config, running
from tests.sources.conftest import Kind, Sources, acquire
from tests.sources.servers import Network, Server
from tests.waiting import PATIENCE

T = TypeVar("T")

# Names that a key, a path or a pattern could be broken with; one is the beginning of another.
ODD = [
    "a", "a/b", "a/b/", ".", "..", "a//b", "zookeeper", "a:b*", "%2F", "é%20".encode().hex(), "(a)!$&'+,;=@~-_",
    "x" * 512,
]  # fmt: skip


async def again(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a call while the source is unavailable, and return its result."""
    async with asyncio.timeout(2 * PATIENCE):
        while True:
            with suppress(Unavailable):
                return await call()
            await asyncio.sleep(0.02)


async def test_a_renewal_keeps_the_token(sources: Sources, server: Server, kind: Kind, resource: str) -> None:
    source, rival, ttl = sources(server.address), sources(server.address), 3 * kind.ttl
    held = await acquire(source, resource, "one", ttl=ttl)
    # The rival waits for longer than its own time to live, too.
    waiting = asyncio.create_task(acquire(rival, resource, "rival", ttl=ttl, wait=None))
    for _ in range(5):
        await asyncio.sleep(ttl / 4)
        renewed = await source.renew(held, ttl)
        assert renewed.value == held.value
        assert renewed.valid_until > held.valid_until
        held = renewed
    assert not waiting.done()
    await source.release(held)
    taken = await asyncio.wait_for(waiting, PATIENCE)
    assert taken.value > held.value
    await rival.release(taken)


async def test_time_is_counted_from_before_the_request(
    sources: Sources, server: Server, net: Network, kind: Kind, resource: str
) -> None:
    source = sources(net.address)
    held = await acquire(source, resource, "one", ttl=10)
    net.stand_still()
    began, renewing = time.clock_gettime(time.CLOCK_BOOTTIME), asyncio.create_task(source.renew(held, 10))
    await asyncio.sleep(0.5)
    moved = time.clock_gettime(time.CLOCK_BOOTTIME)
    net.move()
    renewed = await renewing
    assert began + 9.9 < renewed.valid_until < moved + 9.9
    await source.release(renewed)


async def test_a_waiter_gives_up_in_time_and_leaves_nothing_behind(
    sources: Sources, server: Server, resource: str
) -> None:
    one, other = sources(server.address), sources(server.address)
    held = await acquire(one, resource, "one")
    began = time.monotonic()
    with pytest.raises(NotAcquired) as refused:
        await acquire(other, resource, "other", wait=0.3)
    assert 0.25 < time.monotonic() - began < PATIENCE
    assert refused.value.holder == "one"
    await one.release(held)
    await one.release(await acquire(one, resource, "one"))


async def test_many_holders_one_after_the_other(sources: Sources, server: Server, resource: str) -> None:
    source, tokens, inside = sources(server.address), [], 0

    async def hold(name: str) -> None:
        nonlocal inside
        held = await acquire(source, resource, name, wait=2 * PATIENCE)
        inside += 1
        assert inside == 1
        tokens.append(held.value)
        await asyncio.sleep(0)
        inside -= 1
        await source.release(held)

    async with asyncio.TaskGroup() as tasks:
        for number in range(8):
            tasks.create_task(hold(f"holder-{number}"))
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 8


async def test_a_holder_that_is_paused_for_too_long_is_overtaken(
    sources: Sources, server: Server, net: Network, kind: Kind, resource: str
) -> None:
    paused, other = sources(net.address), sources(server.address)
    held = await acquire(paused, resource, "paused", ttl=kind.ttl)
    net.stand_still()
    taken = await acquire(other, resource, "other", wait=PATIENCE)
    assert time.clock_gettime(time.CLOCK_BOOTTIME) >= held.valid_until
    assert taken.value > held.value
    net.move()
    with pytest.raises(LockLost):
        await again(lambda: paused.renew(held, kind.ttl))
    assert not await paused.holds(held)
    await paused.release(held)
    assert await other.holds(taken)
    await other.release(taken)


async def test_each_name_is_a_lock_of_its_own(sources: Sources, server: Server) -> None:
    source = sources(server.address)
    held = [await acquire(source, name, "one") for name in ODD]
    for one in held:
        assert await source.holds(one)
        with pytest.raises(NotAcquired):
            await acquire(source, one.resource, "other")
        await source.release(one)
        assert not await source.holds(one)


async def test_a_cancelled_acquire_leaves_nothing_behind(
    sources: Sources, server: Server, net: Network, resource: str
) -> None:
    source, other = sources(net.address), sources(server.address)
    await source.release(await acquire(source, resource, "warm"))
    net.stand_still()
    taking = asyncio.create_task(acquire(source, resource, "cancelled"))
    await asyncio.sleep(0.05)
    taking.cancel()
    await asyncio.sleep(0.05)
    net.move()
    with pytest.raises(asyncio.CancelledError):
        await taking
    # The request under way arrives before any other. No effect of it may remain.
    await other.release(await acquire(other, resource, "other", wait=5))


async def test_a_cancelled_waiter_leaves_the_queue(sources: Sources, server: Server, resource: str) -> None:
    source = sources(server.address)
    held = await acquire(source, resource, "one")
    waiting = asyncio.create_task(acquire(source, resource, "cancelled", wait=None))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await source.release(held)
    await source.release(await acquire(source, resource, "other"))


async def test_a_lost_answer_leaves_nothing_behind(
    sources: Sources, server: Server, net: Network, kind: Kind, resource: str
) -> None:
    source, other = sources(net.address), sources(server.address)
    before = await acquire(source, resource, "one")
    await source.release(before)
    net.lose_answer_to(kind.taking)
    held = await again(lambda: acquire(source, resource, "one"))
    assert net.lost == 1
    assert held.value > before.value
    assert await source.holds(held)
    await source.release(held)
    await other.release(await acquire(other, resource, "other"))


async def test_a_server_killed_and_started_again_goes_on_counting(sources: Sources, own: Server, resource: str) -> None:
    source = sources(own.address)
    held = await acquire(source, resource, "one")
    own.restart()
    assert await again(lambda: source.holds(held))
    assert (await again(lambda: source.renew(held, 60))).value == held.value
    await source.release(held)
    own.restart()
    taken = await again(lambda: acquire(source, resource, "two"))
    assert taken.value > held.value
    await source.release(taken)


async def test_a_server_that_stands_still_is_unavailable_and_goes_on(
    sources: Sources, own: Server, resource: str
) -> None:
    source = sources(own.address, timeout=0.5)
    held = await again(lambda: acquire(source, resource, "one"))
    own.stand_still()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await source.renew(held, 60)
    own.go_on()
    assert (await again(lambda: source.renew(held, 60))).value == held.value
    await again(lambda: source.release(held))
    taken = await again(lambda: acquire(source, resource, "two"))
    assert taken.value > held.value
    await source.release(taken)


async def test_nobody_there_is_unavailable(sources: Sources, resource: str) -> None:
    with closed_port() as port:
        source = sources(f"127.0.0.1:{port}", timeout=0.3)
        with pytest.raises(Unavailable):
            await acquire(source, resource, "one", wait=10)


async def test_shared_locks_are_not_to_be_had(sources: Sources, server: Server, resource: str) -> None:
    with pytest.raises(ValueError, match="exclusive"):
        await sources(server.address).acquire(resource, holder="one", ttl=1, wait=0, mode="shared")


async def test_after_closing_it_opens_again(sources: Sources, server: Server, resource: str) -> None:
    source = sources(server.address)
    await source.release(await acquire(source, resource, "one"))
    await source.aclose()
    held = await acquire(source, resource, "one")
    with pytest.raises(TypeError):
        await source.renew(replace(held, handle=None), 1)
    await source.release(held)


# Each lock service, the gateway and the client library together: zombies are refused.


RESOURCE = "public.jobs/1"


@pytest.fixture
async def gateway(dsn: str) -> AsyncIterator[str]:
    """The origin of a gateway with a table of one row, whose lock is ``RESOURCE``."""
    await execute(dsn, "CREATE TABLE jobs (id bigint PRIMARY KEY, done_by text); INSERT INTO jobs VALUES (1, '')")
    caller = {"name": "writer", "api_key": API_KEY, "groups": ["admins"]}
    async with running(config(dsn, callers=[caller])) as origin:
        yield origin


def anybody(gateway: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway, headers={"Authorization": f"Bearer {API_KEY}", **headers}, timeout=PATIENCE
    )


async def write(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.patch("/v1/tables/jobs?id=eq.1", json={"done_by": name})


async def test_a_zombie_is_refused(gateway: str, sources: Sources, server: Server, net: Network, kind: Kind) -> None:
    async with FencedClient(gateway, api_key=API_KEY) as one, FencedClient(gateway, api_key=API_KEY) as other:
        paused, awake = sources(net.address), sources(server.address)
        async with one.lock(RESOURCE, source=paused, ttl=3 * kind.ttl, on_loss="tell") as zombie:
            token, headers = zombie.token, zombie.headers
            assert (await write(zombie.http, "zombie")).is_success
            net.stand_still()
            async with (
                other.lock(RESOURCE, source=awake, ttl=60, wait=PATIENCE) as lock,
                anybody(gateway, **headers) as late,
            ):
                assert int(lock.token) > int(token)
                refused = await write(late, "zombie")
                assert (refused.status_code, refused.json()["code"]) == (412, "token-stale")
                assert (await write(lock.http, "successor")).is_success
            await zombie.lost.wait()
            with pytest.raises(LockLost):
                zombie.check()
            net.move()
