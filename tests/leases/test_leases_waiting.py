"""Waiting over real HTTP: the queue, clients that hang up, and barriers before a new holder reads."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from tests.leases.asking import Caller, Service, problem, served, value
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


async def asked(service: Service, resource: str, **wish: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of which nothing is known but its connection, and that has asked for a lock."""
    address = urlsplit(service.origin)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    body = json.dumps(wish).encode()
    head = f"POST /v1/leases/{resource} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {API_KEY}\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return reader, writer


@asynccontextmanager
async def hanging(service: Service, resource: str, **wish: object) -> AsyncIterator[asyncio.StreamWriter]:
    """Such a client, which waits."""
    reader, writer = await asked(service, resource, wait=PATIENCE, **wish)
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


async def lingers(service: Service, job: str) -> None:
    """Return once the queue keeps a place without an attendant, and keep that place for as long as the test takes."""
    sql = (
        "UPDATE fencing.waiter SET until = until + interval '1 min' WHERE resource = $1 AND until IS NOT NULL "
        "RETURNING resource"
    )
    async with asyncio.timeout(PATIENCE):
        while not await service.rows(sql, job):
            await asyncio.sleep(0.01)


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
        _, client = await asked(service, job, holder="b", request="r")
        granted = await service.writer.until(job, mode="exclusive")
        client.transport.abort()
        again = await service.writer.acquire(job, "b", request="r")
        assert (again.status_code, again.json()["token"]) == (200, granted["token"])


@asynccontextmanager
async def fence_in_use(service: Service, resource: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Let another transaction lock the existing fence until the block ends."""
    await service.writer.barrier(resource, "1")
    connection = await asyncpg.connect(service.dsn)
    transaction = connection.transaction()
    await transaction.start()
    await connection.fetch("SELECT FROM fencing.fence WHERE resource = $1 FOR UPDATE", resource)
    try:
        yield connection
        await transaction.commit()
    finally:
        await connection.close()


@pytest.mark.parametrize(("mode", "raised_by"), [("exclusive", "b"), ("shared", None)])
async def test_nothing_older_takes_effect_any_more(
    service: Service, job: str, mode: str, raised_by: str | None
) -> None:
    old = await service.writer.got(job, "a", ttl=0.1)
    assert (await service.writer.barrier(job, old["token"])).status_code == 200
    await asyncio.sleep(0.11)
    new = await service.writer.got(job, "b", mode=mode, barrier=True)
    fence = (await service.writer.http.get(f"/v1/fences/{job}")).json()
    assert (fence["token"], fence["raised_by"], fence["caller"]) == (new["token"], raised_by, "writer")
    assert problem(await service.writer.barrier(job, old["token"])) == (412, "token-stale")
    assert (await service.writer.acquire(job, "b", mode=mode, barrier=True)).status_code == 200, "and once more"


async def test_those_who_share_are_not_taken_for_two_holders_of_one_token(service: Service, job: str) -> None:
    for name in "ab":
        assert (await service.writer.acquire(job, name, mode="shared", barrier=True)).status_code == 201


async def test_without_it_the_fence_stays_where_it_is(service: Service, job: str) -> None:
    await service.writer.got(job, "a")
    assert (await service.writer.http.get(f"/v1/fences/{job}")).json()["token"] is None


async def test_a_barrier_that_fails_leaves_the_lease_to_be_asked_for_again(service: Service, job: str) -> None:
    async with served(service.dsn, postgres={"dsn": service.dsn}, limits={"lock_timeout": 0.2}) as gateway:
        async with fence_in_use(service, job):
            failed = await gateway.writer.acquire(job, "a", barrier=True)
            assert problem(failed) == (503, "unavailable")
            assert [hold["holder"] for hold in (await gateway.writer.lock(job))["holders"]] == ["a"]
        again = await gateway.writer.acquire(job, "a", barrier=True)
        assert (again.status_code, again.json()["token"]) == (200, "2")
        assert (await gateway.writer.http.get(f"/v1/fences/{job}")).json()["token"] == "2"


async def test_a_barrier_that_took_long_leaves_a_whole_lease(service: Service, job: str) -> None:
    async with fence_in_use(service, job):
        acquiring = asyncio.ensure_future(service.writer.got(job, "a", ttl=60, barrier=True))
        await service.writer.until(job, mode="exclusive")
        await asyncio.sleep(0.3)
    lease = await acquiring
    lasts = datetime.fromisoformat(lease["expires_at"]) - datetime.fromisoformat(lease["acquired_at"])
    assert lasts.total_seconds() > 60.25
    assert lease["expires_in"] == pytest.approx(60, abs=0.01)


async def test_a_lease_that_lapsed_during_the_barrier_is_lost(service: Service, job: str) -> None:
    async with fence_in_use(service, job):
        acquiring = asyncio.ensure_future(service.writer.acquire(job, "a", ttl=0.2, barrier=True))
        await service.writer.until(job, token="2")
        await service.writer.until(job, mode=None)
    assert problem(await acquiring) == (410, "lease-lost")


async def test_another_issuer_was_quicker(service: Service, job: str) -> None:
    """Another issuer raises the fence beyond the new token before the barrier.

    The gateway refuses the grant, puts the refusal on record and releases the lock.
    """
    async with fence_in_use(service, job) as other_issuer:
        acquiring = asyncio.ensure_future(service.writer.acquire(job, "a", barrier=True))
        await service.writer.until(job, mode="exclusive")
        await other_issuer.execute("UPDATE fencing.fence SET value = 50 WHERE resource = $1", job)
    answer = await acquiring
    assert problem(answer) == (412, "token-stale")
    assert answer.json()["fence"] == "50"
    record = (await service.writer.http.get("/v1/rejections", params={"resource": job})).json()["rejections"]
    assert [(one["reason"], one["token"], one["holder"]) for one in record] == [("token-stale", "2", "a")]
    assert (await service.writer.lock(job))["holders"] == []
    assert (await service.writer.got(job, "a", barrier=True))["token"] == "51"
