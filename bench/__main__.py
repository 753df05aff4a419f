"""Prints the tables of docs/performance.md. Needs wrk, nginx, curl and Go beside what ``make setup`` installs.

``python -m bench [tables] [locks] [record] [writes] [proxies] [reads] [held] [memory] [hostile] [page] [search]
[workers] [growth] [guards] [trips]``: only these. Without a name, all but ``search`` and ``growth``, which fill large
databases.
``python -m bench tables patch get``: only these rows of the tables; ``bench/tables.py`` has their names in ``WORKS``.
``BENCH_SECONDS``: those of one measurement. Stores that are missing are left out. The rows go into
``bench/figures.json``, and a ratio that has fallen since the last commit is named.
"""

import platform
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TypeAlias

import asyncpg
import psutil

from bench import (
    figures,
    growth,
    guards,
    hostile,
    locks,
    memory,
    objects,
    page,
    record,
    search,
    tables,
    trips,
    workers,
)
from bench.figures import Figure
from bench.measure import CONNECTIONS, ENOUGH, GOALS_HEADER, HEADER, SECONDS, TURN, TURNS, Row, progress
from tests.stores import ceph, minio, moto
from tests.stores.store import Store, StoreMissing

Kind: TypeAlias = Callable[[], AbstractContextManager[Store]]


def main() -> None:
    for name in ("wrk", "curl"):
        if shutil.which(name) is None:
            raise SystemExit(f"bench needs {name}; on Debian: apt-get install {name}")
    names = [*SUBJECTS, *TABLES, *tables.WORKS]
    if unknown := sorted(set(sys.argv[1:]) - set(names)):
        raise SystemExit(f"nothing is called {unknown[0]}; there are {', '.join(names)}")
    named = sys.argv[1:] or [name for name in (*SUBJECTS, *TABLES) if name not in LONG]
    began = time.monotonic()
    print(f"{CONNECTIONS} connections unless it says otherwise, 1 worker; {_machine()}")
    print(f"the middle one of {TURNS} turns of {TURN} s")
    measured = _measured_rows(named, began)
    rows = [figure.row for figure in measured]
    for name, lines in TABLES.items():
        if name in named:
            _announce(name, began)
            print()
            for line in lines():
                print(line, flush=True)
    if goals := [line for row in rows for line in row.goal_lines()]:
        print("", GOALS_HEADER, *goals, sep="\n")
    if fallen := list(figures.falls(figures.committed(), rows)):
        print("", "| ratios that have fallen | peer | before | now |", "|---|---|--:|--:|", *fallen, sep="\n")
    print(f"\n{_minutes(began)} in all")
    if SECONDS < ENOUGH:
        print("Such short turns show whether everything works, and no more: the figures are not kept.")
    else:
        figures.keep(measured)
        print(f"The figures are in {figures.FILE}; make reference brings them into the documentation.")


def _measured_rows(named: Collection[str], began: float) -> list[Figure]:
    """Measure the rows of the named subjects, and print each as soon as it is there."""
    measured: list[Figure] = []
    day, machine = f"{datetime.now(UTC):%Y-%m-%d}", _machine()
    for name, measure in SUBJECTS.items():
        if name not in named:
            continue
        _announce(name, began)
        for row in measure(named):
            progress("")
            if not measured:
                print(f"\n{HEADER}")
            print(row.line(), flush=True)
            measured.append(Figure(STORES.get(name, name), day, machine, row))
    return measured


def _announce(name: str, began: float) -> None:
    print(f"after {_minutes(began)}: {name}", file=sys.stderr, flush=True)


def _minutes(began: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    return f"{minutes} min {seconds} s"


def _on_stores(measure: Callable[[Store], Iterator[Row]], *kinds: Kind) -> Iterator[Row]:
    for kind in kinds:
        try:
            with kind() as store:
                store.connect().create_bucket(Bucket=objects.BUCKET)
                yield from measure(store)
        except StoreMissing as missing:
            print(f"left out: {missing}", file=sys.stderr)


SUBJECTS: dict[str, Callable[[Collection[str]], Iterator[Row]]] = {
    "tables": lambda named: tables.rows(tables.WORKS.keys() & named),
    "locks": lambda _: locks.rows(),
    "record": lambda _: record.rows(),
    "writes": lambda _: _on_stores(objects.small_writes, moto.running, ceph.running, minio.running),
    "proxies": lambda _: _on_stores(objects.against_proxies, minio.running),
    "reads": lambda _: _on_stores(objects.small_reads, ceph.running, minio.running),
}

STORES = dict.fromkeys(("writes", "proxies", "reads"), "objects")
"""The subjects that share a section of the figures."""

TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "held": locks.table,
    "hostile": hostile.table,
    "memory": memory.table,
    "page": page.table,
    "search": search.table,
    "workers": workers.table,
    "trips": trips.table,
    "growth": growth.table,
    "guards": guards.table,
}
"""The areas that have tables of their own."""
LONG = ("search", "growth")
"""Tables that fill large databases first."""


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, asyncpg {asyncpg.__version__}, "
        f"{psutil.cpu_count()} cores shared with PostgreSQL, S3 and load generator"
    )


if __name__ == "__main__":
    main()
