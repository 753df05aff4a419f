"""The peer of the table plane: the same UPDATE sent straight by asyncpg, unfenced, one statement at a time.

Runs as a process of its own, as the gateway does: ``python -m bench.direct_tables DSN CONNECTIONS SECONDS ROWS``.
"""

import asyncio
import json
import random
import sys
import time

import asyncpg
import uvloop

from bench.measure import percentiles

STATEMENT = "UPDATE accounts SET balance = $2 WHERE id = $1"


async def load(dsn: str, connections: int, seconds: float, rows: int) -> dict[str, float]:
    """Keep every connection busy for that long."""
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    async def writer() -> None:
        connection = await asyncpg.connect(dsn)
        count = 0
        while (start := time.perf_counter()) < end:
            count += 1
            await connection.execute(STATEMENT, random.randint(1, rows), count)
            latencies.append(time.perf_counter() - start)
        await connection.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            tasks.create_task(writer())
    p50, p99 = percentiles(latencies)
    return {"rate": len(latencies) / seconds, "p50": p50, "p99": p99}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))))
