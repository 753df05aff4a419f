"""The measured system: a PostgreSQL and one gateway worker in front of a store, each a process of its own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import httpx
import orjson

from gateway.db import migrations
from gateway.demo.embedded import postgres
from tests.processes import free_port
from tests.stores.store import Store

ROWS = 10_000
SESSIONS = 300
"""Sessions PostgreSQL takes: the peers open one for each connection."""
KEYS = ("bench-key", "bench-secret")

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[postgres]
dsn = "{dsn}"
[[grants]]
callers = ["anonymous"]
actions = ["read", "write", "lock", "barrier"]
tables = ["public.*"]
resources = ["**"]
[[grants]]
callers = ["bench"]
actions = ["read", "write", "lock", "barrier", "audit"]
everything = true
[[grants]]
callers = ["granted", "acting"]
actions = ["read", "write"]
tables = ["public.accounts", "public.entries", "public.shared"]
resources = ["public.accounts/*", "account/*", "bench/shared"]
[[callers]]
name = "granted"
api_key = "key-of-granted"
[[callers]]
name = "acting"
api_key = "key-of-acting"
[[postgres.roles]]
callers = ["acting"]
role = "bench_editor"
[[postgres.roles]]
callers = ["anonymous", "*"]
role = "none"
[[callers]]
name = "bench"
access_key_id = "{keys[0]}"
secret_access_key = "{keys[1]}"
[[tables]]
name = "public.entries"
resource = "account/{{account_id}}"
[[tables]]
name = "public.shared"
resource = "bench/shared"
"""

TABLES = f"""
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint, note text) WITH (fillfactor = 70);
INSERT INTO accounts SELECT id, 'owner ' || id, 0 FROM generate_series(0, {ROWS}) AS id;
CREATE TABLE shared (LIKE accounts INCLUDING ALL);
INSERT INTO shared SELECT * FROM accounts;
CREATE TABLE handed (LIKE accounts INCLUDING ALL);
INSERT INTO handed SELECT * FROM accounts;
CREATE TABLE tokened (LIKE accounts INCLUDING ALL, last_token bigint NOT NULL DEFAULT 0);
INSERT INTO tokened SELECT * FROM accounts;
CREATE TABLE tokened_handed (LIKE tokened INCLUDING ALL);
INSERT INTO tokened_handed SELECT * FROM tokened;
CREATE TABLE tokened_fresh (LIKE tokened INCLUDING ALL);
CREATE TABLE fresh (LIKE accounts INCLUDING ALL);
CREATE TABLE entries (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account_id bigint NOT NULL, amount bigint, note text
);
CREATE ROLE bench_editor;
GRANT USAGE ON SCHEMA fencing TO bench_editor;
GRANT SELECT, INSERT, UPDATE ON accounts TO bench_editor;
"""


STORE = """
[s3]
endpoint = "{store.endpoint}"
access_key_id = "{store.owner.access_key_id}"
secret_access_key = "{store.owner.secret_access_key}"
"""


@dataclass(frozen=True, slots=True)
class Services:
    """A gateway and its database, up and running."""

    dsn: str
    gateway: str
    gateway_pid: int
    postgres_pid: int


@contextmanager
def running(
    store: Store | None, workers: int = 1, path: Callable[[str], AbstractContextManager[str]] = nullcontext
) -> Iterator[Services]:
    """Start a PostgreSQL and a gateway in front of it, and of the store. ``workers``: its processes.

    ``path``: makes the address that the gateway gets of the address of PostgreSQL.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="bench")))
        with postgres(directory / "data") as server:
            migrations.upgrade(server.dsn())
            asyncio.run(_fill(server.dsn()))
        # Once more: only at its start does it take another number of sessions.
        dsn = stack.enter_context(postgres(directory / "data")).dsn()
        port = free_port()
        config = directory / "gateway.toml"
        config.write_text(
            CONFIG.format(port=port, dsn=stack.enter_context(path(dsn)), keys=KEYS)
            + ("" if store is None else STORE.format(store=store))
        )
        log = stack.enter_context((directory / "log").open("wb"))
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(config), "--workers", str(workers)]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        origin = f"http://127.0.0.1:{port}"
        if not answers(f"{origin}/v1/ready"):
            raise SystemExit(f"the gateway did not get ready:\n{(directory / 'log').read_text()}")
        postmaster = int((directory / "data" / "postmaster.pid").read_text().split()[0])
        yield Services(dsn, origin, process.pid, postmaster)


# The fences that writers with token 1 hold from the start. Every write of a holder but its first finds its fence so.
HELD = f"""
    INSERT INTO fencing.fence (resource, epoch, value)
    SELECT name || id, 0, 1 FROM generate_series(0, {ROWS}) AS id, unnest(ARRAY['public.accounts/', 'account/']) AS name
    UNION ALL SELECT 'bench/shared', 0, 1;
"""


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES)
    await connection.execute(HELD)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute(f"ALTER SYSTEM SET max_connections = {SESSIONS}")
    await connection.close()


def answers(url: str, status: int = 204) -> bool:
    """Whether a server answers so there, within ten seconds."""
    for _ in range(200):
        try:
            if httpx.get(url).status_code == status:
                return True
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    return False


def run_json(*arguments: str) -> dict[str, float]:
    """Run one of our own load generators and read what it prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=subprocess.PIPE)
    answer: dict[str, float] = orjson.loads(done.stdout)
    return answer
