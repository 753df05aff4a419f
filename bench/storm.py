"""A zombie that hammers: how fast it is refused, whether every refusal is on record, and what other writers notice."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import asyncpg
import httpx

from bench.measure import Goal, Load, Row, in_turns
from bench.services import Services
from bench.table_loads import beside, http, watched

# Milliseconds between two writes of one connection, so that the writers alone do not keep the machine busy.
REST = 10


def rows(services: Services) -> Iterator[Row]:
    """Yield refusals against accepted writes, and other writers beside a storm against the same writers alone.

    The other writers run at full speed and at a slow pace. At full speed a storm takes a share of the machine, as any
    load does. So the peer in the last row has as many accepted writes, and shows the additional cost of refusals.
    """
    origin, pid = services.gateway, services.gateway_pid
    take_over(origin)
    # All have credentials. Callers without any wait for those that have some, and a zombie has.
    accepted = http(origin, "update-granted")
    answered: list[Load] = []
    before = _recorded(services)
    own, other = (watched(pid, services, side) for side in (lambda: _refused(origin, answered), accepted))
    refused, (peer,), cost = in_turns(pid, own, other)
    recorded, expected = _recorded(services) - before, sum(load.requests for load in answered)
    assert recorded >= expected, f"{expected} writes were refused, {recorded} are on record"
    yield Row("stale PATCH, refused and on record", "accepted", refused, peer, cost, goals=(Goal(1.0),))
    for work, alone in (
        ("fenced PATCH beside a storm of stale ones", accepted),
        (f"the same, each connection resting {REST} ms", http(origin, "update-granted", rest=REST)),
    ):
        load, (peer,), cost = in_turns(pid, beside(alone, origin, "update-overtaken"), alone)
        yield Row(work, "no storm", load, peer, cost, goals=(Goal(0.8),))
    load, (peer,), cost = in_turns(
        pid, beside(accepted, origin, "update-overtaken"), beside(accepted, origin, "update-shared")
    )
    yield Row("fenced PATCH beside a storm of stale ones", "as many accepted ones", load, peer, cost)


def take_over(origin: str) -> None:
    """Raise the fence of the zombie's row, as a newer holder."""
    answer = httpx.patch(
        f"{origin}/v1/tables/accounts", params={"id": "eq.0"}, headers={"Fencing-Token": "2"}, json={"balance": 0}
    )
    answer.raise_for_status()


def _refused(origin: str, answered: list[Load]) -> Load:
    load = http(origin, "update-overtaken")()
    assert load.errors == load.requests, "a stale write was accepted"
    answered.append(load)
    return replace(load, errors=0)


def _recorded(services: Services) -> int:
    async def count() -> int:
        connection = await asyncpg.connect(services.dsn)
        try:
            found: int = await connection.fetchval("SELECT count(*) FROM fencing.rejection")
        finally:
            await connection.close()
        return found

    return asyncio.run(count())
