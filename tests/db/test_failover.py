"""Failovers of a real cluster, under load from tables, objects and the lock service. `-s` prints what was measured."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.db.load import KEYS, Load
from tests.doubles.s3 import S3Double, serve
from tests.patroni import Cluster, patroni
from tests.postgres import Server, as_gateway, install
from tests.running import Events, config, running

pytestmark = pytest.mark.installed

GATEWAYS = 2
ENTRIES = {"name": "public.entries", "resource": "account/{account}"}


@pytest.fixture(params=[True, False], ids=["synchronous", "asynchronous"])
def cluster(request: pytest.FixtureRequest, postgres_server: Server) -> Iterator[Cluster]:
    if not isinstance(postgres_server, EmbeddedPostgres):
        pytest.skip("the nodes use the programs of the embedded server")
    with patroni(postgres_server, synchronous=request.param) as nodes:
        install(nodes.dsn())
        yield nodes


class Site:
    """Gateways before the cluster, and the load on them."""

    def __init__(self, cluster: Cluster, load: Load, double: S3Double) -> None:
        self.cluster, self.load, self._double = cluster, load, double
        self.reports: list[str] = []

    async def after(self, event: str) -> None:
        """Let the writers go on for a moment, and note what they saw of the event."""
        await asyncio.sleep(1)
        self.reports.append(self.load.report(event))
        self.load.restart_clocks()

    async def entries(self) -> dict[int, list[int]]:
        """The numbers of each account."""
        connection = await asyncpg.connect(self.cluster.dsn())
        try:
            rows = await connection.fetch("SELECT account, array_agg(number) AS numbers FROM entries GROUP BY account")
        finally:
            await connection.close()
        return {row["account"]: row["numbers"] for row in rows}

    async def openings(self) -> list[dict[str, Any]]:
        """The openings on record, and the fences that they have restored."""
        connection = await asyncpg.connect(self.cluster.dsn())
        try:
            rows = await connection.fetch(
                "SELECT details FROM fencing.intake WHERE kind = 'administration' UNION ALL "
                "SELECT details FROM fencing.record WHERE kind = 'administration'"
            )
        finally:
            await connection.close()
        return [details for (text,) in rows if (details := json.loads(text))["operation"] == "OpenDatabase"]

    def objects(self) -> dict[int, int]:
        """The number of each object."""
        return {
            int(key.removeprefix("key-")): int(stored.content.body)
            for key, stored in self._double.objects("bucket").items()
            if key.startswith("key-")
        }


@asynccontextmanager
async def site(cluster: Cluster) -> AsyncIterator[Site]:
    owner = await asyncpg.connect(cluster.dsn())
    await owner.execute("CREATE TABLE entries (account bigint, number bigint, PRIMARY KEY (account, number))")
    await owner.close()
    double = S3Double(buckets=["bucket", "journal"])
    # Without a synchronous standby only the journal has what a failover loses.
    journal = {} if cluster.synchronous else {"mode": "sync", "bucket": "journal"}
    async with AsyncExitStack() as stack:
        endpoint = await stack.enter_async_context(serve(double))
        dsn = as_gateway(cluster.dsn())
        postgres = {"dsn": dsn, "connect_timeout": 5.0, "idle_timeout": 5.0}
        origins = [
            await stack.enter_async_context(
                running(config(dsn, endpoint, postgres=postgres, tables=[ENTRIES], journal=journal), Events())
            )
            for _ in range(GATEWAYS)
        ]
        # After a loss, object writes wait until requests from before it are dead: longer than a test should take.
        yield Site(cluster, Load(origins, KEYS if cluster.synchronous else 0), double)


async def test_writers_wait_and_nothing_acknowledged_is_lost(cluster: Cluster) -> None:
    async with site(cluster) as one:
        load = one.load
        async with load.running():
            await load.started()
            await asyncio.sleep(1)
            await one.after("no event")
            if cluster.synchronous:
                await asyncio.to_thread(cluster.switch_over)
                await asyncio.to_thread(cluster.ready)
                await one.after("switchover")
            former = await asyncio.to_thread(cluster.primary)
            with former.paused():
                await asyncio.to_thread(cluster.primary, former)
                await asyncio.sleep(1)
            # The former primary is back, and takes itself for the primary until its Patroni looks.
            await asyncio.to_thread(cluster.ready)
            await one.after("a paused primary that comes back")
            former = await asyncio.to_thread(cluster.primary)
            await asyncio.to_thread(former.kill)
            await asyncio.to_thread(cluster.primary, former)
            await one.after("a killed primary")
        entries, objects, openings = await one.entries(), one.objects(), await one.openings()
    lost = {account: series.lost(entries[account]) for account, series in load.accounts.items()}
    print(*one.reports, f"lost writes: {sum(map(len, lost.values()))}, stale ones: {len(load.stale)}", sep="\n")
    assert [wrong for plane in load.planes.values() for wrong in plane.wrong] == []
    assert [
        series.denied(entries[account]) for account, series in load.accounts.items() if series.denied(entries[account])
    ] == []
    for key, series in load.objects.items():
        assert objects[key] in (series.acknowledged[-1], *series.unknown), (key, series)
    assert load.stale == []
    # Each failover is on record as another run, which need not have all that the former one had.
    assert not all(opening["continues"] for opening in openings)
    if cluster.synchronous:
        assert not any(lost.values())
        assert [holders for grants in load.grants.values() for holders in grants.values() if len(holders) > 1] == []
