"""The balance of shards and nodes under many resources, and the size of their tables: ``python -m bench shards``.

Citus gives each shard a range of the 32-bit hash of the distribution column. ``hashtext`` of PostgreSQL is that hash,
so this needs no Citus. ``BENCH_RESOURCES``: how many names are hashed, 10^7 unless set. 10^9 take an hour or less.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, log
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg

from gateway.db import migrations
from gateway.demo.embedded import postgres

RESOURCES = int(os.environ.get("BENCH_RESOURCES", str(10**7)))
FINEST = 4096
"""Shards that the hashes are counted in. Each smaller power of two is a sum of these."""
NODES = (10, 100, 1_000)
SHARDS = (32, 128, 1_024, 4_096)
RANKED = 10**6
"""Resources whose requests are placed one by one. All colder ones are spread evenly."""
EXPONENTS = (0.0, 0.8, 0.99, 1.1)
"""Of Zipf's law: the resource of rank r gets a share of 1/r^s. 0 is an even load, 0.99 that of YCSB."""
FILLED = 10**6
"""Rows of each table whose size is measured. They come in the order of their hashes, as in real use."""

_NAME = "('public.orders/' || {number})"
_SHARD = f'(hashtext({_NAME} COLLATE "C")::bigint + 2147483648) >> {32 - FINEST.bit_length() + 1}'

TABLES = {
    "fence": "INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id) "
    "SELECT name, 0, 1, 'worker-7f9c4d-deployment-orders', 'orders-service', gen_random_uuid()",
    "lock": "INSERT INTO fencing.lock (resource, epoch, value) SELECT name, 0, 1",
    "lease": "INSERT INTO fencing.lease (resource, holder, caller, mode, epoch, value, ttl, delay, expires_at) "
    "SELECT name, 'worker-7f9c4d-deployment-orders', 'orders-service', 'exclusive', 0, 1, 30, 0, now()",
    "object": "INSERT INTO fencing.object (resource, bucket, key, etag, tombstone) "
    "SELECT name, 'bucket', name || '/part-00000.parquet', '9b2cf535f27731c974343645a3985328', false",
    "spent": "INSERT INTO fencing.spent (resource, bucket, key, etag, epoch, value, dead_at) "
    "SELECT name, 'bucket', name || '/part-00000.parquet', '9b2cf535f27731c974343645a3985328', 0, 1, now()",
}


def table() -> Iterator[str]:
    """Yield three tables in Markdown: the balance of resources, the balance of requests, and sizes."""
    with TemporaryDirectory(prefix="bench") as directory, postgres(Path(directory) / "data") as server:
        migrations.upgrade(server.dsn())
        counts, ranks = asyncio.run(_hashed(server.dsn()))
        yield f"| {RESOURCES:,} resources: nodes | shards | shards of a node | fullest shard | fullest node |"
        yield "|--:|--:|--:|--:|--:|"
        for nodes in NODES:
            for shards in SHARDS:
                if shards >= nodes:
                    yield _balance(counts, nodes, shards)
        yield ""
        yield "| exponent | hottest resource | " + " | ".join(f"{nodes:,} nodes" for nodes in NODES) + " |"
        yield "|--:|--:|" + "--:|" * len(NODES)
        for exponent in EXPONENTS:
            yield _skew(ranks, exponent)
        yield ""
        yield "| a row of | table, bytes | index, bytes | a billion, GB | levels of an index of 10^6, 10^7, 10^9 |"
        yield "|---|--:|--:|--:|--:|"
        for name, heap, index in asyncio.run(_sizes(server.dsn())):
            levels = ", ".join(str(_levels(index, rows)) for rows in (10**6, 10**7, 10**9))
            yield f"| `{name}` | {heap:.0f} | {index:.0f} | {heap + index:.0f} | {levels} |"


async def _hashed(dsn: str) -> tuple[Counter[int], list[int]]:
    """Return the number of resources of each of the finest shards, and the shard of each of the first resources."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET jit = off; SET max_parallel_workers_per_gather = 0; SET work_mem = '256MB'")
    block = min(RESOURCES, 10**6)
    counted = await connection.fetch(
        f"SELECT {_SHARD.format(number='(b * $1::bigint + n)')} AS shard, count(*) AS resources "
        "FROM generate_series(0, $2::bigint - 1) AS b, generate_series(1, $1::bigint) AS n GROUP BY 1",
        block,
        RESOURCES // block,
        timeout=None,
    )
    ranked = await connection.fetch(
        f"SELECT {_SHARD.format(number='n')} AS shard FROM generate_series(1, {RANKED}) AS n ORDER BY n"
    )
    await connection.close()
    return Counter({row["shard"]: row["resources"] for row in counted}), [row["shard"] for row in ranked]


def node_of(finest: int, shards: int, nodes: int) -> int:
    """Return the node that has a finest shard. Citus places the shards of a table on its nodes in turn."""
    return finest * shards // FINEST % nodes


def _balance(counts: Mapping[int, int], nodes: int, shards: int) -> str:
    of_shards: Counter[int] = Counter()
    of_nodes: Counter[int] = Counter()
    for finest, resources in counts.items():
        of_shards[finest * shards // FINEST] += resources
        of_nodes[node_of(finest, shards, nodes)] += resources
    least, most = shards // nodes, -(-shards // nodes)
    of_a_node = str(least) if least == most else f"{least} or {most}"
    fullest = max(of_shards.values()) * shards / RESOURCES
    return (
        f"| {nodes:,} | {shards:,} | {of_a_node} | {fullest:.4f} of the mean | "
        f"{max(of_nodes.values()) * nodes / RESOURCES:.3f} of the mean |"
    )


def _skew(ranks: Sequence[int], exponent: float) -> str:
    """Say how many nodes' worth of requests each cluster serves when its busiest node is full."""
    weights = [(rank + 1) ** -exponent for rank in range(len(ranks))]
    first, last = len(ranks) + 0.5, RESOURCES + 0.5
    power = 1 - exponent
    rest = max(0.0, (last**power - first**power) / power)
    whole = sum(weights) + rest
    cells = []
    for nodes in NODES:
        load: Counter[int] = Counter()
        shares = Counter(node_of(finest, FINEST, nodes) for finest in range(FINEST))
        for node, shards in shares.items():
            load[node] += rest * shards / FINEST
        for finest, weight in zip(ranks, weights, strict=True):
            load[node_of(finest, FINEST, nodes)] += weight
        cells.append(f"{whole / max(load.values()):,.0f}")
    return f"| {exponent} | {weights[0] / whole:.2g} | " + " | ".join(cells) + " |"


async def _sizes(dsn: str) -> list[tuple[str, float, float]]:
    """Return the bytes of each table and of its indexes for a row."""
    connection = await asyncpg.connect(dsn)
    sizes = []
    for name, insert in TABLES.items():
        await connection.execute(f"ALTER TABLE fencing.{name} DISABLE TRIGGER USER")
        named = _NAME.format(number="n")
        await connection.execute(
            f"{insert} FROM (SELECT {named} AS name FROM generate_series(1, {FILLED}) AS n "
            f"ORDER BY hashtext({named})) AS n",
            timeout=None,
        )
        of = f"'fencing.{name}'::regclass"
        heap, index = await connection.fetchval(f"SELECT ARRAY[pg_table_size({of}), pg_indexes_size({of})]")
        sizes.append((name, heap / FILLED, index / FILLED))
        await connection.execute(f"TRUNCATE fencing.{name}")
    await connection.close()
    return sizes


def _levels(index: float, rows: int) -> int:
    """Estimate the levels of a B-tree of so many bytes a row. An inner page refers to some 150 pages below it."""
    return 1 + ceil(log(rows * index / 8192, 150))
