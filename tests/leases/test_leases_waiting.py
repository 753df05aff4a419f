"""The queue over HTTP: first come, first served, at whichever gateway; who hangs up makes room for the next."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.leases.asking import Caller, Service, calling, problem, served, value
from tests.running import API_KEY
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def queued(
    caller: Caller, resource: str, names: str, **wish: object
) -> AsyncIterator[Sequence[asyncio.Future[Any]]]:
    """Holders that wait for a lock in this order; none is left waiting."""
    before = (await caller.lock(resource))["waiters"]
    waiting = []
    try:
        for number, name in enumerate(names, before + 1):
            waiting.append(asyncio.ensure_future(caller.got(resource, name, wait=PATIENCE, **wish)))
            await caller.until(resource, waiters=number)
        yield waiting
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@asynccontextmanager
async def hanging(service: Service, resource: str, **wish: object) -> AsyncIterator[asyncio.StreamWriter]:
    """A client of which nothing is known but its connection, and that waits."""
    address = urlsplit(service.origin)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps({"wait": PATIENCE, **wish}).encode()
    head = f"POST /v1/leases/{resource} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {API_KEY}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await service.writer.until(resource, waiters=1)
    yield writer
    assert reader.at_eof() or not reader._buffer, "it was never answered"  # type: ignore[attr-defined]
    writer.close()


async def test_first_come_first_served(service: Service, job: str) -> None:
    lease = await service.writer.got(job, "a")
    served_to = []
    async with queued(service.writer, job, "dbec") as waiting:
        queue = (await service.other.lock(job))["queue"]
        assert [(one["holder"], one["caller"]) for one in queue] == [(name, "writer") for name in "dbec"]
        assert problem(refused := await service.other.acquire(job, "z")) == (409, "lock-held")
        assert refused.json()["position"] == 5
        await service.writer.release(lease)
        for one in waiting:
            served_to.append(await one)
            assert len((await service.writer.lock(job))["holders"]) == 1
            await service.writer.release(served_to[-1])
    assert [one["holder"] for one in served_to] == list("dbec")
    assert [value(one) for one in served_to] == [2, 3, 4, 5]


@pytest.mark.thorough
async def test_a_lapsed_lease_is_handed_over_as_well(service: Service, job: str) -> None:
    lease = await service.writer.got(job, "a", ttl=100)
    async with queued(service.writer, job, "bc", ttl=100) as waiting:
        for one, holder, token in zip(waiting, "bc", (2, 3), strict=True):
            await service.writer.renew(lease, ttl=0.1)
            lease = await one
            assert (lease["holder"], value(lease)) == (holder, token)


async def test_a_broken_lease_is_handed_over_as_well(service: Service, job: str) -> None:
    await service.writer.got(job, "a")
    async with queued(service.writer, job, "b") as (waiting,):
        await service.operator.break_lock(job, "1")
        assert value(await waiting) == 2


async def test_whoever_is_handed_a_lock_has_it_for_all_of_its_time(service: Service, job: str) -> None:
    lease = await service.writer.got(job, "a")
    async with queued(service.writer, job, "b", ttl=100) as (waiting,):
        await service.writer.release(lease)
        assert 50 < (await waiting)["expires_in"] <= 100
        assert 50 < (await service.writer.lock(job))["holders"][0]["expires_in"] <= 100


async def test_sharers_get_in_together_but_not_past_whoever_waits_for_it_alone(service: Service, job: str) -> None:
    first = await service.writer.got(job, "a", mode="shared")
    async with (
        queued(service.writer, job, "b") as (alone,),
        queued(service.writer, job, "cd", mode="shared") as sharing,
    ):
        await service.writer.release(first)
        held = await alone
        assert not any(one.done() for one in sharing)
        await service.writer.release(held)
        shared = await asyncio.gather(*sharing)
        assert [value(one) for one in (first, held, *shared)] == [1, 2, 3, 3]


async def test_nobody_waits_longer_than_it_wanted_to(service: Service, job: str) -> None:
    await service.writer.got(job, "a")
    answer = await service.writer.acquire(job, "b", wait=0.2)
    assert problem(answer) == (409, "lock-held")
    assert answer.elapsed.total_seconds() > 0.19
    assert answer.json()["position"] == 1
    assert (await service.writer.lock(job))["waiters"] == 0


async def lingers(service: Service, job: str) -> None:
    """Return once the queue keeps a place without an attendant, and keep that place for as long as the test takes."""
    sql = (
        "UPDATE fencing.waiter SET until = until + interval '1 min' WHERE resource = $1 AND until IS NOT NULL "
        "RETURNING resource"
    )
    async with asyncio.timeout(PATIENCE):
        while not await service.rows(sql, job):
            await asyncio.sleep(0.01)


async def test_who_names_its_request_keeps_its_place_for_a_moment(service: Service, job: str) -> None:
    lease = await service.writer.got(job, "a")
    assert problem(await service.writer.acquire(job, "b", wait=0.1, request="r")) == (409, "lock-held")
    await lingers(service, job)
    async with queued(service.writer, job, "c") as (behind,):
        await service.writer.release(lease)
        resumed = await service.writer.got(job, "b", wait=30, request="r")
        assert value(resumed) == 2
        assert not behind.done()
        await service.writer.release(resumed)
        assert value(await behind) == 3


class TestHangingUp:
    async def test_its_place_goes_to_the_next(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a")
        async with hanging(service, job, holder="b") as client, queued(service.writer, job, "c") as (behind,):
            client.close()
            await service.writer.until(job, waiters=1)
            await service.writer.release(lease)
            assert value(await behind) == 2, "no token was spent on who hung up"

    async def test_a_named_request_is_resumed(self, service: Service, job: str) -> None:
        """The connection was lost, not the wish: the client comes back for it."""
        lease = await service.writer.got(job, "a")
        async with (
            hanging(service, job, holder="b", request="r") as client,
            queued(service.writer, job, "c") as (behind,),
        ):
            client.transport.abort()
            await lingers(service, job)
            again = asyncio.ensure_future(service.writer.got(job, "b", wait=30, request="r"))
            await service.writer.release(lease)
            held = await again
            assert value(held) == 2
            assert not behind.done()
            await service.writer.release(held)
            assert value(await behind) == 3

    async def test_after_the_grant_the_same_request_gets_the_same_token(self, service: Service, job: str) -> None:
        async with hanging_up_after(service, job, holder="b", request="r"):
            granted = await service.writer.until(job, mode="exclusive")
        again = await service.writer.acquire(job, "b", request="r")
        assert (again.status_code, again.json()["token"]) == (200, granted["token"])


@asynccontextmanager
async def hanging_up_after(service: Service, resource: str, **wish: object) -> AsyncIterator[None]:
    """A client that is gone before it has read its answer."""
    address = urlsplit(service.origin)
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps(wish).encode()
    head = f"POST /v1/leases/{resource} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {API_KEY}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    yield
    writer.transport.abort()


@pytest.mark.thorough
@pytest.mark.parametrize("listen", [True, False])
async def test_the_queue_is_one_whatever_the_gateway(service: Service, job: str, *, listen: bool) -> None:
    """``listen`` False: behind a pooler a gateway hears no notifications, so it has to poll."""
    async with served(service.dsn, postgres={"dsn": service.dsn, "listen": listen}) as second:
        lease = await service.writer.got(job, "a")
        async with queued(second.writer, job, "b") as (there,), queued(service.writer, job, "c") as (here,):
            await service.writer.release(lease)
            handed = await there
            assert value(handed) == 2
            assert (await service.writer.renew(handed)).status_code == 200
            await second.writer.release(handed)
            assert value(await here) == 3


async def test_two_gateways_never_serve_two_holders(service: Service, job: str) -> None:
    """A holder that has been granted the lock is alone with it until it says that it releases the lock."""
    inside, tokens = [], []

    async def holder(caller: Caller, name: str) -> None:
        for _ in range(8):
            lease = await caller.got(job, name, wait=PATIENCE)
            inside.append(name)
            assert inside == [name]
            tokens.append(value(lease))
            await asyncio.sleep(0)
            inside.remove(name)
            assert (await caller.release(lease)).status_code == 204

    async with served(service.dsn) as second, calling(second.origin) as elsewhere, asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(holder(elsewhere if number % 2 else service.writer, f"holder-{number}"))
    assert tokens == sorted(set(tokens))
    assert len(tokens) == 48
