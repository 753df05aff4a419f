"""The processor time of a fenced PATCH with several workers: of the gateway, of PostgreSQL and of the load generator.

On a machine whose cores are all busy, rates say little about more cores. Processor time for each request adds up.
"""

import os
import time
from collections.abc import Iterator

import httpx

from bench.measure import TURNS, Load
from bench.services import Services, running
from bench.table_loads import http
from bench.usage import using

WORKERS = (1, 2, 4)
CONNECTIONS = (32, 128)


def table() -> Iterator[str]:
    """Yield the lines of a table in Markdown; the turn with the least processor time of all counts."""
    yield "| workers | connections | rate | gateway, µs | PostgreSQL, µs | load generator, µs | p99 ms | busiest |"
    yield "|--:|--:|--:|--:|--:|--:|--:|--:|"
    for workers in WORKERS:
        with running(None, workers=workers) as services:
            _until_all_serve(services, workers)
            for connections in CONNECTIONS:
                yield _row(services, workers, connections)


def _row(services: Services, workers: int, connections: int) -> str:
    measure = http(services.gateway, "update", connections)
    measure()
    turns: list[tuple[float, float, float, Load]] = []
    for _ in range(TURNS):
        before = os.times()
        with (
            using(services.gateway_pid, family=True) as gateway,
            using(services.postgres_pid, family=True) as database,
        ):
            load = measure()
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        turns.append((gateway.seconds, database.seconds, spent, load))
    seconds = min(turns, key=lambda turn: sum(turn[:3]) / turn[3].requests)
    load = seconds[3]
    each = " | ".join(f"{one / load.requests * 1e6:.0f}" for one in seconds[:3])
    return f"| {workers} | {connections} | {load.rate:,.0f} | {each} | {load.p99:.1f} | {_share(services):.0%} |"


def _share(services: Services) -> float:
    """Return the share of the busiest process among the workers in all their processor time so far."""
    text = httpx.get(f"{services.gateway}/v1/metrics").text
    spent = [float(line.split()[1]) for line in text.splitlines() if line.startswith("process_cpu_seconds_total")]
    return max(spent) / sum(spent)


def _until_all_serve(services: Services, workers: int) -> None:
    for _ in range(600):
        if f"gateway_workers {workers}.0" in httpx.get(f"{services.gateway}/v1/metrics").text:
            return
        time.sleep(0.1)
    raise SystemExit("the workers did not get ready")
