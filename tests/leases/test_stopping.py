"""A gateway that is stopped does not wait for its waiters. They go on at another gateway, in their old place."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from gateway.config.server import Server
from tests.leases.asking import calling, problem, served, serving
from tests.waiting import PATIENCE


@pytest.mark.thorough
async def test_who_waits_is_sent_away_at_once_and_keeps_its_place(dsn: str, tmp_path: Path) -> None:
    async with served(dsn) as other:
        with serving(dsn, tmp_path) as (process, origin):
            async with calling(origin) as caller:
                lease = await caller.got("job/1", "a", ttl=300)
                waiting = asyncio.ensure_future(caller.acquire("job/1", "b", wait=PATIENCE, request="r"))
                await caller.until("job/1", waiters=1)
                asked = time.monotonic()
                stopped = asyncio.ensure_future(asyncio.to_thread(process.stop, signal.SIGTERM))
                answer = await waiting
            assert problem(answer) == (503, "unavailable")
            assert "stopped" in answer.json()["detail"]
            assert answer.headers["retry-after"] == "1"
            again = asyncio.ensure_future(other.writer.got("job/1", "b", wait=PATIENCE, request="r"))
            assert await stopped == 0
            assert time.monotonic() - asked < Server().drain / 2
        behind = asyncio.ensure_future(other.writer.got("job/1", "c", wait=PATIENCE))
        await other.writer.until("job/1", waiters=2)
        assert [one["holder"] for one in (await other.writer.lock("job/1"))["queue"]] == ["b", "c"]
        await other.writer.release(lease)
        assert (await again)["token"] == "2"
        behind.cancel()
