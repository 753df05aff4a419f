"""A storm of faults, and how soon fresh holders are accepted after it.

    python -m tests.crash.soak.storm --minutes 20 --seed 7

It comes in rounds. In a round, three gateways are paused and killed, and the database crashes. Requests and answers of
the store are held and lost, and the store drops all connections. Meanwhile holders write the same bytes again and again
to rows and objects of many resources. Then the faults end, and each resource gets a fresh holder: a barrier, a put of
bytes that were there before, and a row.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.crash.clients import Answer, Client
from tests.crash.history import Deed
from tests.crash.soak.stage import Soak, Trouble, staged

RESOURCES = 40
SOON, AT_LAST = 10.0, 120.0
"""Seconds after the last fault: nearly all fresh holders are accepted by then, and all of them."""
_WRITERS = 8
_BODIES = (b"one", b"two", b"three" * 1000)


@dataclass(slots=True)
class Storm:
    """Figures of all rounds. ``waits``: for each fresh holder, seconds from the last fault until it was accepted.

    ``slow``: for each one that was not accepted soon, what it was answered.
    """

    waits: list[float] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    troubles: Counter[str] = field(default_factory=Counter)
    deeds: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        soon = sum(wait <= SOON for wait in self.waits)
        ordered = sorted(self.waits)
        return (
            f"{self.deeds} writes, {self.unknown} of them blocked or unknown; {len(ordered)} fresh holders, "
            f"{soon / len(ordered):.2%} accepted within {SOON:.0f} s, median {ordered[len(ordered) // 2]:.2f} s, "
            f"longest {ordered[-1]:.1f} s"
        )

    def check(self) -> None:
        """Raise AssertionError if fresh holders had to wait too long."""
        assert sum(wait <= SOON for wait in self.waits) >= 0.99 * len(self.waits), self
        assert max(self.waits) <= AT_LAST, self


def play(seed: int, seconds: float, rounds: int | None = None) -> Storm:
    """Play rounds of at most twenty seconds of faults until ``seconds`` are over, or so many ``rounds``."""
    storm, deadline = Storm(), time.monotonic() + seconds
    tokens = [count(1) for _ in range(RESOURCES)]
    with staged(seed) as soak:
        for number in count():
            if (rounds is not None and number >= rounds) or (number and time.monotonic() > deadline):
                storm.troubles = soak.counted
                return storm
            _blow(soak, storm, tokens, Random(f"{seed}/storm {number}"), min(20.0, seconds))
            _calm(soak, storm, tokens)
    return storm


def _key(resource: int) -> str:
    return f"jobs/{resource + 1}/a"


def _blow(soak: Soak, storm: Storm, tokens: list[count[int]], random: Random, seconds: float) -> None:
    """Let faults happen while holders write."""
    soak.over.clear()
    trouble = threading.Thread(target=Trouble(soak, (), disconnects=True).work)
    seeds = [random.random() for _ in range(_WRITERS)]
    writers = [threading.Thread(target=_write, args=(soak, storm, tokens, Random(each))) for each in seeds]
    for thread in (trouble, *writers):
        thread.start()
    time.sleep(seconds)
    soak.over.set()
    for thread in (trouble, *writers):
        thread.join()


def _write(soak: Soak, storm: Storm, tokens: list[count[int]], random: Random) -> None:
    held: dict[int, int] = {}
    while not soak.over.is_set():
        resource = random.randrange(RESOURCES)
        if resource not in held or random.random() < 0.3:
            held[resource] = next(tokens[resource])
        client = Client(random.choice(soak.gateways).port, held[resource], patience=5)
        deeds: dict[Callable[[], Answer], int] = {
            lambda: client.put(_key(resource), random.choice(_BODIES)): 6,  # noqa: B023 - called in this round
            lambda: client.delete(_key(resource)): 2,  # noqa: B023
            lambda: _row(client, resource): 2,  # noqa: B023
        }
        (deed,) = random.choices(list(deeds), list(deeds.values()))
        storm.deeds += 1
        soak.history.deeds.append(Deed("storm", 0, _key(resource)))  # the trouble goes by the number of deeds
        try:
            storm.unknown += deed().unknown
        except OSError:
            storm.unknown += 1


def _row(client: Client, resource: int) -> Answer:
    entry = {"id": resource + 1, "job": resource + 1, "mark": int(client.token)}
    return client.table("POST", "entries", entry, Prefer="resolution=merge-duplicates")


def _calm(soak: Soak, storm: Storm, tokens: list[count[int]]) -> None:
    """Measure for each resource how long a fresh holder waits."""
    ended = time.monotonic()
    with ThreadPoolExecutor(max_workers=RESOURCES) as holders:
        done = holders.map(lambda resource: _accepted(soak, storm, tokens, resource, ended), range(RESOURCES))
        storm.waits += list(done)


def _accepted(soak: Soak, storm: Storm, tokens: list[count[int]], resource: int, ended: float) -> float:
    """Return when a fresh holder has had a barrier, an object and a row, in seconds after the last fault."""
    client = Client(soak.gateways[resource % len(soak.gateways)].port, next(tokens[resource]), patience=30)
    steps: list[Callable[[], Answer]] = [
        lambda: client.barrier(f"job/{resource + 1}"),
        lambda: client.put(_key(resource), _BODIES[0]),
        lambda: _row(client, resource),
    ]
    refusals: dict[str, float] = {}
    for number, step in enumerate(steps, 1):
        while True:
            with suppress(OSError):
                answer = step()
                if answer.succeeded:
                    break
                assert answer.unknown, f"{answer} {answer.body!r}"
                told = re.sub(r"<RequestId>.*?</RequestId>", "", answer.body.decode(errors="replace"))
                refusals[f"step {number}: {told}"] = time.monotonic() - ended
            assert time.monotonic() - ended < 2 * AT_LAST, f"{_key(resource)} is still closed"
            time.sleep(0.2)
    waited = time.monotonic() - ended
    if waited > SOON:
        answers = "".join(f"\n    until {when:.1f} s: {text}" for text, when in refusals.items())
        storm.slow.append(f"{_key(resource)} waited for {waited:.1f} s:{answers}")
    return waited


def main() -> None:
    """Play rounds until the time is over, and say how long fresh holders waited."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # everything that runs here is ended with us
    storm = play(given.seed, 60 * given.minutes)
    print(storm, *(f"  {kind}: {number}" for kind, number in sorted(storm.troubles.items())), *storm.slow, sep="\n")
    storm.check()


if __name__ == "__main__":
    main()
