"""Prints the tables of docs/performance.md. Needs wrk, nginx and curl beside what ``make setup`` installs.

``python -m bench [tables] [locks] [record] [writes] [reads] [transfers] [held] [memory] [hostile] [page] [search]
[workers]``: only these.
``python -m bench tables patch get``: only these rows of the tables; ``bench/tables.py`` has their names in ``WORKS``.
Stores that are missing are left out.
"""

import platform
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import psutil

from bench import hostile, locks, memory, objects, page, record, search, tables, workers
from bench.measure import CONNECTIONS, HEADER, SECONDS, TURN, TURNS, USAGE_HEADER, Row
from tests.stores import ceph, minio, moto
from tests.stores.store import Store, StoreMissing

Kind: TypeAlias = Callable[[], AbstractContextManager[Store]]


def main() -> None:
    for name in ("wrk", "curl"):
        if shutil.which(name) is None:
            raise SystemExit(f"bench needs {name}; on Debian: apt-get install {name}")
    named = sys.argv[1:]
    unknown = sorted(set(named) - {*SUBJECTS, *tables.WORKS, *TABLES})
    if unknown:
        raise SystemExit(f"nothing is called {unknown[0]}; there are {', '.join((*SUBJECTS, *TABLES, *tables.WORKS))}")
    rows = [row for name, measure in SUBJECTS.items() if not named or name in named for row in measure(named)]
    print(f"\n{CONNECTIONS} connections unless it says otherwise, 1 worker; {_machine()}")
    print(f"{SECONDS} s each; of tables the middle one of {TURNS} turns of {TURN} s\n")
    print(HEADER)
    for row in rows:
        print(row.line())
    if measured := [row for row in rows if row.load.used is not None and row.peer.used is not None]:
        print(f"\n{USAGE_HEADER}")
        for row in measured:
            print(row.usage_line())
    for name, lines in TABLES.items():
        if not named or name in named:
            print("\n" + "\n".join(lines()))


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
    "reads": lambda _: _on_stores(objects.small_reads, ceph.running, minio.running),
    "transfers": lambda _: _on_stores(objects.large_transfers, ceph.running, minio.running),
}

TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "held": locks.table,
    "hostile": hostile.table,
    "memory": memory.table,
    "page": page.table,
    "search": search.table,
    "workers": workers.table,
}
"""The areas that have tables of their own."""


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, {psutil.cpu_count()} cores shared with PostgreSQL, S3 and load generator"
    )


if __name__ == "__main__":
    main()
