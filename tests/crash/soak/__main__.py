"""A soak: writers, gateways, the store and the database at random, with every kind of fault at random moments.

    python -m tests.crash.soak --minutes 20 --seed 7

Three gateways stand in front of one PostgreSQL and one S3 double. Writers with growing tokens write to the keys and
rows of two resources, and go on as zombies after a takeover. Each resource covers both planes. Meanwhile the soak
pauses and kills gateways. It holds, loses and refuses requests and answers of the store. The database crashes, and one
of its backends is paused in the middle of a statement. ``history.py`` then says whether the promises were kept.

    python -m tests.crash.soak --operations 100000 --seed 7 --journal sync --faults rewinds failovers cuts

With ``--operations``, the storage also forgets. ``losses.py`` says what stands there then, and ``checker.py`` judges
the history of operations alone. Without ``--faults``, all of them happen, and those of ``--also``. ``--keep`` names a
file for the history. With ``--databases 2``, gateways serve two databases, each with a server of its own. After faults
that lose nothing, a last holder must have every resource soon, and write a row and its objects.

With ``--store minio``, the store is MinIO, which is killed and started again. With ``--released build/released``, half
of the gateways are of release 1.0.0. They are stopped one by one for one of this version, and the other way round.

    python -m tests.crash.soak --operations 10000 --seed 7 --porcupine build/soak

With ``--porcupine``, a checker from elsewhere judges the history, too: whether it is linearizable. With the journal in
mode ``sync``, it judges rewinds, too. The folder keeps the history, and a picture of each register that is not
linearizable.

The seed decides the actions of every thread, and their times. The machine decides their order.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from tests.crash.history import Broken
from tests.crash.porcupine import NotHere, Porcupine
from tests.crash.soak.losses import (
    AT_LAST,
    COPIES,
    FAULTS,
    FORGETTING,
    LOSING,
    NOT_HAD,
    OF_SEVERAL,
    UPGRADES,
    Result,
)
from tests.crash.soak.losses import play as play_with_losses
from tests.crash.soak.servers import POOLER, Double, Minio
from tests.crash.soak.stage import STORES
from tests.crash.soak.writers import play
from tests.leases.asking import FAKETIME
from tests.releases import Release, this_release
from tests.stores.store import StoreMissing, program


def main() -> None:
    """Runs, one seed after the other, until the time is over or a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next one has the next")
    parser.add_argument("--seconds", type=float, default=60, help="of one run")
    parser.add_argument("--operations", type=int, help="with losses: the number of requests, in one run")
    parser.add_argument("--journal", choices=("off", "async", "sync"), default="sync", help="with losses: its mode")
    parser.add_argument("--faults", nargs="+", choices=OF_SEVERAL, help="with losses: their kinds")
    parser.add_argument("--databases", type=int, choices=(1, 2), default=1, help="with losses: how many are served")
    parser.add_argument("--keep", type=Path, help="with losses: the file for the history")
    parser.add_argument("--porcupine", type=Path, help="with losses: the folder for its verdict")
    parser.add_argument("--also", nargs="+", choices=(COPIES,), default=(), help="with losses: more kinds of faults")
    parser.add_argument("--store", choices=("double", "minio"), default="double", help="with losses")
    parser.add_argument("--released", type=Path, help="with losses: the folder of an older release (make released)")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # everything that runs here is ended with us
    if given.operations is not None:
        sys.exit(_with_losses(given))
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


def _with_losses(given: argparse.Namespace) -> int:
    """Run a soak with losses, and have one judge or two look at its history; the exit code."""
    if given.porcupine is None:
        with tempfile.TemporaryDirectory(prefix="soak") as directory:
            return _played(given, given.keep or Path(directory) / "history")
    given.porcupine.mkdir(parents=True, exist_ok=True)
    try:
        porcupine = Porcupine.built(given.porcupine)
        if given.store == "minio":
            program("minio", "make store-servers")
    except (NotHere, StoreMissing) as reason:
        print(f"LEFT OUT: {reason}", flush=True)
        return 0
    told = f"seed {given.seed}, {given.databases} databases, {given.store}{', releases' if given.released else ''}"
    history = given.porcupine / told
    code = _played(given, history)
    (judged,) = porcupine.judge(history, pictures=given.porcupine)
    said = "linearizable" if judged.linearizable else "NOT SHOWN TO BE LINEARIZABLE"
    print(
        f"seed {given.seed}: {said}, says Porcupine; {judged.operations} operations, {judged.open} with an open outcome"
    )
    for names, what in ((judged.broken, "not linearizable"), (judged.undecided, "not decided in time")):
        print("".join(f"  {what}: {name}\n" for name in names), end="")
    print("".join(f"  {picture}\n" for picture in judged.pictures), end="", flush=True)
    if code == 0 and judged.linearizable:
        history.unlink()
        return 0
    return 1


def _faults(given: argparse.Namespace) -> tuple[str, ...]:
    """The kinds that are named, or else all that can be played here, and more kinds."""
    left_out = {"poolers"} if POOLER is None else set[str]()
    left_out |= {"clocks"} if FAKETIME is None else set()
    left_out |= {"requests"} if given.store == "minio" else set()
    # These gateways are processes with the real clock.
    left_out |= {"clocks"} if given.released else set()
    kinds = FAULTS if given.databases == 1 else OF_SEVERAL
    more = (*given.also, UPGRADES) if given.released else given.also
    return (*(given.faults or (name for name in kinds if name not in left_out)), *more)


def _played(given: argparse.Namespace, history: Path) -> int:
    """Run a soak with losses, and print its seed, its figures and its verdict; the exit code."""
    databases = ("",) if given.databases == 1 else ("north", "south")
    faults, seed = _faults(given), given.seed
    if FORGETTING.intersection(faults) and given.porcupine is not None and given.journal != "sync":
        sys.exit(f"After these faults, only mode sync is linearizable: {' '.join(FORGETTING.intersection(faults))}")
    served = f"{len(databases)} databases, " if len(databases) > 1 else ""
    print(f"seed {seed}, {given.store}, {served}journal {given.journal}, faults: {' '.join(faults)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak") as directory:
        releases = (Release(given.released.resolve()), this_release(Path(directory))) if given.released else None
        keep = Minio if given.store == "minio" else Double
        played = play_with_losses(
            *(given.operations, seed, given.journal, faults, history, AT_LAST, databases), keep=keep, releases=releases
        )
        result: Result = asyncio.run(played)
    figures = result.counted + result.verdict.figures
    print("".join(f"  {what}: {number}\n" for what, number in sorted(figures.items())), end="")
    for violation in result.verdict.violations[:20]:
        print(violation)
    broken = len(result.verdict.violations)
    rate = round(figures["operations"] / result.seconds)
    verdict = f"{broken} VIOLATIONS" if broken else "nothing stale, nothing lost"
    closed = 0 if LOSING.intersection(faults) else figures[NOT_HAD]
    verdict += f", {closed} RESOURCES STILL CLOSED" if closed else ""
    print(
        f"seed {seed}: {verdict}; {figures['operations']} operations in {round(result.seconds)} s, {rate}/s", flush=True
    )
    return 1 if broken or closed else 0


if __name__ == "__main__":
    main()
