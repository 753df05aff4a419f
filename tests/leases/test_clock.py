"""The gateway's clock jumps: no lease ends early, none lives on, and tokens go on as before.

libfaketime lies to a gateway process about the time, and can be told to lie otherwise while it runs.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from tests.leases.asking import Caller, calling, problem, serving, value
from tests.waiting import PATIENCE

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = [
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed: apt-get install libfaketime"),
    pytest.mark.thorough,
]


@contextmanager
def lied_to(dsn: str, directory: Path, *, timers: bool) -> Iterator[tuple[str, Path]]:
    """A gateway that takes the time from a file; its origin, and the file. ``timers``: not just the time of day."""
    clock = directory / "clock"
    clock.write_text("+0d\n")
    lies = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "0" if timers else "1",
    }
    with serving(dsn, directory, lies) as (_, origin):
        yield origin, clock


async def jumped(caller: Caller, clock: Path, days: int) -> None:
    """Let the clock jump, and see that it has: the gateway says what time it takes it to be."""
    clock.write_text(f"{days:+}d\n")
    async with asyncio.timeout(PATIENCE):
        while True:
            told = parsedate_to_datetime((await caller.http.get("/v1/ready")).headers["date"])
            if round((told - datetime.now(UTC)) / timedelta(days=1)) == days:
                return
            await asyncio.sleep(0.02)


async def test_the_time_of_day_jumps(dsn: str, tmp_path: Path) -> None:
    with lied_to(dsn, tmp_path, timers=False) as (origin, clock):
        async with calling(origin) as caller:
            for days in (1, -1):
                await _neither_early_nor_late(caller, clock, days)


async def _neither_early_nor_late(caller: Caller, clock: Path, days: int) -> None:
    job = f"job/{days}"
    lease = await caller.got(job, "a", ttl=300)
    waiting = asyncio.ensure_future(caller.got(job, "b", ttl=300, wait=PATIENCE))
    await caller.until(job, waiters=1)
    await jumped(caller, clock, days)
    assert problem(await caller.acquire(job, "c")) == (409, "lock-held"), "it has not ended"
    renewed = await caller.renew(lease)
    assert renewed.status_code == 200
    assert renewed.json()["expires_in"] == pytest.approx(300, abs=0.01)
    await caller.release(lease)
    short = await waiting
    assert value(short) == 2
    shortened = time.monotonic()
    await caller.renew(short, ttl=0.5)
    assert value(await caller.got(job, "c", wait=PATIENCE)) == 3
    assert time.monotonic() - shortened > 0.49, "not early, and not a day later"
    assert problem(await caller.renew(short)) == (410, "lease-lost")


async def test_timers_jump_as_well(dsn: str, tmp_path: Path) -> None:
    """All timeouts of the gateway seem to expire at once. Waiters may get that answer, but no lease ends by it."""
    with lied_to(dsn, tmp_path, timers=True) as (origin, clock):
        async with calling(origin) as caller:
            lease = await caller.got("job/1", "a", ttl=300)
            waiting = asyncio.ensure_future(caller.acquire("job/1", "b", wait=PATIENCE))
            await caller.until("job/1", waiters=1)
            await jumped(caller, clock, 1)
            assert problem(await waiting) == (409, "lock-held")
            assert (await caller.renew(lease)).status_code == 200
            await caller.release(lease)
            assert value(await caller.got("job/1", "c")) == 2
