"""docs/guides/capacity.md: the sizes and numbers of requests that the page computes with are those of a gateway."""

import asyncio
import re
from collections import Counter

import asyncpg
import httpx
import pytest

from tests.doubles.s3 import S3Double, serve
from tests.guides.pages import ROOT
from tests.integration.objects.clients import call, connect
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.thorough

PAGE = ROOT / "docs/guides/capacity.md"
NUMBER = 400
RULE = {"name": "public.orders", "resource": "order/{id}"}
HOLDER = "nightly-host7-4711-0123456789ab"


def figure(label: str) -> float:
    """Return the figure of a row of the page's table of sizes."""
    (found,) = re.findall(rf"^\| {re.escape(label)} \|(?:[^|]*\|)? *([\d,]+)[^|]*\|", PAGE.read_text(), re.MULTILINE)
    return float(found.replace(",", ""))


async def size(connection: asyncpg.Connection, table: str) -> int:
    """Return the bytes of the rows of a table with all partitions, and of its indexes, without free space."""
    await connection.execute(f"VACUUM FULL {table}")
    found = await connection.fetchval(
        "SELECT sum(pg_total_relation_size(relid))::bigint FROM "
        "(SELECT relid FROM pg_partition_tree($1::regclass) UNION SELECT $1::regclass) AS parts",
        table,
    )
    return int(found)


async def test_sizes_in_the_database(dsn: str) -> None:
    owner = await asyncpg.connect(dsn)
    await owner.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    await owner.execute("INSERT INTO orders SELECT n, '' FROM generate_series(1, $1::int) AS n", NUMBER)
    tables = ("fencing.fence", "fencing.entry")
    limits = httpx.Limits(max_connections=16)
    settings = config(dsn, tables=[RULE])

    async with (
        running(settings) as origin,
        httpx.AsyncClient(
            base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE, limits=limits
        ) as client,
    ):

        async def write(number: int, token: int) -> int:
            headers = {"Fencing-Token": str(token), "Fencing-Holder": HOLDER}
            path = f"/v1/tables/orders?id=eq.{number}"
            return (await client.patch(path, json={"note": str(token)}, headers=headers)).status_code

        async def all_of(token: int, expected: int) -> None:
            answers = await asyncio.gather(*(write(number, token) for number in range(1, NUMBER + 1)))
            assert set(answers) == {expected}

        async def sealed() -> None:
            async with asyncio.timeout(PATIENCE):
                while await owner.fetchval("SELECT count(*) FROM fencing.intake"):
                    await asyncio.sleep(0.1)

        sizes = {}
        for step, (token, status) in {"first": (34, 204), "none": (34, 204), "raise": (35, 204), "stale": (34, 412)}.items():
            await sealed()
            before = {table: await size(owner, table) for table in tables}
            await all_of(token, status)
            await sealed()
            sizes[step] = {table: (await size(owner, table) - before[table]) / NUMBER for table in tables}
    await owner.close()
    print(sizes)


async def test_requests_to_the_store(dsn: str) -> None:
    double = S3Double(buckets=["bucket"])
    async with serve(double) as endpoint, running(config(dsn, endpoint, journal={"mode": "off"})) as origin:
        first = connect(origin, "33")
        await call(first.put_object, Key="probed", Body=b"1")
        counts = {}

        async def counted(name, operation, **arguments):
            double.requests.clear()
            await call(operation, **arguments)
            counts[name] = [one.operation.name for one in double.requests]

        await counted("create", first.put_object, Key="k", Body=b"1")
        await counted("overwrite", first.put_object, Key="k", Body=b"2")
        await counted("big", first.put_object, Key="big", Body=b"2" * 9 * 2**20)
        await counted("get", first.get_object, Key="k")
        await counted("copy", first.copy_object, Key="k2", CopySource="bucket/k")
        await counted("delete", first.delete_object, Key="k")
        second = connect(origin, "34")
        await counted("takeover", second.put_object, Key="k2", Body=b"other")
    print(counts)
