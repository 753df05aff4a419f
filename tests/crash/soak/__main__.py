"""A soak: writers, gateways, the store and the database at random, with every kind of fault at random moments.

    python -m tests.crash.soak --minutes 20 --seed 7

Three gateways stand in front of one PostgreSQL and one S3 double. Writers with growing tokens write to the keys and
rows of two resources, and go on as zombies after a takeover. Each resource covers both planes. Meanwhile the soak
pauses and kills gateways. It holds, loses and refuses requests and answers of the store. The database crashes, and one
of its backends is paused in the middle of a statement. ``history.py`` then says whether the promises were kept.

The seed decides the actions of every thread, and their times. The machine decides their order.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from itertools import count

from tests.crash.history import Broken
from tests.crash.soak.run import play
from tests.crash.soak.stage import STORES


def main() -> None:
    """Runs, one seed after the other, until the time is over or a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next")
    parser.add_argument("--seconds", type=float, default=60, help="of one run")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # everything that runs here is ended with us
    deadline = time.monotonic() + 60 * given.minutes
    for seed in count(given.seed):
        print(f"seed {seed}, {list(STORES)[seed % len(STORES)]}", flush=True)
        try:
            counted = play(seed, min(given.seconds, deadline - time.monotonic()))
        except Broken as broken:
            sys.exit(f"seed {seed}: {broken}")
        print("".join(f"  {what}: {number}\n" for what, number in sorted(counted.items())), flush=True)
        if time.monotonic() > deadline:
            return


if __name__ == "__main__":
    main()
