"""The stage of the fuzzing: PostgreSQL, an S3 double, and two gateways, one of them with small limits."""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from gateway.db import migrations
from gateway.demo.embedded import postgres
from tests.crash.clients import Client
from tests.crash.history import CHANGES, PUBLICATION, SLOT, Commit, commits
from tests.crash.stage import Postgres
from tests.doubles.s3 import ACCESS_KEY as STORE_KEY
from tests.doubles.s3 import SECRET_KEY as STORE_SECRET
from tests.doubles.s3 import DoubleProcess
from tests.fuzz.deeds import ACCOUNTS, AUDITOR_KEY, BUCKET, NEWEST, OTHER_KEY, STALE_ACCOUNT
from tests.postgres import memory_or_disk
from tests.processes import Running, free_port, started
from tests.releases import write_toml
from tests.running import API_KEY, KEYS, SECRET_KEY
from tests.waiting import PATIENCE

_TABLES = f"""
    CREATE SCHEMA other;
    CREATE TABLE entries (id bigint PRIMARY KEY, account_id bigint NOT NULL, mark bigint);
    CREATE TABLE accounts (id bigint PRIMARY KEY, mark bigint);
    INSERT INTO entries SELECT id, id / 2 FROM generate_series(2, {2 * STALE_ACCOUNT + 1}) AS id
        WHERE id / 2 IN ({", ".join(map(str, (*ACCOUNTS, STALE_ACCOUNT)))});
    CREATE TABLE other.entries (LIKE entries INCLUDING ALL);
    INSERT INTO other.entries SELECT * FROM entries;
    CREATE TABLE other.accounts (LIKE accounts INCLUDING ALL);
    ALTER TABLE entries REPLICA IDENTITY FULL;
    ALTER TABLE accounts REPLICA IDENTITY FULL;
    ALTER TABLE other.entries REPLICA IDENTITY FULL;
    ALTER TABLE other.accounts REPLICA IDENTITY FULL;
    ALTER SYSTEM SET wal_level = logical;
    CREATE FUNCTION add_account(id bigint, mark bigint) RETURNS SETOF accounts LANGUAGE sql AS
        'INSERT INTO accounts VALUES ($1, $2) RETURNING *';
"""
_PUBLISHED = "public.entries, public.accounts, other.entries, other.accounts, fencing.fence, fencing.lease"

_SMALL: dict[str, dict[str, Any]] = {
    "server": {"max_body": 15000, "memory": 100000},
    "postgres": {"max_rows": 1, "pool_size": 2, "verbose": False},
}


def _config(dsn: str, endpoint: str, port: int, limits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the sections of a gateway's configuration."""
    of_account = {"resource": "account/{account_id}"}
    actions = ["read", "write", "call", "lock", "barrier", "credentials"]
    return {
        "server": {"listen": f"127.0.0.1:{port}", "cors_origins": ["http://a"], **limits.get("server", {})},
        "postgres": {
            "dsn": dsn,
            "schemas": ["public", "other"],
            "functions": ["public.add_account"],
            **limits.get("postgres", {}),
        },
        "s3": {
            "endpoint": endpoint,
            "access_key_id": STORE_KEY,
            "secret_access_key": STORE_SECRET,
        },
        "telemetry": {"access_log": True},
        "audit": {"capture": 512},
        "tables": [{"name": f"{schema}.entries", **of_account} for schema in ("public", "other")],
        "objects": [{"match": f"{BUCKET}/fz/stale/**", "resource": f"account/{STALE_ACCOUNT}"}],
        "callers": [
            {"name": "writer", **KEYS},
            {"name": "mallory", "api_key": OTHER_KEY},
            {"name": "auditor", "api_key": AUDITOR_KEY},
        ],
        "grants": [
            {"callers": ["*"], "actions": actions, "everything": True},
            {"callers": ["auditor"], "actions": ["audit"], "everything": True},
        ],
    }


@dataclass(slots=True)
class Gateway:
    """A gateway that runs, and how far its log has been read."""

    port: int
    running: Running
    resident: int = 0
    read: int = 0

    def memory(self) -> int:
        """Return the resident bytes."""
        return int(psutil.Process(self.running.process.pid).memory_info().rss)

    def worked(self) -> float:
        """Return the seconds that it has had a processor."""
        times = psutil.Process(self.running.process.pid).cpu_times()
        return float(times.user + times.system)

    def lines(self) -> list[str]:
        """Return the lines that it has logged since the last call."""
        data = self.running.errors.read_bytes()
        end = data.rfind(b"\n") + 1
        new, self.read = data[self.read : end], end
        return new.decode("utf-8", "replace").splitlines()


@dataclass(slots=True)
class Stage:
    """Everything that is up. ``cookie`` is a session of the page."""

    gateways: dict[str, Gateway]
    double: DoubleProcess
    database: Postgres
    cookie: str
    sequence: int = 0
    secrets: list[str] = field(default_factory=list)

    def commits(self) -> list[Commit]:
        """Return the transactions that the database has committed since the last call."""
        return list(commits([data for (data,) in self.database.rows(CHANGES)]))

    def mutations(self) -> list[dict[str, Any]]:
        """Return the changes of the bucket since the last call."""
        log = self.double.log(after=self.sequence)
        self.sequence = log["sequence"]
        return list(log["mutations"])

    def record(self) -> str:
        """Return the whole record, as text."""
        return "\n".join(str(row) for row in self.database.rows("SELECT to_jsonb(entry)::text FROM fencing.entry"))


@contextmanager
def staged() -> Iterator[Stage]:
    """Start everything, and stop it in the end."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz", dir=memory_or_disk())))
        with postgres(directory / "data") as server:
            migrations.upgrade(server.dsn())
            _execute(server.dsn(), _TABLES)
        # Once more: only at its start does it take another level of its log.
        dsn = stack.enter_context(postgres(directory / "data")).dsn()
        double = stack.enter_context(DoubleProcess.start(buckets=[BUCKET]))
        database = Postgres(dsn)
        stack.callback(database.close)
        database.rows(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_PUBLISHED}")
        gateways = {}
        usual = {"connect_timeout": 30, "idle_timeout": 30, "pending_wait": 0.3, "sweep_interval": 1}
        small = {**usual, "table_body": 4096, "body_timeout": 1.0}
        for name, sections, limits in (("usual", {}, usual), ("small", _SMALL, small)):
            port = free_port()
            config = write_toml(directory / f"{name}.toml", _config(dsn, double.endpoint, port, sections))
            gateways[name] = Gateway(port, stack.enter_context(started("serve", "--config", config, limits=limits)))
        for gateway in gateways.values():
            gateway.running.wait_for(lambda port=gateway.port: _is_ready(port))  # type: ignore[misc]
            _warm(gateway.port)
        cookie = _logged_in(gateways["usual"].port)
        database.rows(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")
        stage = Stage(gateways, double, database, cookie)
        stage.mutations()
        for gateway in gateways.values():
            gateway.lines()
            gateway.resident = gateway.memory()
        stage.secrets = [API_KEY, SECRET_KEY, STORE_SECRET, OTHER_KEY, AUDITOR_KEY, cookie]
        yield stage


def _execute(dsn: str, statements: str) -> None:
    database = Postgres(dsn)
    for statement in statements.split(";\n"):
        if statement.strip():
            database.rows(statement)
    database.close()


def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, str, bytes]:
    """Status, cookies and body of the answer to one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return response.status, response.getheader("Set-Cookie", ""), response.read()
    finally:
        connection.close()


def _is_ready(port: int) -> bool:
    try:
        return ask(port, "GET", "/v1/ready")[0] == 204
    except OSError:
        return False


def _warm(port: int) -> None:
    """Raise the fence of the stale account, write an object, and have everything compiled that is compiled once."""
    holder = Client(port, NEWEST)
    assert holder.barrier(f"account/{STALE_ACCOUNT}").succeeded
    deadline = time.monotonic() + PATIENCE
    while not (answer := holder.put("seed", b"seed")).succeeded:
        assert time.monotonic() < deadline, answer
        time.sleep(0.1)
    for path in ("/v1/openapi.json", "/v1/metrics", "/v1/events", "/v1/rejections.csv"):
        ask(port, "GET", path, headers={"Authorization": f"Bearer {AUDITOR_KEY}"})
    ask(port, "POST", "/v1/leases/warm", json.dumps({"holder": "a", "ttl": 1.0}).encode(), {"apikey": API_KEY})


def _logged_in(port: int) -> str:
    headers = {"Origin": f"http://127.0.0.1:{port}", "Content-Type": "application/x-www-form-urlencoded"}
    status, cookie, _ = ask(port, "POST", "/ui/login", f"api_key={AUDITOR_KEY}".encode(), headers)
    assert status == 303, status
    return cookie.partition("=")[2].partition(";")[0]
