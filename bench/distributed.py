"""Statements on a Citus cluster, and what they take of its nodes: ``CITUS_DSN=… python -m bench distributed``.

These are statements of Citus itself, on tables and functions made here and dropped again; no gateway is involved.
``CITUS_DSN``: the coordinator of a cluster whose nodes all run on this machine, because their processor time is read
from the kernel. A claim is ``claim_v1`` of the schema without what Citus does not distribute: composite types.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg
import psutil
from psycopg.conninfo import conninfo_to_dict

from bench import usage

WORKERS = (1, 2, 4)
RESOURCES, CALLS, SESSIONS, BATCH = 4_000, 2_400, 8, 32
TURNS = 2

SCHEMA = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.fence (
    resource text COLLATE "C" PRIMARY KEY, epoch integer NOT NULL, value bigint NOT NULL, holder text NOT NULL,
    caller text, raised_at timestamptz NOT NULL DEFAULT clock_timestamp(), write_id uuid) WITH (fillfactor = 70);
CREATE TABLE {schema}.intent (
    resource text COLLATE "C" NOT NULL, key text NOT NULL, epoch integer NOT NULL, value bigint NOT NULL,
    PRIMARY KEY (resource, key));
CREATE FUNCTION {schema}.claim(p_resource text, p_epoch integer, p_value bigint, p_holder text) RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    fence record;
    raised boolean := false;
    -- Citus takes no volatile function in an UPDATE.
    moment timestamptz := clock_timestamp();
BEGIN
    SELECT f.epoch, f.value INTO fence FROM {schema}.fence f WHERE f.resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO {schema}.fence (resource, epoch, value, holder) VALUES (p_resource, p_epoch, p_value, p_holder)
        ON CONFLICT (resource) DO NOTHING;
        raised := FOUND;
    ELSIF (fence.epoch, fence.value) < (p_epoch, p_value) THEN
        PERFORM FROM {schema}.fence f
        WHERE f.resource = p_resource AND (f.epoch, f.value) < (p_epoch, p_value) FOR NO KEY UPDATE;
        IF FOUND THEN
            UPDATE {schema}.fence f
            SET epoch = p_epoch, value = p_value, holder = p_holder, raised_at = moment
            WHERE f.resource = p_resource;
            raised := true;
        END IF;
    END IF;
    SELECT f.epoch, f.value INTO fence FROM {schema}.fence f WHERE f.resource = p_resource FOR SHARE;
    PERFORM FROM {schema}.intent i WHERE i.resource = p_resource AND (i.epoch, i.value) < (p_epoch, p_value);
    RETURN CASE WHEN raised THEN 'raised' WHEN (p_epoch, p_value) < (fence.epoch, fence.value) THEN 'token-stale'
        ELSE 'held' END;
END
$function$;
"""
DISTRIBUTED = (
    "SELECT create_distributed_table('{schema}.fence', 'resource', shard_count => 32, colocate_with => 'none')",
    "SELECT create_distributed_table('{schema}.intent', 'resource', colocate_with => '{schema}.fence')",
    "SELECT create_distributed_function('{schema}.claim(text, integer, bigint, text)', 'p_resource', '{schema}.fence')",
)
FILLED = """
INSERT INTO {schema}.fence (resource, epoch, value, holder)
SELECT 'public.orders/' || n, 0, 1, 'worker-a' FROM generate_series(1, {resources}) AS n
"""

UPDATE = "UPDATE {schema}.fence SET holder = $2 WHERE resource = $1"
# Nodes name their sessions with one another so. The maintenance daemon uses its own rarely.
INTERNAL = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name LIKE 'citus_internal%' AND state_change > now() - interval '30 seconds'
"""
CLAIM = "SELECT {schema}.claim($1, 0, $2, 'worker-a')"


@dataclass(frozen=True, slots=True)
class Node:
    """One PostgreSQL of the cluster: its address, and the process that all of its sessions are children of."""

    dsn: str
    postmaster: int


Placed: TypeAlias = dict[str, int]
"""The node that each resource is on, by its place among the nodes with shards."""


def table() -> Iterator[str]:
    """Yield a line in Markdown for each statement, way to the shard, and number of workers with shards."""
    dsn = os.environ.get("CITUS_DSN")
    if dsn is None:
        raise SystemExit("Set CITUS_DSN to the coordinator of a Citus cluster on this machine.")
    yield "| statement | workers | sent to | coordinator, µs | workers, µs | busiest, µs | commits | of other nodes |"
    yield "|---|--:|---|--:|--:|--:|--:|--:|"
    loop = asyncio.new_event_loop()
    coordinator, nodes = loop.run_until_complete(_nodes(dsn))
    for workers in (0, *(number for number in WORKERS if number <= len(nodes))):
        schema = f"bench_{workers}"
        placed = loop.run_until_complete(_make(coordinator, nodes[:workers], nodes, schema))
        try:
            for work, sql, arguments in WORKS:
                for way, batch, choose in _ways(coordinator, nodes[:workers], placed):
                    label = work if batch == 1 else f"{work}, {batch} in a transaction"
                    load = Load(sql.format(schema=schema), arguments, batch, choose)
                    yield loop.run_until_complete(_line(label, way, coordinator, nodes[:workers], load))
            if workers:
                yield loop.run_until_complete(_implicit(coordinator, nodes[:workers], schema))
        finally:
            loop.run_until_complete(_drop(coordinator, nodes, schema))
    loop.close()


Arguments: TypeAlias = Callable[[str, int], tuple[object, ...]]
"""Makes the arguments of a statement of its resource and a number."""
Call: TypeAlias = tuple[str, Sequence[str]]
"""The address that a call goes to, and the resources of its statements."""
Choose: TypeAlias = Callable[[], Call]


def _ways(coordinator: Node, nodes: Sequence[Node], placed: Placed) -> Iterator[tuple[str, int, Choose]]:
    names = list(placed)
    if not nodes:
        yield "PostgreSQL without Citus's tables", 1, lambda: (coordinator.dsn, [random.choice(names)])
        yield "PostgreSQL without Citus's tables", BATCH, lambda: (coordinator.dsn, random.sample(names, BATCH))
        return
    of_node = [[name for name, place in placed.items() if place == node] for node in range(len(nodes))]

    def owner(batch: int) -> Call:
        node = random.randrange(len(nodes))
        return nodes[node].dsn, random.sample(of_node[node], batch)

    yield "the coordinator", 1, lambda: (coordinator.dsn, [random.choice(names)])
    yield "any worker", 1, lambda: (random.choice(nodes).dsn, [random.choice(names)])
    yield "the worker that has it", 1, lambda: owner(1)
    yield "the coordinator", BATCH, lambda: (coordinator.dsn, random.sample(names, BATCH))
    yield "any worker", BATCH, lambda: (random.choice(nodes).dsn, random.sample(names, BATCH))
    yield "the worker that has all", BATCH, lambda: owner(BATCH)


def _named(name: str, nth: int) -> tuple[object, ...]:
    return name, f"worker-{nth}"


def _held(name: str, _: int) -> tuple[object, ...]:
    return name, 1


_tokens = iter(range(2, 2**40))


def _raised(name: str, _: int) -> tuple[object, ...]:
    return name, next(_tokens)


WORKS: tuple[tuple[str, str, Arguments], ...] = (
    ("UPDATE by resource", UPDATE, _named),
    ("claim, held", CLAIM, _held),
    ("claim, raised", CLAIM, _raised),
)


@dataclass(frozen=True, slots=True)
class Load:
    """Statements to run: so many in one transaction, at a node and about resources that ``choose`` picks."""

    sql: str
    arguments: Arguments
    batch: int
    choose: Choose


async def _line(label: str, way: str, coordinator: Node, nodes: Sequence[Node], load: Load) -> str:
    """Measure in turns; the turn with the least processor time of all counts."""
    every = [coordinator, *nodes]
    sessions = {node.dsn: [await asyncpg.connect(node.dsn) for _ in range(SESSIONS)] for node in every}
    turns = []
    for turn in range(TURNS + 1):
        number = SESSIONS * 8 * load.batch if turn == 0 else CALLS
        before = await _used(every)
        await _call(sessions, load, number)
        after = await _used(every)
        turns.append([_each(new, old, number) for new, old in zip(after, before, strict=True)])
    internal = await _opened(nodes) if nodes else 0
    for opened in sessions.values():
        for session in opened:
            await session.close()
    seconds, commits = min(turns[1:], key=lambda used: sum(used[0]))
    figures = [seconds[0], sum(seconds[1:]), max(seconds)]
    times = " | ".join(f"{one * 1e6:.0f}" for one in figures)
    return f"| {label} | {len(nodes) or ''} | {way} | {times} | {sum(commits):.2f} | {internal} |"


def _each(after: Sequence[float], before: Sequence[float], number: int) -> list[float]:
    return [(new - old) / number for new, old in zip(after, before, strict=True)]


async def _call(sessions: dict[str, list[asyncpg.Connection]], load: Load, number: int) -> None:
    """Run so many statements, a batch after the other on each session."""
    rest = iter(range(number // load.batch))

    async def client(place: int) -> None:
        for nth in rest:
            dsn, names = load.choose()
            session = sessions[dsn][place]
            if load.batch == 1:
                await session.fetchval(load.sql, *load.arguments(names[0], nth))
            else:
                # Citus commits statements of an implicit transaction one by one. Names are in one order: no deadlocks.
                async with session.transaction():
                    await session.executemany(load.sql, [load.arguments(name, nth) for name in sorted(names)])

    await asyncio.gather(*(client(place) for place in range(SESSIONS)))


async def _used(nodes: Sequence[Node]) -> tuple[list[float], list[float]]:
    """Return the processor time of each node, and the transactions there that have written or locked a row."""
    seconds = [usage.seconds(node.postmaster, family=True) for node in nodes]
    commits = []
    for node in nodes:
        session = await asyncpg.connect(node.dsn)
        commits.append(float(await session.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::float")))
        await session.close()
    return seconds, commits


async def _implicit(coordinator: Node, nodes: Sequence[Node], schema: str) -> str:
    """Say how many rows a transaction without ``BEGIN`` changes whose last statement fails. PostgreSQL changes none."""
    changed = []
    for node in (coordinator, nodes[0]):
        session = await asyncpg.connect(node.dsn)
        sent = [(f"public.orders/{n}", f"by {node.dsn}") for n in range(1, 9)]
        with suppress(asyncpg.PostgresError):
            await session.executemany(UPDATE.format(schema=schema), [*sent, ("public.orders/9", None)])
        changed.append(await session.fetchval(f"SELECT count(*) FROM {schema}.fence WHERE holder = $1", sent[0][1]))
        await session.close()
    return f"| UPDATE, 9 in one packet, the last fails | {len(nodes)} | both | {changed} rows changed | | | | |"


async def _opened(nodes: Sequence[Node]) -> int:
    """Return the most sessions that one node has of other nodes."""
    counted = []
    for node in nodes:
        session = await asyncpg.connect(node.dsn)
        counted.append(await session.fetchval(INTERNAL))
        await session.close()
    return int(max(counted))


async def _nodes(dsn: str) -> tuple[Node, list[Node]]:
    session = await asyncpg.connect(dsn)
    rows = await session.fetch("SELECT nodename, nodeport, groupid FROM pg_dist_node WHERE isactive ORDER BY nodeport")
    await session.close()
    parts = conninfo_to_dict(dsn)
    nodes = []
    for row in rows:
        each = f"postgresql://{parts['user']}@{row['nodename']}:{row['nodeport']}/{parts['dbname']}"
        session = await asyncpg.connect(each)
        postmaster = psutil.Process(await session.fetchval("SELECT pg_backend_pid()")).ppid()
        await session.close()
        nodes.append((row["groupid"], Node(each, postmaster)))
    return next(node for group, node in nodes if group == 0), [node for group, node in nodes if group != 0]


async def _make(coordinator: Node, nodes: Sequence[Node], every: Sequence[Node], schema: str) -> Placed:
    """Make the tables, distributed over these nodes only, or not at all. Returns where each resource is."""
    session = await asyncpg.connect(coordinator.dsn)
    for node in every if nodes else ():
        port = int(node.dsn.rpartition(":")[2].partition("/")[0])
        await session.execute(
            "SELECT citus_set_node_property('127.0.0.1', $1, 'shouldhaveshards', $2)".replace("$1", str(port)).replace(
                "$2", str(node in nodes).lower()
            )
        )
    await session.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
    await session.execute(SCHEMA.format(schema=schema))
    if nodes:
        for statement in DISTRIBUTED:
            await session.execute(statement.format(schema=schema))
    await session.execute(FILLED.format(schema=schema, resources=RESOURCES))
    names = [f"public.orders/{n}" for n in range(1, RESOURCES + 1)]
    if not nodes:
        await session.close()
        return dict.fromkeys(names, 0)
    rows = await session.fetch(
        "SELECT name, nodeport FROM unnest($1::text[]) AS name "
        "JOIN pg_dist_placement p ON p.shardid = get_shard_id_for_distribution_column($2::text::regclass, name) "
        "JOIN pg_dist_node n ON n.groupid = p.groupid",
        names,
        f"{schema}.fence",
    )
    await session.close()
    place = {int(node.dsn.rpartition(":")[2].partition("/")[0]): number for number, node in enumerate(nodes)}
    return {row["name"]: place[row["nodeport"]] for row in rows}


async def _drop(coordinator: Node, every: Sequence[Node], schema: str) -> None:
    session = await asyncpg.connect(coordinator.dsn)
    await session.execute(f"DROP SCHEMA {schema} CASCADE")
    for node in every:
        port = node.dsn.rpartition(":")[2].partition("/")[0]
        await session.execute(f"SELECT citus_set_node_property('127.0.0.1', {port}, 'shouldhaveshards', true)")
    await session.close()
