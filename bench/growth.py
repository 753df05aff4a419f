"""The things that the cost of a write depends on: fences, connections, resources of a request, entries of the record.

``python -m bench growth``. ``BENCH_FENCES`` and ``BENCH_ENTRIES``: the most of them; filling takes minutes.
"""

import asyncio
import os
import resource
from collections.abc import Iterator

import asyncpg
import psutil

from bench import record_rows
from bench.measure import MEBIBYTE, Load
from bench.services import Services, running
from bench.storm import take_over
from bench.table_loads import Measure, http, watched

FENCES = [number for number in (10**4, 10**6, 10**7) if number <= int(os.environ.get("BENCH_FENCES", "10000000"))]
ENTRIES = [number for number in (0, 10**6, 10**7) if number <= int(os.environ.get("BENCH_ENTRIES", "1000000"))]
CONNECTIONS = (1, 100, 1_000, 10_000)
RESOURCES = (1, 10, 100, 1_000)


def table() -> Iterator[str]:
    """Yield the rate, the latencies, the processor time and the gateway's memory of each case in Markdown."""
    yield "| work | rate /s | p50 ms | p99 ms | gateway µs | PostgreSQL µs | gateway MiB |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    with running(None) as services:
        for number in FENCES:
            asyncio.run(_fill(services.dsn, number))
            yield _line(services, f"PATCH, token held, {number:,} fences", http(services.gateway, "update"))
            yield _line(
                services, f"PATCH, a new holder each time, {number:,} fences", http(services.gateway, "take-over")
            )
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with running(None) as services:
        for number in CONNECTIONS:
            yield _line(
                services, f"PATCH, token held, {number:,} connections", http(services.gateway, "update", number)
            )
        for number in RESOURCES:
            measure = http(services.gateway, "insert-spread", 8, resources=number)
            yield _line(services, f"POST of rows of {number:,} resources, 8 connections", measure)
    for number in ENTRIES:
        with running(None) as services:
            if number:
                asyncio.run(record_rows.fill(services.dsn, number))
            take_over(services.gateway)
            measure = http(services.gateway, "update-overtaken")
            yield _line(services, f"stale PATCH, refused, {number:,} entries on record", measure)


def _line(services: Services, work: str, measure: Measure) -> str:
    measure()
    load: Load = watched(services.gateway_pid, services, measure)()
    assert load.used is not None
    assert load.database is not None
    memory = psutil.Process(services.gateway_pid).memory_info().rss / MEBIBYTE
    return (
        f"| {work} | {load.rate:,.0f} | {load.p50:.2f} | {load.p99:.1f} | {load.used.seconds * 1e6:,.0f} | "
        f"{load.database.seconds * 1e6:,.0f} | {memory:.0f} |"
    )


async def _fill(dsn: str, number: int) -> None:
    """Let there be so many fences beside those of the rows. Triggers would keep a copy of all of them in memory."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("ALTER TABLE fencing.fence DISABLE TRIGGER USER")
    await connection.execute(
        "INSERT INTO fencing.fence (resource, epoch, value) "
        "SELECT 'growth/' || n, 0, 1 FROM generate_series(1, $1) AS n ON CONFLICT DO NOTHING",
        number,
    )
    await connection.execute("ALTER TABLE fencing.fence ENABLE TRIGGER USER")
    await connection.execute("VACUUM ANALYZE fencing.fence")
    await connection.close()
