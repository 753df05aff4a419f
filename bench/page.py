"""How long the page of a resource takes that has a hundred thousand entries on record.

From the request to its last byte; and where there is a browser, until the picture stands on the screen.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import httpx
from playwright.sync_api import sync_playwright

from bench.measure import percentiles
from bench.services import Services, running

ENTRIES = 100_000
HOLDERS = 4_000
TURNS = 15
GOAL = "< 1,000 ms"
RESOURCE = "hot/resource"
ADDRESS = f"/ui/resource?name={RESOURCE}"
CHROMIUM = Path("/usr/bin/chromium")

# Each holder took over from the one before, within twenty hours; four of them would not stop for half of all writes.
_TAKEOVERS = """
INSERT INTO fencing.intake (at, kind, resource, epoch, value, holder, caller, fence_epoch, fence_value, fence_holder,
    fence_caller, fence_raised_at)
SELECT at, 'raised', $2, 0, i + 1, 'job-' || i + 1, 'worker', 0, i, 'job-' || i, 'worker', at - interval '18 seconds'
FROM (
    SELECT i, now() - interval '20 hours' + i * interval '20 hours' / $1::integer AS at
    FROM generate_series(1, $1::integer) AS i
) AS each ORDER BY at
"""
_WRITES = """
INSERT INTO fencing.intake (at, kind, resource, reason, enforced, epoch, value, holder, caller, method, target, client,
    request_id, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
SELECT least(taken + late, now()), 'rejection', $3, 'token-stale', true, 0, i, 'job-' || i, 'worker', 'PUT',
    '/reports/daily', '10.0.0.1', 'request', 0, i + 1, 'job-' || i + 1, 'worker', taken
FROM (
    SELECT i, now() - interval '20 hours' + i * interval '20 hours' / $2::integer AS taken,
        40 * interval '1 second' + random() * interval '100 minutes' AS late
    FROM (
        SELECT 1 + CASE WHEN n % 2 = 0 THEN n / 2 % 4 * 777 + 777 ELSE n * 31 END % $2::integer AS i
        FROM generate_series(1, $1::integer) AS n
    ) AS who
) AS each ORDER BY 1
"""
_FENCE = """
INSERT INTO fencing.fence (resource, epoch, value, holder, caller, raised_at)
VALUES ($2, 0, $1::bigint + 1, 'job-' || $1::bigint + 1, 'worker', now())
"""


def table() -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield f"| the page of a resource with {ENTRIES:,} entries | p50 ms | p99 ms | goal |"
    yield "|---|--:|--:|--:|"
    with running(None) as services:
        asyncio.run(_fill(services.dsn))
        yield _line("to its last byte", _times(lambda: _load(services)))
        if CHROMIUM.exists():
            yield _line("on the screen of Chromium", _show(services))


def _line(what: str, seconds: list[float]) -> str:
    p50, p99 = percentiles(seconds)
    return f"| {what} | {p50:.0f} | {p99:.0f} | {GOAL} |"


def _times(work: Callable[[], None]) -> list[float]:
    work()
    seconds = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return seconds


def _load(services: Services) -> None:
    answer = httpx.get(services.gateway + ADDRESS, timeout=60)
    assert answer.status_code == 200, answer.text
    assert "more holders are not drawn" in answer.text


def _show(services: Services) -> list[float]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()

        def show() -> None:
            page.goto(services.gateway + ADDRESS)
            page.locator(".rest").wait_for()

        seconds = _times(show)
        browser.close()
    return seconds


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("SELECT setseed(0.5)")
        await connection.execute(_TAKEOVERS, HOLDERS, RESOURCE)
        await connection.execute(_WRITES, ENTRIES - HOLDERS, HOLDERS, RESOURCE)
        await connection.execute(_FENCE, HOLDERS, RESOURCE)
        while await connection.fetchval("SELECT sealed FROM fencing.seal_v1(10000)"):
            pass
        await connection.execute("ANALYZE fencing.entry")
    finally:
        await connection.close()
