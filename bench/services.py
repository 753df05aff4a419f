"""What is measured: a PostgreSQL, an S3 server, and one gateway worker, each a process of its own."""

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
import boto3
import httpx
import orjson

from gateway.embedded import postgres, s3
from gateway.store import schema

ROWS = 10_000
KEYS = ("bench-key", "bench-secret")
STORE_KEYS = ("AKIADOUBLE", "double-secret")

CONFIG = """
[server]
listen = "127.0.0.1:{port}"
[postgres]
dsn = "{dsn}"
[s3]
endpoint = "{endpoint}"
access_key_id = "{store_keys[0]}"
secret_access_key = "{store_keys[1]}"
[auth]
anonymous = true
[[callers]]
name = "bench"
access_key_id = "{keys[0]}"
secret_access_key = "{keys[1]}"
"""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything up and running."""

    dsn: str
    store: str
    gateway: str
    gateway_pid: int


@contextmanager
def running(store: str) -> Iterator[Services]:
    """Start it all. ``store``: "moto", what the demo embeds, or "double", the tests' S3 double."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="bench")))
        dsn = stack.enter_context(postgres(directory / "data")).dsn()
        schema.upgrade(dsn)
        asyncio.run(_fill(dsn))
        endpoint = stack.enter_context(_moto() if store == "moto" else _double())
        port = 18080
        config = directory / "gateway.toml"
        config.write_text(CONFIG.format(port=port, dsn=dsn, endpoint=endpoint, keys=KEYS, store_keys=STORE_KEYS))
        process = subprocess.Popen([sys.executable, "-m", "gateway", "serve", "--config", str(config)])
        stack.callback(process.wait)
        stack.callback(process.terminate)
        origin = f"http://127.0.0.1:{port}"
        _await_ready(origin)
        yield Services(dsn, endpoint, origin, process.pid)


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


@contextmanager
def _moto() -> Iterator[str]:
    with s3() as server:
        endpoint = server.endpoint()
        boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=STORE_KEYS[0],
            aws_secret_access_key=STORE_KEYS[1],
        ).create_bucket(Bucket="bench")
        yield endpoint


@contextmanager
def _double() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.doubles.s3", "--port", "0", "--bucket", "bench"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[1]
    finally:
        process.terminate()
        process.wait()


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
