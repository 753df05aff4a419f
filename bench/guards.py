"""The cost of a guard for sessions that write a table directly, and for the gateway's own sessions.

``python -m bench guards``. A twin of the table has no guard. Statements alternate between both, so that other work of
the machine meets both alike. The server writes to a disk, because a commit that waits for one is part of a write.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import psutil

from bench.measure import SECONDS
from gateway.demo.embedded import postgres
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.guard.stage import logging_in_as
from tests.postgres import fresh
from tests.running import config

ROWS = 1000
_HELD = {"fencing.resource": "order/5", "fencing.token": "34", "fencing.holder": "bench"}
_TABLES = ("plain", "guarded")
_ROUND = {"one row": 100, f"{ROWS:,} rows": 5}
_STATEMENTS = {"one row": "UPDATE {} SET n = n + 1 WHERE id = 7", f"{ROWS:,} rows": "UPDATE {} SET n = n + 1"}


@dataclass(frozen=True, slots=True)
class Cost:
    """One statement: its median time at the client, and the server's processor time. In seconds."""

    median: float
    processor: float


def table() -> Iterator[str]:
    """Yield the time of each statement with and without a guard, in Markdown."""
    yield "| UPDATE of | by | without, µs | guarded, µs | added | processor added, µs (goal ≤ 30 a statement) |"
    yield "|---|---|--:|--:|--:|--:|"
    with (
        tempfile.TemporaryDirectory(prefix="pg") as directory,
        postgres(Path(directory) / "data") as server,
        fresh(server) as dsn,
    ):
        yield from asyncio.run(_lines(dsn))


async def _lines(dsn: str) -> list[str]:
    owner = await asyncpg.connect(dsn)
    await owner.execute(f"""
        CREATE ROLE bench_gateway LOGIN;
        CREATE ROLE bench_app LOGIN;
        CREATE TABLE plain (id bigint PRIMARY KEY, order_id bigint, n bigint NOT NULL) WITH (fillfactor = 50);
        INSERT INTO plain SELECT n, 5, 0 FROM generate_series(1, {ROWS}) AS n;
        CREATE TABLE guarded (LIKE plain INCLUDING ALL) WITH (fillfactor = 50);
        INSERT INTO guarded TABLE plain;
        GRANT ALL ON plain, guarded TO bench_gateway, bench_app;
    """)
    rules = [{"name": "public.guarded", "resource": "order/{order_id}"}]
    settings = config(logging_in_as("bench_gateway", dsn), tables=rules)
    await installation.install(settings.default, GuardRequest("guarded", dsn=dsn, grants=("bench_app",)))
    await owner.execute("SELECT fencing.hold('order/5', '34', 'bench')")
    lines = []
    for role, held in (("bench_app", _HELD), ("bench_gateway", {})):
        session = await asyncpg.connect(logging_in_as(role, dsn), server_settings=held)
        for name in _STATEMENTS:
            cost = await _costs(session, owner, name)
            before, after = (cost[one] for one in _TABLES)
            lines.append(
                f"| {name} | {'a direct writer' if held else 'the gateway'} | {before.median * 1e6:,.0f} | "
                f"{after.median * 1e6:,.0f} | {after.median / before.median - 1:+.0%} | "
                f"{(after.processor - before.processor) * 1e6:+,.0f} |"
            )
        await session.close()
    await owner.close()
    return lines


async def _costs(session: asyncpg.Connection, owner: asyncpg.Connection, name: str) -> dict[str, Cost]:
    server = psutil.Process(session.get_server_pid())
    times: dict[str, list[float]] = {one: [] for one in _TABLES}
    processor = dict.fromkeys(_TABLES, 0.0)
    prepared = {one: await session.prepare(_STATEMENTS[name].format(one)) for one in _TABLES}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for one, statement in prepared.items():
            before = server.cpu_times()
            for _ in range(_ROUND[name]):
                began = time.perf_counter()
                await statement.fetch()
                times[one].append(time.perf_counter() - began)
            after = server.cpu_times()
            processor[one] += after.user + after.system - before.user - before.system
        for one in (*_TABLES, "fencing.fence"):
            await owner.execute(f"VACUUM {one}")
    return {one: Cost(statistics.median(times[one]), processor[one] / len(times[one])) for one in _TABLES}
