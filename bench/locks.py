"""The cost of locks: acquire and release, hand over to a waiter, and keep many alive."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from tempfile import NamedTemporaryFile, TemporaryDirectory

from bench import usage
from bench.lock_client import BUNDLE, LEASES, TTL
from bench.measure import CONNECTIONS, TURN, Goal, Load, Measured, Row, cpu_seconds, in_turns
from bench.services import Services, answers, run_json, running
from bench.table_loads import Measure, watched
from gateway.client import leases
from tests.processes import free_port

WAITERS = 100
KEEPERS = 4
"""Connections over which leases are kept alive."""
HELD = ((1_000, leases.MOST), (1_000, 1), (10_000, leases.MOST))
"""Locks that one program holds, and how many it renews in one request: 10,000 one by one are more than it can."""


def rows() -> Iterator[Row]:
    """All there is to be said about locks."""
    with running(None) as services:
        yield from _acquire(services)
        yield _hand_over(services)
        yield from _renew(services)


def table() -> Iterator[str]:
    """Yield the cost of keeping the locks of one program that uses the client library, in cores, as Markdown."""
    yield f"| locks of {TTL} s held by one program | the program used | the gateway used | PostgreSQL used |"
    yield "|---|--:|--:|--:|"
    for number, most in HELD:
        with running(None) as services, _holding(services.gateway, number, most) as program:
            time.sleep(TTL / 3)  # until those that are due soon go together
            gateway = partial(cpu_seconds, services.gateway_pid)
            postgres = partial(usage.seconds, services.postgres_pid, family=True)
            read: list[Callable[[], float]] = [partial(cpu_seconds, program), gateway, postgres]
            before, start = [seconds() for seconds in read], time.perf_counter()
            time.sleep(2 * TTL / 3)
            took = time.perf_counter() - start
            used = [f"{(seconds() - spent) / took:.3f}" for seconds, spent in zip(read, before, strict=True)]
        yield f"| {number:,}, at most {most} in a request | {' | '.join(used)} |"


@contextmanager
def _holding(origin: str, locks: int, most: int) -> Iterator[int]:
    """Run a program that holds so many locks, and must not lose one. Yields its process id."""
    command = [sys.executable, "-m", "bench.lock_holder", origin, str(locks), str(most)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.close()
        if (lost := process.stdout.readline().strip()) != "0":
            raise SystemExit(f"{lost} of {locks} locks were lost")


def _acquire(services: Services) -> Iterator[Row]:
    work = "acquire a lock and release it"
    (own,) = _watched(services, _http(services.gateway, "acquire", CONNECTIONS))
    peer = _driver(services, "acquire", CONNECTIONS)
    load, (other,), cost = in_turns(services.gateway_pid, own, peer)
    yield Row(work, "rows and asyncpg by hand", load, other, cost, goals=(Goal(1_500, Measured.RATE),))
    if shutil.which("etcd") is None:
        print("left out: etcd is not installed", file=sys.stderr)
        return
    with _etcd() as (origin, pid):
        peer = watched(pid, services, _http(origin, "etcd", CONNECTIONS))
        load, (other,), cost = in_turns(services.gateway_pid, own, peer)
    yield Row(work, "etcd, through its HTTP gateway", load, other, cost, goals=(Goal(1.0),))


def _hand_over(services: Services) -> Row:
    own = _http(services.gateway, "hand-over", WAITERS)
    peer = _driver(services, "hand-over", WAITERS)
    load, (other,), cost = in_turns(services.gateway_pid, own, peer)
    work = f"hand over a lock with {WAITERS} waiters"
    return Row(work, "pg_advisory_lock", load, other, cost, goals=(Goal(10, Measured.MEDIAN),), added=True)


def _renew(services: Services) -> Iterator[Row]:
    with NamedTemporaryFile(prefix="bench") as file:
        _http(services.gateway, "hold", CONNECTIONS, file.name)()
        single = _http(services.gateway, "renew", KEEPERS, file.name)
        many = _http(services.gateway, "renew-many", KEEPERS, file.name)
        named = (many, f"{BUNDLE} in a request"), (single, "one in a request")
        for (own, mine), (peer, theirs) in (named, named[::-1]):
            load, (other,), cost = in_turns(services.gateway_pid, *_watched(services, own, peer))
            work = f"keep {LEASES:,} leases of {TTL} s alive, {mine}"
            yield Row(work, theirs, load, other, cost, goals=(Goal(0.1, Measured.CORES),))


def _watched(services: Services, *sides: Measure) -> Iterator[Measure]:
    for side in sides:
        yield watched(services.gateway_pid, services, side)


def _http(origin: str, work: str, connections: int, *file: str) -> Measure:
    return lambda: Load.of(run_json("bench.lock_client", work, origin, str(connections), str(TURN), *file))


def _driver(services: Services, work: str, connections: int) -> Measure:
    return lambda: Load.of(run_json("bench.direct_locks", work, services.dsn, str(connections), str(TURN)))


@contextmanager
def _etcd() -> Iterator[tuple[str, int]]:
    """Run an etcd of its own, on the same kind of disk as PostgreSQL. Yields its origin and its process id."""
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    with TemporaryDirectory(prefix="bench") as directory:
        command = ["etcd", "--data-dir", directory, "--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}", "--log-level", "error"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                if not answers(f"{client}/health", 200):
                    raise SystemExit("etcd did not get ready")
                yield client, process.pid
            finally:
                process.terminate()
