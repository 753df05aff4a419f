"""The parts of a soak: one PostgreSQL, one S3 double, three gateways in front of them, a lock service, a history.

And its trouble: whatever may go wrong with gateways, the store and the database, at random moments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import asyncpg

from gateway.demo.embedded import postgres
from tests.crash.clients import BUCKET
from tests.crash.history import CHANGES, PUBLICATION, SLOT, Commit, Deed, History, Token, commits
from tests.crash.processes import Gateway, Nursery
from tests.crash.stage import Postgres
from tests.doubles.s3 import ACCESS_KEY as STORE_KEY
from tests.doubles.s3 import SECRET_KEY as STORE_SECRET
from tests.doubles.s3 import DoubleProcess
from tests.doubles.s3.process import RemoteRule
from tests.postgres import as_gateway, install
from tests.running import API_KEY, GRANTS, PAIR

JOBS = ("job/1", "job/2")
KEYS = {f"jobs/{job[4:]}/{name}": job for job in JOBS for name in ("a", "b")}
ROWS = range(1, 5)
GATEWAYS = 3
WRITERS = 10

# Bytes that come back again and again, and would bring their ETags back. The last ones are staged as parts.
BODIES = (b"", b"one", b"two", b"three" * 1000, b"large" * 20_000)
MEMORY_THRESHOLD = 64 * 1024

STORES: dict[str, dict[str, Any]] = {
    "as on AWS": {},
    "deletes ignore conditions": {"ignored_conditions": ["DeleteObject"]},
    "completions ignore conditions": {"ignored_conditions": ["CompleteMultipartUpload"]},
    "every ETag is unique": {"etags": "unique"},
    "uploads linger": {"ignored_conditions": ["CompleteMultipartUpload"], "abort_delay": 0.3},
    "versions are kept": {"versioned": True},
}

_TABLES = """
    CREATE TABLE entries (id bigint PRIMARY KEY, job bigint NOT NULL, mark bigint);
    ALTER TABLE entries REPLICA IDENTITY FULL;
    CREATE FUNCTION write_entry(id bigint, job bigint, mark bigint) RETURNS SETOF entries LANGUAGE sql AS
        'UPDATE entries SET mark = $3 WHERE id = $1 AND job = $2 RETURNING *';
"""


def change_of_row(row: int, job: str, mark: int, token: int | str) -> dict[str, Any]:
    """Return one of the writes of a transaction: it marks a row of the job."""
    return {
        "method": "PATCH",
        "table": "entries",
        "query": f"id=eq.{row}&job=eq.{job.rpartition('/')[2]}",
        "body": {"mark": mark},
        "token": str(token),
        "prefer": "return=representation",
    }


@dataclass(slots=True)
class Issuer:
    """The lock service: each caller becomes the new holder of a resource, without any regard to the one before."""

    newest: dict[str, Token] = field(default_factory=lambda: dict.fromkeys(JOBS, (0, 0)))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, job: str) -> Token:
        with self.lock:
            epoch, value = self.newest[job]
            self.newest[job] = epoch, value + 1
            return self.newest[job]

    def learn(self, job: str, epoch: int) -> None:
        with self.lock:
            self.newest[job] = max(self.newest[job], (epoch, 0))


class Soak:
    """One run: what stands there, and what has happened."""

    def __init__(
        self, seed: int, double: DoubleProcess, hatch: Callable[[], Gateway], dsn: str, gateways: int = GATEWAYS
    ) -> None:
        self.seed, self.double, self.hatch, self.dsn = seed, double, hatch, dsn
        self.gateways = [hatch() for _ in range(gateways)]
        self.history = History(KEYS)
        self.issuer = Issuer()
        # A write without a condition stops its resource for minutes if it is lost, so it comes late in a run.
        self.late, self.over = threading.Event(), threading.Event()
        self.counted: Counter[str] = Counter()
        self.uploads: list[tuple[str, str, bytes, Deed]] = []
        self.versions: list[tuple[str, str]] = []
        self.marks = count(1)

    def effects(self) -> tuple[list[dict[str, Any]], list[Commit]]:
        """All that has taken effect: the mutations of the store, and the commits of the database."""
        database = Postgres(self.dsn)
        messages = [data for (data,) in database.rows(CHANGES)]
        database.close()
        return self.double.log()["mutations"], list(commits(messages))

    def sequence(self) -> int:
        return int(self.double.log(after=2**60)["sequence"])


@contextmanager
def staged(seed: int) -> Iterator[Soak]:
    """Everything a run needs, in processes of its own."""
    with (
        services(seed) as (dsn, double),
        Nursery({"dsn": dsn, "limits": LIMITS, **configured(dsn, double.endpoint)}) as nursery,
    ):
        yield Soak(seed, double, nursery.hatch, dsn)


@contextmanager
def services(seed: int) -> Iterator[tuple[str, DoubleProcess]]:
    """The address of a database that writes a log which can be decoded, and a store."""
    traits = list(STORES.values())[seed % len(STORES)]
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        data = Path(directory) / "data"
        with postgres(data) as server:
            _prepared(server.dsn())
        with postgres(data) as server, DoubleProcess.start(buckets=[BUCKET]) as double:
            double.behave(**traits)
            database = Postgres(server.dsn())
            published = "public.entries, fencing.fence"
            database.rows(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {published}")
            database.rows(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
            database.close()
            yield server.dsn(), double


def _prepared(dsn: str) -> None:
    install(dsn)
    database = Postgres(dsn)
    for statement in _TABLES.split(";\n"):
        if statement.strip():
            database.rows(statement)
    database.rows("ALTER SYSTEM SET wal_level = logical")
    database.close()


LIMITS = {
    "connect_timeout": 5,
    "idle_timeout": 0.5,
    "lock_timeout": 2,
    "store_timeout": 2,
    "pending_wait": 0.3,
    "memory_threshold": MEMORY_THRESHOLD,
    "sweep_interval": 1,
}
"""Limits of a gateway that meets every fault within the minutes of a soak."""


def configured(dsn: str, endpoint: str) -> dict[str, Any]:
    """Return the sections of a gateway's configuration."""
    keys = {**PAIR, "api_key": API_KEY}
    return {
        "postgres": {
            "dsn": as_gateway(dsn),
            "functions": ["public.write_entry"],
        },
        "tables": [{"name": "public.entries", "resource": "job/{job}"}],
        "objects": [{"match": f"{BUCKET}/jobs/{{job}}/**", "resource": "job/{job}"}],
        "callers": [{"name": "writer", "groups": ["admins"], **keys}],
        "grants": GRANTS,
        "s3": {
            "endpoint": endpoint,
            "access_key_id": STORE_KEY,
            "secret_access_key": STORE_SECRET,
        },
    }


# Trouble ----------------------------------------------------------------------------------------------------

_OPERATIONS = {
    "PutObject": 6, "CompleteMultipartUpload": 5, "DeleteObject": 3, "AbortMultipartUpload": 1, "HeadObject": 1,
    "PutObjectTagging": 1,
}  # fmt: skip


class Faults:
    """The faults of a soak, at random. Each lasts for a while at most; ``let_go`` waits until the last one is over."""

    def __init__(
        self, seed: int, double: DoubleProcess | None, gateways: list[Gateway], hatch: Callable[[], Gateway]
    ) -> None:
        """``double``: None for a real store, which holds and refuses no single request."""
        self.random = Random(f"{seed}/trouble")
        self._double, self._gateways, self._hatch = double, gateways, hatch
        self._paused: set[int] = set()
        self._timers: list[threading.Timer] = []
        self._holding: list[RemoteRule] = []

    def match(self) -> dict[str, Any]:
        """Choose requests of gateways to the store."""
        raise NotImplementedError

    def dsn(self) -> str:
        """Choose a database."""
        raise NotImplementedError

    def for_a_while(self, longest: float, end: Callable[[], object]) -> None:
        timer = threading.Timer(self.random.random() * longest, end)
        self._timers.append(timer)
        timer.start()

    def let_go(self) -> None:
        for timer in self._timers:
            timer.join()
        for rule in self._holding:
            if rule.state()["arrived"]:
                rule.wait_finished(timeout=60)
        self._timers.clear()
        self._holding.clear()

    def clear(self) -> None:
        """Let the store go on."""
        if self._double is not None:
            self._double.clear()

    def hold(self) -> None:
        """Delay a request to the store, or its answer. Its sender may be dead by then."""
        assert self._double is not None
        at = self.random.choice(("arrival", "before", "after"))
        self._holding.append(self._double.rule("hold", at=at, **self.match()))
        self.for_a_while(2.5, self._holding[-1].release)

    def fail(self) -> None:
        assert self._double is not None
        action, at = self.random.choice(("cut", "cut", "fail")), self.random.choice(("before", "after"))
        self._double.rule(action, at=at, **self.match())

    def pause(self) -> None:
        gateway = self.random.choice(self._gateways)
        if gateway.pid not in self._paused:
            self._paused.add(gateway.pid)
            os.kill(gateway.pid, signal.SIGSTOP)
            self.for_a_while(1.5, lambda: self._resume(gateway))

    def _resume(self, gateway: Gateway) -> None:
        self._paused.discard(gateway.pid)
        gateway.resume()  # dead processes are reaped at the end only, so no other process has this id

    def kill(self) -> None:
        number = self.random.randrange(len(self._gateways))
        self._gateways[number].kill()
        self._gateways[number] = self._hatch()

    def pause_backend(self) -> None:
        """Delay a statement. Its sender may be dead by then."""
        if pids := self._backends():
            pid = self.random.choice(pids)
            signal_to(pid, signal.SIGSTOP)
            self.for_a_while(1, lambda: signal_to(pid, signal.SIGCONT))

    def crash_database(self) -> None:
        """A backend that is killed takes all of the server's memory with it: it restarts, and recovers from its log."""
        if pids := self._backends():
            signal_to(self.random.choice(pids), signal.SIGKILL)

    def _backends(self) -> list[int]:
        async def ask() -> list[int]:
            connection = await asyncpg.connect(self.dsn(), timeout=2, command_timeout=2)
            try:
                sql = "SELECT pid FROM pg_stat_activity WHERE usename = 'fencing_gateway'"
                return [row["pid"] for row in await connection.fetch(sql)]
            finally:
                connection.terminate()

        try:
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(ask())
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            return []


class Trouble(Faults):
    """The trouble of one run."""

    def __init__(self, soak: Soak) -> None:
        super().__init__(soak.seed, soak.double, soak.gateways, soak.hatch)
        self._soak = soak
        self._kinds: dict[Callable[[], None], int] = {
            self.hold: 40,
            self.fail: 22,
            self.fail_late: 8,
            self.pause: 15,
            self.kill: 5,
            self.pause_backend: 10,
            self.crash_database: 1,
        }

    def match(self) -> dict[str, Any]:
        (operation,) = self.random.choices(list(_OPERATIONS), list(_OPERATIONS.values()))
        key = self.random.choice(list(KEYS))
        return {"operation": operation, "key": key, "nth": self.random.choice((1, 1, 2))}

    def dsn(self) -> str:
        return self._soak.dsn

    def work(self) -> None:
        try:
            while not self._soak.over.is_set():
                (act,) = self.random.choices(list(self._kinds), list(self._kinds.values()))
                self._soak.counted[f"trouble: {act.__name__.replace('_', ' ')}"] += 1
                act()
                self._wait(self.random.randint(1, 25))
        finally:
            self.let_go()
            self.clear()

    def _wait(self, deeds: int) -> None:
        """Until writers have done so much more: on a slow machine there is not more trouble, but less of everything."""
        wanted, deadline = len(self._soak.history.deeds) + deeds, time.monotonic() + 1
        while len(self._soak.history.deeds) < wanted and time.monotonic() < deadline:
            self._soak.over.wait(0.01)

    def fail_late(self) -> None:
        """Let a completion fail after its answer has begun."""
        match = {**self.match(), "operation": "CompleteMultipartUpload"}
        self._soak.double.rule("error-in-200", at=self.random.choice(("before", "after")), **match)


def side_by_side(over: threading.Event, works: Sequence[Callable[[], None]], during: Callable[[], object]) -> None:
    """Let them work while something happens. ``over`` tells them to end. Raises what one of them does."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)
            over.set()

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        during()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


def signal_to(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
