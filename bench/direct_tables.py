"""The peer of the table plane: the same statements sent straight by asyncpg, unfenced, one at a time on a connection.

Runs as a process of its own, as the gateway does: ``python -m bench.direct_tables WORK DSN CONNECTIONS SECONDS ROWS``.
"""

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import asyncpg
import uvloop

from bench.measure import percentiles
from bench.usage import using

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_UPDATE = "UPDATE accounts SET balance = $2 WHERE id = $1"
_SELECT = "SELECT * FROM accounts WHERE id = $1"
_INSERT = "INSERT INTO entries (account_id, amount, note) VALUES ($1, $2, $3)"


async def _update(connection: Connection, row: int, count: int) -> None:
    await connection.execute(_UPDATE, row, count)


async def _select(connection: Connection, row: int, _: int) -> None:
    await connection.fetchrow(_SELECT, row)


async def _insert(connection: Connection, row: int, count: int) -> None:
    await connection.execute(_INSERT, row, count, "an entry")


WORKS: dict[str, Callable[[Connection, int, int], Awaitable[None]]] = {
    "update": _update,
    "select": _select,
    "insert": _insert,
}


async def load(work: str, dsn: str, connections: int, seconds: float, rows: int) -> dict[str, float | None]:
    """Keep every connection busy for that long. Connecting is not part of it."""
    latencies: list[float] = []
    do = WORKS[work]
    opened = [await asyncpg.connect(dsn) for _ in range(connections)]

    async def client(connection: Connection) -> None:
        count = 0
        while (start := time.perf_counter()) < end:
            count += 1
            await do(connection, random.randint(1, rows), count)
            latencies.append(time.perf_counter() - start)

    with using(os.getpid()) as usage:
        end = time.perf_counter() + seconds
        async with asyncio.TaskGroup() as tasks:
            for connection in opened:
                tasks.create_task(client(connection))
    for connection in opened:
        await connection.close()
    p50, p99 = percentiles(latencies)
    requests, used = len(latencies), usage.seconds
    return {"requests": requests, "rate": requests / seconds, "p50": p50, "p99": p99, "seconds": used}


if __name__ == "__main__":
    work, dsn, connections, seconds, rows = sys.argv[1:]
    print(json.dumps(uvloop.run(load(work, dsn, int(connections), float(seconds), int(rows)))))
