"""``barrier: true``: the takeover is complete before the new holder reads, or it does not begin."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import asyncpg
import pytest

from tests.leases.asking import Service, problem, served

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
    impatient = {"dsn": service.dsn, "lock_timeout": 0.2}
    async with served(service.dsn, postgres=impatient) as gateway:
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
