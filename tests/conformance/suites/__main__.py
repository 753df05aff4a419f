"""Runs suites of foreign clients against the gateway, and reports what it changes.

    python -m tests.conformance.suites [names of suites]

Each is fetched at a pinned version and hash, and runs as its authors wrote it. As with ``versity.py``, only the
difference counts: a list named after the suite has each test that fails because of the gateway, with its reason.
"""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conformance.differences import listed, tell
from tests.conformance.suites import minio_go, postgrest_js, postgrest_py, rclone
from tests.stores.store import StoreMissing

Results = dict[str, str]
SUITES: dict[str, Callable[[], tuple[Results, Results]]] = {
    "minio_go": minio_go.both_ways,
    "postgrest_js": postgrest_js.both_ways,
    "postgrest_py": postgrest_py.both_ways,
    "rclone": rclone.both_ways,
}
"""Each returns the failure of each test without and with the gateway, in short; empty if it passed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one of {', '.join(SUITES)}; all, if none is named")
    chosen = parser.parse_args().names or list(SUITES)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # so that what was started is ended
    return max(_told(name) for name in chosen)


def _told(name: str) -> int:
    print(f"\n== {name}")
    try:
        direct, through = SUITES[name]()
    except StoreMissing as missing:
        print(f"skipped: {missing}")
        return 0
    path = Path(__file__).with_name(f"{name}.txt")
    # A suite that ends early has no results of some tests.
    missed = set(listed(path)) - set(direct)
    assert not missed, f"{name} ended early, or has no such test: {missed}"
    return tell(direct, through, path)


if __name__ == "__main__":
    sys.exit(main())
