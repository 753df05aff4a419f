"""The peers of the lease service: handmade locks with asyncpg, on as many connections.

A process of its own: ``python -m bench.direct_locks WORK DSN CONNECTIONS SECONDS``. The kinds of WORK:

- ``acquire``: a row for each lock, with a counter and an expiry. One statement takes it, another releases it.
- ``hand-over``: an advisory lock of the session, in PostgreSQL's own queue. It has no tokens and no leases, and a
  paused holder keeps it.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import asyncpg
import uvloop

from bench.lock_client import NAMES, TTL
from bench.measure import percentiles

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

TABLE = """
CREATE TABLE IF NOT EXISTS handmade_lock (
    name text PRIMARY KEY, holder text NOT NULL, token bigint NOT NULL, expires_at timestamptz NOT NULL
) WITH (fillfactor = 70)
"""
_TAKE = f"""
INSERT INTO handmade_lock AS l VALUES ($1, $2, 1, now() + interval '{TTL} s')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, token = l.token + 1, expires_at = excluded.expires_at
WHERE l.expires_at <= now() RETURNING token
"""
_GIVE_BACK = "UPDATE handmade_lock SET expires_at = '-infinity' WHERE name = $1 AND holder = $2 AND token = $3"


async def _run(
    dsn: str, connections: int, seconds: float, client: Callable[[Connection, int, float], Coroutine[Any, Any, None]]
) -> float:
    """Keep every connection busy; how long it took."""
    opened = [await asyncpg.connect(dsn) for _ in range(connections)]
    start = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number, connection in enumerate(opened):
            tasks.create_task(client(connection, number, start + seconds))
    took = time.perf_counter() - start
    for connection in opened:
        await connection.close()
    return took


async def acquire(dsn: str, connections: int, seconds: float) -> dict[str, float]:
    latencies: list[float] = []

    async def client(connection: Connection, number: int, end: float) -> None:
        while (start := time.perf_counter()) < end:
            name, holder = f"bench/{number}/{random.randint(1, NAMES)}", f"holder-{number}"
            token = await connection.fetchval(_TAKE, name, holder)
            await connection.execute(_GIVE_BACK, name, holder, token)
            latencies.append(time.perf_counter() - start)

    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    await connection.close()
    took = await _run(dsn, connections, seconds, client)
    p50, p99 = percentiles(latencies)
    return {"requests": len(latencies), "rate": len(latencies) / took, "p50": p50, "p99": p99}


async def hand_over(dsn: str, connections: int, seconds: float) -> dict[str, float]:
    latencies: list[float] = []
    released_at = 0.0

    async def client(connection: Connection, _: int, end: float) -> None:
        nonlocal released_at
        while time.perf_counter() < end:
            await connection.execute("SELECT pg_advisory_lock(1)")
            if released_at:
                latencies.append(time.perf_counter() - released_at)
            await asyncio.sleep(0.01)
            released_at = time.perf_counter()
            await connection.execute("SELECT pg_advisory_unlock(1)")

    took = await _run(dsn, connections, seconds, client)
    p50, p99 = percentiles(latencies)
    return {"requests": len(latencies), "rate": len(latencies) / took, "p50": p50, "p99": p99}


WORKS = {"acquire": acquire, "hand-over": hand_over}


if __name__ == "__main__":
    work, dsn, connections, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(WORKS[work](dsn, int(connections), float(seconds)))))
