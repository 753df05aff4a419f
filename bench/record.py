"""The cost of the record: the rate of refusals that it takes in a burst. The benchmark checks that none is lost."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import asyncpg

from bench.measure import TURN, Goal, Load, Measured, Row, in_turns
from bench.services import Services, run_json, running
from bench.storm import take_over
from bench.table_loads import Measure, http

BURST = 512
"""Refusals at once."""
CONNECTIONS = 256


def rows() -> Iterator[Row]:
    """Yield the rows. A gateway seals the refusals all the while, so its use is the cost of that."""
    with running(None) as services:
        yield from _layer(services)
        yield _over_http(services)


def _layer(services: Services) -> Iterator[Row]:
    for work, own, peer, against in (
        (f"refusals on record, {BURST} callers at once", "recorder", "by-hand", "asyncpg, an insert each"),
        (f"refusals of a storm, {BURST} in a batch", "storm", "many", "asyncpg, executemany"),
    ):
        answered: list[Load] = []
        before = _recorded(services)
        load, (other,), cost = in_turns(
            services.gateway_pid, _kept(answered, _direct(services, own)), _kept(answered, _direct(services, peer))
        )
        _check_none_is_lost(services, before, answered)
        yield Row(work, against, load, other, cost, goals=(Goal(10_000, Measured.RATE),))


def _over_http(services: Services) -> Row:
    take_over(services.gateway)
    answered: list[Load] = []
    own = _kept(answered, http(services.gateway, "update-overtaken", CONNECTIONS))
    before = _recorded(services)
    load, (peer,), cost = in_turns(services.gateway_pid, own, _kept(answered, _direct(services, "by-hand")))
    _check_none_is_lost(services, before, answered)
    refused = replace(load, errors=0)
    work = f"stale PATCH, refused over HTTP, {CONNECTIONS} connections"
    return Row(work, "asyncpg, an insert each", refused, peer, cost)


def _direct(services: Services, work: str) -> Measure:
    return lambda: Load.of(run_json("bench.direct_record", work, services.dsn, str(BURST), str(TURN)))


def _kept(answered: list[Load], measure: Measure) -> Measure:
    """Return the same measurement, which also notes how many requests were answered."""

    def measured() -> Load:
        load = measure()
        answered.append(load)
        return load

    return measured


def _check_none_is_lost(services: Services, before: int, answered: list[Load]) -> None:
    recorded, expected = _recorded(services) - before, sum(load.requests for load in answered)
    if recorded < expected:
        raise SystemExit(f"{expected} writes were refused, {recorded} are on record")


def _recorded(services: Services) -> int:
    async def count() -> int:
        connection = await asyncpg.connect(services.dsn)
        try:
            found: int = await connection.fetchval("SELECT count(*) FROM fencing.record WHERE kind = 'rejection'")
        finally:
            await connection.close()
        return found

    return asyncio.run(count())
