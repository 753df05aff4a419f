"""What a fenced write to a table costs, against the fastest Python driver without a fence."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.measure import CONNECTIONS, SECONDS, Load, Row, costing
from bench.services import ROWS, Services, run_json, running

PEER = "asyncpg direct, no fence"


def writes() -> Iterator[Row]:
    """PATCH of one row by key: with a token that is held, and with a new one each time."""
    with running(None) as services:
        _patch(services, "held")  # claims every row once, and warms both sides up
        seen = run_json("bench.direct_tables", services.dsn, str(CONNECTIONS), str(SECONDS), str(ROWS))
        direct = Load(seen["rate"], seen["p50"], seen["p99"])
        with costing(services.gateway_pid) as cost:
            held = _patch(services, "held")
        yield Row("fenced PATCH of a row by key, token held", PEER, held, direct, cost)
        with costing(services.gateway_pid) as cost:
            raising = _patch(services, "raise")
        yield Row("fenced PATCH, a new holder each time", PEER, raising, direct, cost)


def _patch(services: Services, mode: str) -> Load:
    script = Path(__file__).with_name("patch.lua")
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", str(script), services.gateway]
    done = subprocess.run([*command, "--", str(ROWS), mode], check=True, stdout=subprocess.PIPE, text=True)
    return Load.of_wrk(done.stdout)
