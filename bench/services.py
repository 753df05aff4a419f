"""What is measured: a PostgreSQL and one gateway worker in front of a store, each a process of its own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import httpx
import orjson

from gateway.embedded import postgres
from gateway.store import schema
from tests.processes import free_port
from tests.stores.store import Store

ROWS = 10_000
KEYS = ("bench-key", "bench-secret")

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[postgres]
dsn = "{dsn}"
[auth]
anonymous = true
[[callers]]
name = "bench"
access_key_id = "{keys[0]}"
secret_access_key = "{keys[1]}"
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


@contextmanager
def running(store: Store | None) -> Iterator[Services]:
    """Start a PostgreSQL and a gateway worker in front of it, and of the store."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="bench")))
        dsn = stack.enter_context(postgres(directory / "data")).dsn()
        schema.upgrade(dsn)
        asyncio.run(_fill(dsn))
        port = free_port()
        config = directory / "gateway.toml"
        config.write_text(
            CONFIG.format(port=port, dsn=dsn, keys=KEYS) + ("" if store is None else STORE.format(store=store))
        )
        process = subprocess.Popen([sys.executable, "-m", "gateway", "serve", "--config", str(config)])
        stack.callback(process.wait)
        stack.callback(process.terminate)
        origin = f"http://127.0.0.1:{port}"
        _await_ready(origin)
        yield Services(dsn, origin, process.pid)


async def _fill(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "CREATE TABLE accounts (id bigint PRIMARY KEY, owner text, balance bigint, note text) WITH (fillfactor = 70)"
    )
    await connection.execute(
        "INSERT INTO accounts SELECT id, 'owner ' || id, 0 FROM generate_series(1, $1) AS id", ROWS
    )
    await connection.execute("VACUUM ANALYZE accounts")
    await connection.close()


def _await_ready(origin: str) -> None:
    for _ in range(200):
        try:
            if httpx.get(f"{origin}/v1/ready").status_code == 204:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise SystemExit("the gateway did not get ready")


def run_json(*arguments: str) -> dict[str, float]:
    """Run one of our own load generators and read what it prints."""
    done = subprocess.run([sys.executable, "-m", *arguments], check=True, stdout=subprocess.PIPE)
    answer: dict[str, float] = orjson.loads(done.stdout)
    return answer
