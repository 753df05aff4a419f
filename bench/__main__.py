"""Prints the table the README shows. Needs ``wrk`` beside what ``make setup`` installs."""

import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.measure import Cost, Load, Row, costing
from bench.services import KEYS, ROWS, STORE_KEYS, Services, run_json, running

CONNECTIONS = 32
SECONDS = 8
NAMES = 50


def main() -> None:
    if shutil.which("wrk") is None:
        raise SystemExit("bench needs wrk; on Debian: apt-get install wrk")
    rows = [*_tables(), *_objects("moto"), *_objects("double")]
    print(f"\n{CONNECTIONS} connections, 1 worker, {SECONDS} s each; {_machine()}\n")
    print("| work | per second | the same without gateway | ratio | p50 ms | p99 ms | gateway CPU | memory |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        print(_line(row))


def _tables() -> Iterator[Row]:
    with running("double") as services:
        _wrk(services, "held")  # claims every row once, and warms both sides up
        direct = _direct(services)
        held, cost = _costed(services, lambda: _wrk(services, "held"))
        yield Row("fenced PATCH of a row by key, token held", held, direct, cost)
        raising, cost = _costed(services, lambda: _wrk(services, "raise"))
        yield Row("fenced PATCH, a new holder each time", raising, direct, cost)


def _objects(store: str) -> Iterator[Row]:
    with running(store) as services:
        _put(services.gateway, *KEYS, "1", seconds=2)
        direct = _put(services.store, *STORE_KEYS, "-")
        fenced, cost = _costed(services, lambda: _put(services.gateway, *KEYS, "1"))
        yield Row(f"fenced PutObject of 4 KiB, S3 by {store}", fenced, direct, cost)


def _costed(services: Services, measure: Callable[[], Load]) -> tuple[Load, Cost]:
    with costing(services.gateway_pid) as cost:
        load = measure()
    return load, cost


def _direct(services: Services) -> Load:
    seen = run_json("bench.direct_tables", services.dsn, str(CONNECTIONS), str(SECONDS), str(ROWS))
    return Load(seen["rate"], seen["p50"], seen["p99"])


def _put(endpoint: str, access: str, secret: str, token: str, seconds: int = SECONDS) -> Load:
    arguments = (endpoint, access, secret, CONNECTIONS, seconds, NAMES, token)
    seen = run_json("bench.put_objects", *map(str, arguments))
    return Load(seen["rate"], seen["p50"], seen["p99"], int(seen["errors"]))


def _wrk(services: Services, mode: str) -> Load:
    script = Path(__file__).with_name("patch.lua")
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", str(script), services.gateway]
    done = subprocess.run([*command, "--", str(ROWS), mode], check=True, stdout=subprocess.PIPE, text=True)
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    requests, microseconds, p50, p99, errors = map(float, result.split()[1:])
    return Load(requests / microseconds * 1e6, p50 / 1000, p99 / 1000, int(errors))


def _line(row: Row) -> str:
    load, cost = row.load, row.cost
    peer = f"{row.peer.rate:,.0f}" if row.peer else ""
    ratio = f"{row.ratio:.2f}" if row.ratio else ""
    note = f" ({load.errors} errors)" if load.errors else ""
    return (
        f"| {row.work}{note} | {load.rate:,.0f} | {peer} | {ratio} | {load.p50:.1f} | {load.p99:.1f} "
        f"| {cost.cores:.2f} cores | {cost.memory:.0f} MiB |"
    )


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, {psutil.cpu_count()} cores shared with PostgreSQL, S3 and load generator"
    )


if __name__ == "__main__":
    main()
