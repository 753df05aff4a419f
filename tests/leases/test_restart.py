"""The database restarts under leases and queues: each holder still holds, and each waiter is served in its turn."""

import asyncio
import tempfile
from pathlib import Path

import pytest

from gateway.demo.embedded import postgres
from tests.leases.asking import problem, served, value
from tests.postgres import install

pytestmark = pytest.mark.thorough

JOB = "job/1"


async def test_the_database_is_restarted() -> None:
    with tempfile.TemporaryDirectory(prefix="pg") as directory, postgres(Path(directory) / "data") as server:
        dsn = server.dsn("postgres")
        await asyncio.to_thread(install, dsn)
        async with served(dsn) as service:
            lease = await service.writer.got(JOB, "a", ttl=60)
            waiting = []
            for number, name in enumerate("bc", 1):
                waiting.append(asyncio.ensure_future(service.writer.acquire(JOB, name, wait=50)))
                await service.writer.until(JOB, waiters=number)
            await asyncio.to_thread(server.server.stop)
            for refused in (
                await service.writer.acquire(JOB, "d"),
                await service.writer.renew(lease),
                await service.writer.release(lease),
                await service.writer.http.get(f"/v1/leases/{JOB}"),
            ):
                assert problem(refused) == (503, "unavailable")
                assert refused.headers["retry-after"] == "1"
            await asyncio.to_thread(server.server.ensure_postgres_running)
            assert problem(await service.other.acquire(JOB, "d")) == (409, "lock-held"), "it is still held"
            renewed = await service.writer.renew(lease)
            assert (renewed.status_code, renewed.json()["token"]) == (200, lease["token"])
            await service.writer.until(JOB, waiters=2)
            assert (await service.writer.release(lease)).status_code == 204
            tokens = []
            for one in waiting:
                answer = await one
                assert answer.status_code == 201, answer.text
                tokens.append(value(answer.json()))
                await service.writer.release(answer.json())
            assert tokens == [2, 3], "in the order of the queue, and no token twice"
