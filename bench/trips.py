"""The costs of each kind of request in PostgreSQL: round trips, statements, commits and log: ``python -m bench trips``.

These are counts, so they carry over to any machine. Processor time is beside them, of the gateway and of PostgreSQL.
Commits are those of transactions that write or lock a row. The log is without full images of pages.
Requests come one at a time, where each has a commit of its own, and on 32 connections, where they share batches.
"""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import asyncpg
import orjson

from bench import objects, usage
from bench.lock_client import BUNDLE
from bench.measure import CONNECTIONS
from bench.raw_http import RawConnection
from bench.services import KEYS, ROWS, Services, running
from bench.wire import Sent, counting
from tests.stores import moto
from tests.stores.store import User

LONE, SHARED, STORED = 400, 9_600, 640
"""Requests one at a time, of all connections together, and those of them that go to a store."""
HEADER = "Fencing-Token: {}\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """One request over HTTP, and the status that its answer has."""

    method: str
    path: str
    body: bytes = b""
    headers: str = ""
    status: tuple[int, ...] = (200, 201, 204)


@dataclass(slots=True)
class Spent:
    """The costs of a number of requests. Seconds are processor time."""

    trips: float
    statements: float
    commits: float
    log: float
    gateway: float
    database: float

    def less(self, before: "Spent", idle: float = 0.0, pause: "Spent | None" = None) -> "Spent":
        """Return the difference, without what the gateway does in so many seconds by itself (``pause``: in one)."""
        return Spent(*(
            getattr(self, each.name) - getattr(before, each.name) - (idle * getattr(pause, each.name) if pause else 0)
            for each in fields(self)
        ))  # fmt: skip


def table() -> Iterator[str]:
    """Yield a line in Markdown for each kind of request."""
    yield "| request | connections | trips | statements | commits | log, bytes | gateway, µs | PostgreSQL, µs |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    with moto.running() as store:
        store.connect().create_bucket(Bucket=objects.BUCKET)
        sent = Sent()

        @contextmanager
        def path(dsn: str) -> Iterator[str]:
            nonlocal sent
            with counting(dsn) as (relayed, counted):
                sent = counted
                yield relayed

        with running(store, path=path) as services:
            yield from _lines(services, sent)


def _lines(services: Services, sent: Sent) -> Iterator[str]:
    loop = asyncio.new_event_loop()
    loop.run_until_complete(_without_full_pages(services.dsn))
    pause = loop.run_until_complete(_idle(services, sent))
    for connections in (1, CONNECTIONS):
        number = LONE if connections == 1 else SHARED
        for name, make in WORKS.items():
            made = make(services, number if name not in STORES else min(number, STORED))
            spent, requests = loop.run_until_complete(_measured(services, sent, made, connections, pause))
            yield _line(name, connections, spent, requests)
        yield from _leases(loop, services, sent, connections, number // 2, pause)
    loop.close()


async def _without_full_pages(dsn: str) -> None:
    """Have the log contain changes only, however long ago the last checkpoint was."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("ALTER SYSTEM SET full_page_writes = off")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


def _line(name: str, connections: int, spent: Spent, requests: int) -> str:
    each = [getattr(spent, field.name) / requests for field in fields(spent)]
    counts = " | ".join(f"{one:.2f}" for one in each[:3])
    return f"| {name} | {connections} | {counts} | {each[3]:,.0f} | {each[4] * 1e6:,.0f} | {each[5] * 1e6:,.0f} |"


async def _measured(
    services: Services, sent: Sent, requests: Sequence[Request], connections: int, pause: Spent
) -> tuple[Spent, int]:
    """Send the requests. The first twentieth only warms everything up."""
    warm = max(connections, len(requests) // 20)
    opened = [await RawConnection.open(services.gateway) for _ in range(connections)]
    await _send(opened, requests[:warm])
    before, start = await _spent(services, sent), time.perf_counter()
    await _send(opened, requests[warm:])
    took = time.perf_counter() - start
    spent = (await _spent(services, sent)).less(before, took + _SETTLED, pause)
    for connection in opened:
        connection.close()
    return spent, len(requests) - warm


async def _send(opened: Sequence[RawConnection], requests: Sequence[Request]) -> list[bytes]:
    """Keep each connection busy until all requests are answered. Returns the answers in the order of the requests."""
    waiting = iter(enumerate(requests))
    answers = [b""] * len(requests)

    async def client(connection: RawConnection) -> None:
        for number, request in waiting:
            status, answers[number] = await connection.ask(request.method, request.path, request.body, request.headers)
            if status not in request.status:
                raise SystemExit(f"{request.method} {request.path}: {status} {answers[number]!r}")

    async with asyncio.TaskGroup() as tasks:
        for connection in opened:
            tasks.create_task(client(connection))
    return answers


_SETTLED = 0.5
"""Seconds after which the work of a request is over, what follows its answer included."""


async def _spent(services: Services, sent: Sent) -> Spent:
    await asyncio.sleep(_SETTLED)
    counted = (sent.trips, sent.statements)
    used = usage.seconds(services.gateway_pid), usage.seconds(services.postgres_pid, family=True)
    connection = await asyncpg.connect(services.dsn)
    commits, log = await connection.fetchval(
        "SELECT ARRAY[pg_snapshot_xmax(pg_current_snapshot())::text::float, pg_current_wal_insert_lsn() - '0/0']"
    )
    await connection.close()
    return Spent(*counted, commits, log, *used)


async def _idle(services: Services, sent: Sent) -> Spent:
    """Return what a second without requests takes."""
    seconds = 5
    before = await _spent(services, sent)
    await asyncio.sleep(seconds)
    spent = (await _spent(services, sent)).less(before)
    return Spent(*(getattr(spent, field.name) / (seconds + _SETTLED) for field in fields(spent)))


def _row() -> int:
    return random.randint(1, ROWS)


def _held(_: Services, number: int) -> list[Request]:
    body, token = b'{"balance": 1}', HEADER.format(1)
    return [Request("PATCH", f"/v1/tables/accounts?id=eq.{_row()}", body, token) for _ in range(number)]


def _take_over(_: Services, number: int) -> list[Request]:
    first, body = time.time_ns() // 10**6, b'{"balance": 1}'
    ids = random.sample(range(1, ROWS), number)
    return [
        Request("PATCH", f"/v1/tables/handed?id=eq.{id_}", body, HEADER.format(first + nth))
        for nth, id_ in enumerate(ids)
    ]


def _keyed(_: Services, number: int) -> list[Request]:
    first = time.time_ns() // 10**6
    return [
        Request("POST", "/v1/tables/fresh", orjson.dumps({"id": first * 10**5 + nth, "balance": 1}), HEADER.format(1))
        for nth in range(number)
    ]


def _stale(services: Services, number: int) -> list[Request]:
    held = Request("PATCH", "/v1/tables/accounts?id=eq.0", b'{"balance": 1}', HEADER.format(2))

    async def take_over() -> None:
        await _send([await RawConnection.open(services.gateway)], [held])

    asyncio.run(take_over())
    return [Request(held.method, held.path, held.body, HEADER.format(1), (412,))] * number


def _barrier(_: Services, number: int) -> list[Request]:
    first = time.time_ns() // 10**6
    return [
        Request("POST", f"/v1/fences/bench/barrier/{first}/{nth}/barrier", b'{"token": "1"}') for nth in range(number)
    ]


def _put(services: Services, number: int, keys: int) -> list[Request]:
    first = time.time_ns() // 10**6
    urls = []
    for key in range(keys):
        user = User("bench", *KEYS)
        url = objects.presigned(services.gateway, user, "put_object", f"trips/{first}/{key}")
        urls.append(url.removeprefix(services.gateway))
    return [Request("PUT", urls[nth % keys], random.randbytes(4096)) for nth in range(number)]


WORKS: dict[str, Callable[[Services, int], list[Request]]] = {
    "PATCH of a row, token held": _held,
    "PATCH of a row, a new holder": _take_over,
    "POST of a row with its own key, a new resource": _keyed,
    "stale PATCH, refused, on record": _stale,
    "barrier of a new resource": _barrier,
    "PutObject of 4 KiB, a new key": lambda services, number: _put(services, number, number),
    "PutObject of 4 KiB, a key written before": lambda services, number: _put(services, number, 64),
}
STORES = [name for name in WORKS if name.startswith("PutObject")]


def _leases(
    loop: asyncio.AbstractEventLoop, services: Services, sent: Sent, connections: int, number: int, pause: Spent
) -> Iterator[str]:
    """Yield the lines of acquiring locks, renewing their leases alone and in bundles, and releasing them."""
    first, body = time.time_ns() // 10**6, orjson.dumps({"holder": "holder", "ttl": 3600})
    names = [f"bench/lease/{first}/{nth}" for nth in range(number)]
    leases: list[dict[str, str]] = []

    async def asked(requests: Sequence[Request]) -> tuple[Spent, list[bytes]]:
        opened = [await RawConnection.open(services.gateway) for _ in range(connections)]
        before, start = await _spent(services, sent), time.perf_counter()
        answers = await _send(opened, requests)
        took = time.perf_counter() - start
        spent = (await _spent(services, sent)).less(before, took + _SETTLED, pause)
        for connection in opened:
            connection.close()
        return spent, answers

    spent, answers = loop.run_until_complete(asked([Request("POST", f"/v1/leases/{name}", body) for name in names]))
    yield _line("lock: acquire", connections, spent, number)
    leases = [{key: lease[key] for key in ("resource", "lease")} for lease in map(orjson.loads, answers)]
    paths = [f"/v1/leases/{lease['resource']}/{lease['lease']}" for lease in leases]
    spent, _ = loop.run_until_complete(asked([Request("PUT", path, b"{}") for path in paths]))
    yield _line("lock: renew", connections, spent, number)
    bundles = [leases[start : start + BUNDLE] for start in range(0, number, BUNDLE)]
    spent, _ = loop.run_until_complete(
        asked([Request("PUT", "/v1/leases", orjson.dumps({"leases": each})) for each in bundles])
    )
    yield _line(f"lock: renew, {BUNDLE} in a request, each lease", connections, spent, number)
    spent, _ = loop.run_until_complete(asked([Request("DELETE", path) for path in paths]))
    yield _line("lock: release", connections, spent, number)
