"""The parts of a soak: one PostgreSQL, one S3 double, three gateways in front of them, a lock service, a history."""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from gateway.demo.embedded import postgres
from tests.crash.clients import BUCKET
from tests.crash.history import Deed, History, Token
from tests.crash.processes import Gateway, Nursery
from tests.crash.replication import CHANGES, PUBLICATION, SLOT, Commit, commits
from tests.crash.stage import Postgres
from tests.doubles.s3 import ACCESS_KEY as STORE_KEY
from tests.doubles.s3 import SECRET_KEY as STORE_SECRET
from tests.doubles.s3 import DoubleProcess
from tests.postgres import as_gateway, install
from tests.running import ACCESS_KEY, API_KEY, GRANTS, SECRET_KEY

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
        Nursery({"dsn": dsn, **configured(dsn, double.endpoint)}) as nursery,
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


def configured(dsn: str, endpoint: str) -> dict[str, Any]:
    """Return the sections of a gateway's configuration."""
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY}
    return {
        "postgres": {
            "dsn": as_gateway(dsn),
            "idle_timeout": 0.5,
            "lock_timeout": 2,
            "functions": ["public.write_entry"],
        },
        "tables": [{"name": "public.entries", "resource": "job/{job}"}],
        "objects": [{"match": f"{BUCKET}/jobs/{{job}}/**", "resource": "job/{job}"}],
        "callers": [{"name": "writer", "groups": ["admins"], **keys}],
        "grants": GRANTS,
        "s3": {
            "endpoint": endpoint,
            "timeout": 2,
            "pending_wait": 0.3,
            "memory_threshold": MEMORY_THRESHOLD,
            "sweep_interval": 1,
            "access_key_id": STORE_KEY,
            "secret_access_key": STORE_SECRET,
        },
    }
