"""The load generators for tables: wrk for what is HTTP, our own for the driver. Each a process of its own."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench.measure import CONNECTIONS, TURN, Load
from bench.services import ROWS, Services, run_json
from bench.usage import Usage, using

Measure: TypeAlias = Callable[[], Load]


def http(origin: str, work: str, connections: int = CONNECTIONS, *, rest: int = 0, resources: int = 1) -> Measure:
    """One of the works in ``tables.lua``. ``rest``: milliseconds between two requests of a connection.

    ``resources``: those of one request, where the work has several.
    """
    return partial(finished, _command(origin, work, connections, TURN, rest, resources))


def driver(services: Services, work: str, connections: int = CONNECTIONS) -> Measure:
    """One of the works in ``direct_tables.py``."""
    arguments = work, services.dsn, str(connections), str(TURN), str(ROWS)
    return partial(_driven, services.postgres_pid, *arguments)


def watched(pid: int, services: Services, measure: Measure) -> Measure:
    """Return the same measurement, with what the process and PostgreSQL have used."""

    def measured() -> Load:
        with using(pid) as own, using(services.postgres_pid, family=True) as database:
            load = measure()
        return replace(load, used=own.each(load.requests), database=database.each(load.requests))

    return measured


def beside(measure: Measure, origin: str, work: str) -> Measure:
    """Return the same measurement while another load generator does its ``work``."""

    def measured() -> Load:
        with _in_background(_command(origin, work, CONNECTIONS, TURN + 1)):
            return measure()

    return measured


def _command(origin: str, work: str, connections: int, seconds: int, rest: int = 0, resources: int = 1) -> list[str]:
    script = Path(__file__).with_name("tables.lua")
    wrk = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script), origin]
    return [*wrk, "--", work, str(ROWS), str(rest), str(resources)]


def finished(command: list[str]) -> Load:
    """Run wrk to its end."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Load.of_wrk(done.stdout)


@contextmanager
def _in_background(command: list[str]) -> Iterator[None]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL):
        yield


def _driven(postgres_pid: int, *arguments: str) -> Load:
    with using(postgres_pid, family=True) as database:
        seen = run_json("bench.direct_tables", *arguments)
    load = Load.of(seen, Usage(seen["seconds"]).each(int(seen["requests"])))
    return replace(load, database=database.each(load.requests))
