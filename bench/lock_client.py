"""Loads the lease service over HTTP: ``python -m bench.lock_client WORK ORIGIN CONNECTIONS SECONDS [FILE]``.

The kinds of WORK:

- ``acquire``: each connection acquires an uncontended lock, and releases it: one of a thousand, at random.
- ``hand-over``: all connections queue for one lock. Its holder releases it at once, and queues again.
- ``hold``: acquires 10,000 locks, and writes the leases to the file.
- ``renew``: keeps them alive like leases of 30 s. It renews each once in 10 s, each by a request of its own.
- ``renew-many``: the same, a hundred of them in one request.
- ``etcd``: as ``acquire``, with the locks of etcd, through its HTTP gateway. Each connection has one lease.
"""

import asyncio
import base64
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import uvloop

from bench.measure import percentiles
from bench.raw_http import RawConnection

NAMES = 1000
LEASES, TTL = 10_000, 30
LONG = 3600
"""The actual term of the 10,000 leases in seconds, so that none is lost during other measurements."""
CLEARLY = 0.05
"""Seconds by which one request is clearly earlier: requests under way at the same time have no order."""
BUNDLE = 100
"""Leases renewed in one request."""


class Run:
    """The observations of one run. Latencies are in seconds."""

    def __init__(self, origin: str, connections: int, seconds: float, file: Path | None = None) -> None:
        self.origin, self.connections, self.seconds, self.file = origin, connections, seconds, file
        self.latencies: list[float] = []
        self.errors = 0
        self.end = 0.0

    async def each(self, work: Callable[[RawConnection, int], Coroutine[Any, Any, None]]) -> None:
        """Keep every connection busy with ``work`` until the time is over. Connecting is not part of it."""
        opened = [await RawConnection.open(self.origin) for _ in range(self.connections)]
        start = time.perf_counter()
        self.end = start + self.seconds
        async with asyncio.TaskGroup() as tasks:
            for number, connection in enumerate(opened):
                tasks.create_task(work(connection, number))
        self.seconds = time.perf_counter() - start
        for connection in opened:
            connection.close()

    def result(self, per: int = 1) -> dict[str, float]:
        """Return the printed result. ``per``: how many operations each request contains."""
        p50, p99 = percentiles(self.latencies)
        requests = len(self.latencies) * per
        rate = requests / self.seconds
        return {"requests": requests, "rate": rate, "p50": p50, "p99": p99, "errors": self.errors}


async def acquire(run: Run) -> dict[str, float]:
    async def client(connection: RawConnection, number: int) -> None:
        body = orjson.dumps({"holder": f"holder-{number}", "ttl": TTL})
        while (start := time.perf_counter()) < run.end:
            path = f"/v1/leases/bench/{number}/{random.randint(1, NAMES)}"
            status, answer = await connection.ask("POST", path, body)
            released, _ = await connection.ask("DELETE", f"{path}/{orjson.loads(answer)['lease']}")
            run.errors += (status, released) != (201, 204)
            run.latencies.append(time.perf_counter() - start)

    await run.each(client)
    return run.result()


async def hand_over(run: Run) -> dict[str, float]:
    """Measure from the moment when the holder begins to release until the next one knows that it has the lock.

    An error is a grant out of turn: before another client that had asked clearly earlier.
    """
    path = "/v1/leases/bench/contended"
    released_at = time.perf_counter()
    asked_at: dict[int, float] = {}

    async def client(connection: RawConnection, number: int) -> None:
        nonlocal released_at
        body = orjson.dumps({"holder": f"holder-{number}", "ttl": TTL, "wait": 60})
        while time.perf_counter() < run.end:
            asked_at[number] = time.perf_counter()
            status, answer = await connection.ask("POST", path, body)
            now = time.perf_counter()
            run.errors += status != 201 or asked_at.pop(number) > min(asked_at.values(), default=now) + CLEARLY
            run.latencies.append(now - released_at)
            lease = orjson.loads(answer)["lease"]
            # The previous holder gets the time to join the queue again.
            await asyncio.sleep(0.01)
            released_at = time.perf_counter()
            await connection.ask("DELETE", f"{path}/{lease}")

    await run.each(client)
    return run.result()


async def renew(run: Run) -> dict[str, float]:
    async def one(connection: RawConnection, leases: list[dict[str, str]]) -> bool:
        status, _ = await connection.ask("PUT", f"/v1/leases/{leases[0]['resource']}/{leases[0]['lease']}", b"{}")
        return status == 200

    return await _keep(run, 1, one)


async def renew_many(run: Run) -> dict[str, float]:
    async def many(connection: RawConnection, leases: list[dict[str, str]]) -> bool:
        status, answer = await connection.ask("PUT", "/v1/leases", orjson.dumps({"leases": leases}))
        return status == 200 and all(lease["expires_in"] for lease in orjson.loads(answer)["leases"])

    return await _keep(run, BUNDLE, many)


async def _keep(
    run: Run, bundle: int, ask: Callable[[RawConnection, list[dict[str, str]]], Awaitable[bool]]
) -> dict[str, float]:
    """Renew all leases at an even pace. A connection that cannot keep up counts as an error."""
    assert run.file is not None
    held: list[dict[str, str]] = orjson.loads(run.file.read_bytes())
    pause = TTL / 3 * bundle / LEASES * run.connections

    first = random.randrange(LEASES // bundle)

    async def client(connection: RawConnection, number: int) -> None:
        position = (first + number) * bundle % LEASES
        due = time.perf_counter() + pause * number / run.connections
        while due < run.end:
            await asyncio.sleep(due - time.perf_counter())
            start = time.perf_counter()
            run.errors += not await ask(connection, held[position : position + bundle])
            run.latencies.append(time.perf_counter() - start)
            run.errors += time.perf_counter() > due + TTL / 3
            position = (position + run.connections * bundle) % LEASES
            due += pause

    await run.each(client)
    return run.result(bundle)


async def hold(run: Run) -> dict[str, float]:
    held: list[dict[str, str]] = []
    names = iter(range(LEASES))
    body = orjson.dumps({"holder": "holder", "ttl": LONG})

    async def client(connection: RawConnection, _: int) -> None:
        for name in names:
            start = time.perf_counter()
            _, answer = await connection.ask("POST", f"/v1/leases/kept/{name}", body)
            lease = orjson.loads(answer)
            held.append({"resource": lease["resource"], "lease": lease["lease"]})
            run.latencies.append(time.perf_counter() - start)

    await run.each(client)
    assert run.file is not None
    run.file.write_bytes(orjson.dumps(held))
    return run.result()


async def etcd(run: Run) -> dict[str, float]:
    async def client(connection: RawConnection, number: int) -> None:
        _, answer = await connection.ask("POST", "/v3/lease/grant", orjson.dumps({"TTL": TTL}))
        lease = orjson.loads(answer)["ID"]
        while (start := time.perf_counter()) < run.end:
            name = base64.b64encode(f"bench/{number}/{random.randint(1, NAMES)}".encode()).decode()
            status, answer = await connection.ask("POST", "/v3/lock/lock", orjson.dumps({"name": name, "lease": lease}))
            key = orjson.dumps({"key": orjson.loads(answer)["key"]})
            unlocked, _ = await connection.ask("POST", "/v3/lock/unlock", key)
            run.errors += (status, unlocked) != (200, 200)
            run.latencies.append(time.perf_counter() - start)

    await run.each(client)
    return run.result()


WORKS = {
    "acquire": acquire,
    "hand-over": hand_over,
    "hold": hold,
    "renew": renew,
    "renew-many": renew_many,
    "etcd": etcd,
}


if __name__ == "__main__":
    work, origin, connections, seconds, *file = sys.argv[1:]
    wanted = Run(origin, int(connections), float(seconds), Path(file[0]) if file else None)
    print(json.dumps(uvloop.run(WORKS[work](wanted))))
