"""Prints the tables the README shows. Needs wrk, nginx and curl beside what ``make setup`` installs.

``python -m bench [tables] [writes] [reads] [transfers] [memory]``: only these. Stores that are missing are left out.
"""

import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeAlias

import psutil

from bench import memory, objects, tables
from bench.measure import CONNECTIONS, HEADER, SECONDS, Row
from tests.stores import ceph, minio, moto
from tests.stores.store import Store, StoreMissing

Kind: TypeAlias = Callable[[], AbstractContextManager[Store]]


def main() -> None:
    for name in ("wrk", "curl"):
        if shutil.which(name) is None:
            raise SystemExit(f"bench needs {name}; on Debian: apt-get install {name}")
    wanted = sys.argv[1:] or [*SUBJECTS, "memory"]
    rows = [row for name in wanted if name != "memory" for row in SUBJECTS[name]()]
    print(f"\n{CONNECTIONS} connections unless it says otherwise, 1 worker, {SECONDS} s each; {_machine()}\n")
    print(HEADER)
    for row in rows:
        print(row.line())
    if "memory" in wanted:
        print("\n" + "\n".join(memory.table()))


def _on_stores(measure: Callable[[Store], Iterator[Row]], *kinds: Kind) -> Iterator[Row]:
    for kind in kinds:
        try:
            with kind() as store:
                store.connect().create_bucket(Bucket=objects.BUCKET)
                yield from measure(store)
        except StoreMissing as missing:
            print(f"left out: {missing}", file=sys.stderr)


SUBJECTS: dict[str, Callable[[], Iterator[Row]]] = {
    "tables": tables.writes,
    "writes": lambda: _on_stores(objects.small_writes, moto.running, ceph.running, minio.running),
    "reads": lambda: _on_stores(objects.small_reads, ceph.running, minio.running),
    "transfers": lambda: _on_stores(objects.large_transfers, ceph.running, minio.running),
}


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, {psutil.cpu_count()} cores shared with PostgreSQL, S3 and load generator"
    )


if __name__ == "__main__":
    main()
