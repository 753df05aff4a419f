"""Loads an S3 endpoint with 4 KiB PutObject, the gateway or the store behind it: the same client for both.

``python -m bench.put_objects ENDPOINT ACCESS_KEY SECRET_KEY CONNECTIONS SECONDS KEYS TOKEN``; no token where it is "-".
"""

import asyncio
import hashlib
import json
import random
import sys
import time
from datetime import UTC, datetime

import aiohttp
import uvloop

from bench.measure import percentiles
from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign

SIZE = 4096


async def load(
    endpoint: str, keys: StoreCredentials, connections: int, seconds: float, names: int, token: str
) -> dict[str, float]:
    """Keep every connection busy for that long with PUTs of different bytes to keys of its own."""
    latencies: list[float] = []
    errors = 0
    end = time.perf_counter() + seconds
    prefix = "direct" if token == "-" else "fenced"
    own = [] if token == "-" else [("fencing-token", token)]

    async def writer(number: int, session: aiohttp.ClientSession) -> None:
        nonlocal errors
        while (start := time.perf_counter()) < end:
            # Keys of its own: the gateway would find those that were written behind its back to have changed.
            path = f"/bench/{prefix}/{number}/{random.randint(1, names)}"
            body = random.randbytes(SIZE)
            host = endpoint.partition("://")[2]
            headers = [("host", host), ("content-length", str(SIZE)), *own]
            head = RequestHead("PUT", path.encode(), b"", [(n.encode(), v.encode()) for n, v in headers])
            signed = sign(head, hashlib.sha256(body).hexdigest(), keys, datetime.now(UTC))
            async with session.put(endpoint + path, data=body, headers=[*headers, *signed]) as response:
                await response.read()
                errors += response.status != 200
            latencies.append(time.perf_counter() - start)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, asyncio.TaskGroup() as tasks:
        for number in range(connections):
            tasks.create_task(writer(number, session))
    p50, p99 = percentiles(latencies)
    requests = len(latencies) - errors
    return {"requests": requests, "rate": requests / seconds, "p50": p50, "p99": p99, "errors": errors}


if __name__ == "__main__":
    endpoint, access, secret, connections, seconds, names, token = sys.argv[1:]
    credentials = StoreCredentials(access, secret, "us-east-1")
    print(json.dumps(uvloop.run(load(endpoint, credentials, int(connections), float(seconds), int(names), token))))
