"""Puts refusals on record without HTTP: through the recording layer, and by hand with asyncpg.

A process of its own: ``python -m bench.direct_record WORK DSN CALLERS SECONDS``. The kinds of WORK:

- ``recorder``: the layer that all planes use. So many callers at once each wait until their refusal is durable.
- ``storm``: the layer for zombies that hammer tables. So many writes with an overtaken fence go in one batch.
- ``by-hand``: the same rows, an INSERT and a commit each, over as many sessions as the gateway has.
- ``many``: the same rows, inserted by ``executemany`` in transactions of ``CALLERS`` rows.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import asyncpg
import uvloop

from bench.measure import percentiles
from gateway.db import record
from gateway.db.database import Database
from gateway.fencing.decision import Decision, Fence
from gateway.fencing.record import Attempt, Refusal
from gateway.fencing.token import Token
from gateway.record.refusals import Recorder

SESSIONS = 16
RESOURCE = "bench/zombie"
FENCE = Fence(RESOURCE, Token(0, 2), "successor", "bench", datetime(2026, 1, 1, tzinfo=UTC))
ATTEMPT = Attempt(
    Token(0, 1),
    "zombie",
    "bench",
    "PATCH",
    "/v1/tables/accounts?id=eq.0",
    "127.0.0.1",
    "0123456789abcdef0123456789abcdef",
    16,
    "f" * 64,
    "tables",
    "public.accounts",
)
_INSERT = """
INSERT INTO fencing.intake (
    kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
    payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
VALUES ('rejection', $1, $2, $3, $4, true, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
"""
_ROW = (
    ATTEMPT.plane,
    ATTEMPT.rule,
    RESOURCE,
    "token-stale",
    0,
    1,
    ATTEMPT.holder,
    ATTEMPT.caller,
    ATTEMPT.method,
    ATTEMPT.target,
    ATTEMPT.client,
    ATTEMPT.request_id,
    ATTEMPT.payload_size,
    ATTEMPT.payload_sha256,
    0,
    2,
    FENCE.holder,
    FENCE.caller,
    FENCE.raised_at,
)
_RAISE = """
INSERT INTO fencing.fence (resource, epoch, value, holder) VALUES ($1, 0, 2, 'successor') ON CONFLICT DO NOTHING
"""

Step = Callable[[], Awaitable[Any]]


async def _measured(callers: int, seconds: float, step: Step, rows: int = 1) -> dict[str, float]:
    """So many callers who each take one step after the other, of so many rows."""
    latencies: list[float] = []
    begun = time.perf_counter()

    async def caller() -> None:
        while (start := time.perf_counter()) < begun + seconds:
            await step()
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(caller() for _ in range(callers)))
    took = time.perf_counter() - begun
    p50, p99 = percentiles(latencies)
    return {"rate": len(latencies) * rows / took, "p50": p50, "p99": p99, "requests": len(latencies) * rows}


async def recorder(dsn: str, callers: int, seconds: float) -> dict[str, float]:
    database = Database(dsn)
    layer, refusal = Recorder(database), [Refusal(RESOURCE, Decision.STALE, ATTEMPT, FENCE)]
    try:
        return await _measured(callers, seconds, lambda: layer.record(refusal))
    finally:
        await database.close()


async def storm(dsn: str, callers: int, seconds: float) -> dict[str, float]:
    database = Database(dsn)
    attempts = [(RESOURCE, ATTEMPT)] * callers
    try:
        await database.fetchrow_write(_RAISE, RESOURCE)
        return await _measured(1, seconds, lambda: record.record_overtaken(database, attempts, {}), callers)
    finally:
        await database.close()


async def by_hand(dsn: str, callers: int, seconds: float) -> dict[str, float]:
    pool = await asyncpg.create_pool(dsn, min_size=SESSIONS, max_size=SESSIONS)
    try:
        return await _measured(callers, seconds, lambda: pool.execute(_INSERT, *_ROW))
    finally:
        await pool.close()


async def many(dsn: str, callers: int, seconds: float) -> dict[str, float]:
    connection = await asyncpg.connect(dsn)
    rows = [_ROW] * callers
    try:
        return await _measured(1, seconds, lambda: connection.executemany(_INSERT, rows), callers)
    finally:
        await connection.close()


WORKS = {"recorder": recorder, "storm": storm, "by-hand": by_hand, "many": many}


if __name__ == "__main__":
    work, dsn, callers, seconds = sys.argv[1:]
    print(json.dumps(uvloop.run(WORKS[work](dsn, int(callers), float(seconds)))))
