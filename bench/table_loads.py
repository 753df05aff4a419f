"""The load generators for tables: wrk for what is HTTP, our own for the driver. Each a process of its own."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench.measure import CONNECTIONS, TURN, Load
from bench.services import BULK, ROWS, Services, run_json

Measure: TypeAlias = Callable[[], Load]


def http(origin: str, work: str, connections: int = CONNECTIONS, *, rest: int = 0) -> Measure:
    """One of the works in ``tables.lua``. ``rest``: milliseconds between two requests of a connection."""
    return partial(_finished, _command(origin, work, connections, TURN, rest))


def driver(services: Services, work: str, connections: int = CONNECTIONS) -> Measure:
    """One of the works in ``direct_tables.py``."""
    return partial(_driven, work, services.dsn, str(connections), str(TURN), str(ROWS))


def beside(measure: Measure, origin: str, work: str) -> Measure:
    """Return the same measurement while another load generator does its ``work``."""

    def measured() -> Load:
        with _in_background(_command(origin, work, CONNECTIONS, TURN + 1)):
            return measure()

    return measured


def _command(origin: str, work: str, connections: int, seconds: int, rest: int = 0) -> list[str]:
    script = Path(__file__).with_name("tables.lua")
    wrk = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), origin]
    return [*wrk, "--", work, str(ROWS), str(BULK), str(rest)]


def _finished(command: list[str]) -> Load:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Load.of_wrk(done.stdout)


@contextmanager
def _in_background(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL):
        yield


def _driven(*arguments: str) -> Load:
    seen = run_json("bench.direct_tables", *arguments)
    return Load(seen["rate"], seen["p50"], seen["p99"])
