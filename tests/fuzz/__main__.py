"""Fuzzes the whole gateway at the socket, below any client library.

    python -m tests.fuzz --minutes 20 --seed 7

Requests of all planes are framed well and badly, put behind one another, cut into pieces, sent slowly and broken off.
``invariants.py`` says what must hold. The seed decides what is sent; which request comes first is up to the machine.
If an invariant breaks, the run ends with the smallest conversation that breaks it. ``--only 31`` plays that one.

    python -m tests.fuzz --parsers query rows --minutes 10 --keep

Without names, all parsers of ``parsers.py`` are fuzzed, each for its share of the time. ``make fuzz`` installs what is
needed. ``--keep`` adds inputs that take new ways to the corpus, which tests replay.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from itertools import count

from tests.fuzz.corpus import fuzz
from tests.fuzz.driver import run
from tests.fuzz.stage import staged


def main() -> None:
    """Run one seed after the other until the time is over or an invariant is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next")
    parser.add_argument("--seconds", type=float, default=60, help="of one run")
    parser.add_argument(
        "--only", type=int, nargs="*", default=[], help="numbers of conversations; no others are played"
    )
    parser.add_argument("--known", help="a pattern: faults in which it is found do not count")
    parser.add_argument("--parsers", nargs="*", metavar="NAME", help="fuzz parsers, and no gateway at its socket")
    parser.add_argument("--keep", action="store_true", help="keep inputs that take new ways, in tests/fuzz/corpus")
    given = parser.parse_args()
    if given.parsers is not None:
        sys.exit(fuzz(given.minutes, given.parsers, given.seed, keeps=given.keep))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # everything that runs here is ended with us
    deadline = time.monotonic() + 60 * given.minutes
    for seed in count(given.seed):
        until = min(time.monotonic() + given.seconds, deadline)
        with staged() as stage:
            result = run(stage, seed, lambda until=until: time.monotonic() > until, only=given.only, known=given.known)  # type: ignore[misc]
        counted = ", ".join(f"{what}: {number}" for what, number in sorted(result.counted.items()))
        print(f"seed {seed}: {counted}", flush=True)
        if result.faults:
            sys.exit(result.report())
        if given.only or time.monotonic() > deadline:
            return


if __name__ == "__main__":
    main()
