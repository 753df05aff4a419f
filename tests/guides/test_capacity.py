"""docs/performance.md: the sizes and the numbers of requests that the page computes with are those of a gateway."""

import asyncio
import re

import asyncpg
import httpx
import pytest

from tests import ROOT
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.nightly

PAGE = (ROOT / "docs/performance.md").read_text()
NUMBER = 300
HOLDER = "nightly-host7-4711-0123456789ab"
NEAR = 0.45
"""Indexes grow by pages, which counts with few rows."""


def figure(row: str) -> float:
    """Return the figure of a row of the page's tables."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \| ([\d,]+) \|", PAGE, re.MULTILINE)
    return float(found.replace(",", ""))


class Installation:
    """A gateway, its clients, and the owner of its database."""

    def __init__(self, client: httpx.AsyncClient, owner: asyncpg.Connection) -> None:
        self._client, self._owner = client, owner

    async def write(self, token: int) -> set[int]:
        """Write each row under this token; the statuses."""
        headers = {"Fencing-Token": str(token), "Fencing-Holder": HOLDER}
        answers = await asyncio.gather(
            *(
                self._client.patch(f"/v1/tables/orders?id=eq.{number}", json={"note": "x"}, headers=headers)
                for number in range(NUMBER)
            )
        )
        return {answer.status_code for answer in answers}

    async def lock(self) -> None:
        """Acquire and release a lock for each row."""

        async def one(number: int) -> None:
            got = await self._client.post(f"/v1/leases/job/{number}", json={"holder": HOLDER})
            await self._client.delete(f"/v1/leases/job/{number}/{got.json()['lease']}")

        await asyncio.gather(*(one(number) for number in range(NUMBER)))

    async def bytes_each(self, table: str) -> float:
        """Return the bytes of a table, its partitions and indexes, for each of ``NUMBER``."""
        async with asyncio.timeout(PATIENCE):
            while await self._owner.fetchval("SELECT count(*) FROM fencing.intake"):
                await asyncio.sleep(0.1)
        await self._owner.execute(f"VACUUM FULL {table}")
        parts = "SELECT relid FROM pg_partition_tree($1::regclass) UNION SELECT $1::regclass"
        size = f"SELECT sum(pg_total_relation_size(relid))::bigint FROM ({parts}) AS parts"
        return int(await self._owner.fetchval(size, table)) / NUMBER


async def test_sizes_in_the_database(dsn: str) -> None:
    owner = await asyncpg.connect(dsn)
    await owner.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    await owner.execute("INSERT INTO orders SELECT n, '' FROM generate_series(0, $1::int) AS n", NUMBER)
    settings = config(dsn, tables=[{"name": "public.orders", "resource": "order/{id}"}])
    known = {"Authorization": f"Bearer {API_KEY}"}
    try:
        async with (
            running(settings) as origin,
            httpx.AsyncClient(base_url=origin, headers=known, timeout=PATIENCE) as client,
        ):
            one = Installation(client, owner)
            assert await one.write(34) == {204}
            assert await one.bytes_each("fencing.fence") == pytest.approx(figure("fence"), rel=NEAR)
            assert await one.write(35) == {204}
            before = await one.bytes_each("fencing.entry")
            assert await one.write(35) == {204}
            assert await one.bytes_each("fencing.entry") == before, "a write under a held token adds no row"
            assert await one.write(36) == {204}
            taken_over = await one.bytes_each("fencing.entry")
            assert taken_over - before == pytest.approx(figure("takeover on record"), rel=NEAR)
            assert await one.write(34) == {412}
            refused = await one.bytes_each("fencing.entry")
            assert refused - taken_over == pytest.approx(figure("refused write on record"), rel=NEAR)
            await one.lock()
            assert await one.bytes_each("fencing.entry") - refused == pytest.approx(figure("lease on record"), rel=NEAR)
    finally:
        await owner.close()


async def test_requests_to_the_store(dsn: str) -> None:
    double = S3Double(buckets=["bucket"])
    async with serve(double) as endpoint, running(config(dsn, endpoint, journal={"mode": "off"})) as origin:
        first, second = connect(origin, "33"), connect(origin, "34")
        await call(first.put_object, Key="probed", Body=b"")
        for row, operation, arguments in (
            ("PutObject up to 8 MiB", first.put_object, {"Key": "a", "Body": b"1"}),
            ("PutObject of 9 MiB", first.put_object, {"Key": "large", "Body": b"1" * 9 * 2**20}),
            ("GetObject", first.get_object, {"Key": "a"}),
            ("CopyObject of a small object", first.copy_object, {"Key": "b", "CopySource": "bucket/a"}),
            ("DeleteObject, where the store takes a condition", first.delete_object, {"Key": "a"}),
            ("first PutObject of a new holder", second.put_object, {"Key": "b", "Body": b"2"}),
        ):
            double.requests.clear()
            await call(operation, **arguments)
            assert len(double.requests) == figure(row), (row, double.requests)
