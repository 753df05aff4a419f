"""One measurement: how much was done in what time, and what it took of the machine."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, assert_never

import psutil

from bench.usage import Usage

CONNECTIONS = 32
ENOUGH = 4
"""Seconds of one measurement. A shorter one shows only whether everything works."""
SECONDS = int(os.environ.get("BENCH_SECONDS", str(ENOUGH)))
TURNS = 3
TURN = max(1, SECONDS // 2)
"""Seconds. A measurement in turns is repeated so often, and the median turn counts."""
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """A load generator's result: rate per second, latencies in milliseconds, and the number of failed requests.

    ``used``: for each request, by the measured program itself. ``database``: by PostgreSQL. None if not measured.
    """

    rate: float
    p50: float
    p99: float
    errors: int = 0
    requests: int = 0
    used: Usage | None = None
    database: Usage | None = None

    @property
    def seconds(self) -> float:
        """Return the processor time of one request, PostgreSQL's included."""
        return sum(usage.seconds for usage in (self.used, self.database) if usage is not None)

    @classmethod
    def of(cls, seen: Mapping[str, Any], used: Usage | None = None) -> Self:
        """Read what our own load generators print as JSON."""
        requests, errors = int(seen["requests"]), int(seen.get("errors", 0))
        return cls(seen["rate"], seen["p50"], seen["p99"], errors, requests, used)

    @classmethod
    def of_wrk(cls, output: str) -> Self:
        """Read the line that our scripts for wrk print: requests, microseconds, p50, p99, errors."""
        result = next(line for line in output.splitlines() if line.startswith("RESULT"))
        requests, microseconds, p50, p99, errors = map(float, result.split()[1:])
        return cls(requests / microseconds * 1e6, p50 / 1000, p99 / 1000, int(errors), int(requests))


@dataclass(slots=True)
class Cost:
    """The gateway's use meanwhile: CPU in cores, resident memory in MiB (at the end, or at most)."""

    cores: float = 0.0
    memory: float = 0.0


class Measured(StrEnum):
    """The quantity that a goal is about."""

    RATIO = "rate, of the peer's"
    ADDED = "median, ms more than the peer's"
    RATE = "rate, /s"
    CORES = "cores"
    MEDIAN = "median, ms"
    PROCESSOR = "processor time with PostgreSQL, of the peer's"


_AT_MOST = (Measured.ADDED, Measured.MEDIAN, Measured.PROCESSOR, Measured.CORES)


@dataclass(frozen=True, slots=True)
class Goal:
    """The bound of a quantity: an upper one for times, a lower one for rates."""

    bound: float
    of: Measured = Measured.RATIO

    def __str__(self) -> str:
        if self.of is Measured.ADDED:
            return f"≤ {self.bound:+.2f} ms"
        unit = {Measured.RATE: "rate ", Measured.MEDIAN: "p50 ", Measured.CORES: "cores "}.get(self.of, "")
        return f"{unit}{'≤' if self.of in _AT_MOST else '≥'} {self.bound:,g}"

    def is_met(self, value: float) -> bool:
        """Return whether a measured value is within the bound."""
        return value <= self.bound if self.of in _AT_MOST else value >= self.bound


@dataclass(slots=True)
class Row:
    """One line of the table. ``peer`` is the same work without the gateway, or with another proxy, in the same run.

    ``goals``: what the measured quantities ought to be; the table shows the first. ``added``: the comparison is of the
    median latency, in milliseconds more. ``size``: how much of ``unit`` one request does.
    """

    work: str
    against: str
    load: Load
    peer: Load
    cost: Cost = field(default_factory=Cost)
    unit: str = "/s"
    goals: tuple[Goal, ...] = ()
    added: bool = False
    size: int = 1

    @property
    def comparison(self) -> str:
        """How the load compares to the peer, and how it ought to."""
        own, peer = self.load, self.peer
        compared = f"{own.p50 - peer.p50:+.2f} ms" if self.added else f"{own.rate / peer.rate:.2f}"
        return f"{compared} ({self.goals[0]})" if self.goals else compared

    def value(self, of: Measured) -> float | None:
        """Return a quantity. None if it was not measured."""
        own, peer = self.load, self.peer
        match of:
            case Measured.RATIO:
                return own.rate / peer.rate
            case Measured.ADDED:
                return own.p50 - peer.p50
            case Measured.RATE:
                return own.rate
            case Measured.MEDIAN:
                return own.p50
            case Measured.CORES:
                return self.cost.cores
            case Measured.PROCESSOR:
                return own.seconds / peer.seconds if own.used and peer.used else None
            case _:
                assert_never(of)

    def goal_lines(self) -> Iterator[str]:
        """Yield a line in Markdown for each goal: met or missed."""
        for goal in self.goals:
            value = self.value(goal.of)
            met = "not measured" if value is None else "met" if goal.is_met(value) else "**missed**"
            yield f"| {self.work} | {goal.of} | {'' if value is None else f'{value:,.2f}'} | {goal} | {met} |"

    @property
    def ratio(self) -> float:
        """Return how fast the load is, of the peer: by the median latency if ``added``, else by the rate."""
        return self.peer.p50 / self.load.p50 if self.added else self.load.rate / self.peer.rate

    @property
    def key(self) -> tuple[str, str]:
        """Return what names the row in the figures of all runs."""
        return self.work, self.against

    @property
    def processor(self) -> str:
        """Return the microseconds of one request on both sides: of the program, and of PostgreSQL."""
        own = _spent(self.load) or f"{self.cost.cores / self.load.rate * 1e6:,.0f}"
        return f"{own} ({peer})" if (peer := _spent(self.peer)) else own

    def line(self) -> str:
        """Return the row in Markdown."""
        load = self.load
        note = f" ({load.errors} errors)" if load.errors else ""
        return (
            f"| {self.work}{note} | {load.rate * self.size:,.0f} {self.unit} | "
            f"{self.against}: {self.peer.rate * self.size:,.0f} | "
            f"{self.comparison} | {_both(load.p50, self.peer.p50)} | {_both(load.p99, self.peer.p99)} | "
            f"{self.processor} |"
        )


def _spent(load: Load) -> str:
    return " + ".join(f"{usage.seconds * 1e6:.0f}" for usage in (load.used, load.database) if usage is not None)


def _both(own: float, peer: float) -> str:
    """Milliseconds of both sides."""
    return f"{_milliseconds(own)} ({_milliseconds(peer)})"


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


GOALS_HEADER = "| work | quantity | measured | goal | |\n|---|---|--:|--:|---|"

HEADER = (
    "| work | rate | peer in the same run | ratio (goal) | p50 ms (peer) | p99 ms (peer) | processor µs (peer) |\n"
    "|---|--:|--:|--:|--:|--:|--:|"
)


def progress(text: str) -> None:
    """Say on the terminal what is going on."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


@contextmanager
def costing(pid: int) -> Iterator[Cost]:
    """Fill in what the process costs while the block runs."""
    cost = Cost()
    before, start = cpu_seconds(pid), time.perf_counter()
    yield cost
    cost.cores = (cpu_seconds(pid) - before) / (time.perf_counter() - start)
    cost.memory = psutil.Process(pid).memory_info().rss / MEBIBYTE


def in_turns(pid: int, own: Callable[[], Load], *peers: Callable[[], Load]) -> tuple[Load, list[Load], Cost]:
    """Measure all sides in turns, so that none gets the machine's better moments; the turn in the middle of each.

    The cost is that of the process in its turn. A first round only warms all of them up.
    """
    progress("warming up")
    for side in (own, *peers):
        side()
    loads: list[tuple[Load, Cost]] = []
    others: list[list[Load]] = [[] for _ in peers]
    for turn in range(TURNS):
        progress(f"turn {turn + 1} of {TURNS}")
        for peer, measured in zip(peers, others, strict=True):
            measured.append(peer())
        with costing(pid) as cost:
            load = own()
        loads.append((load, cost))
    load, cost = sorted(loads, key=lambda turn: turn[0].rate)[TURNS // 2]
    return load, [_middle(measured) for measured in others], cost


def _middle(loads: list[Load]) -> Load:
    return sorted(loads, key=lambda load: load.rate)[TURNS // 2]


@dataclass(slots=True)
class Peak:
    """The most memory that was resident at one time, in MiB."""

    mebibytes: float = 0.0


@contextmanager
def peak_memory(pid: int) -> Iterator[Peak]:
    """Fill in the peak of a process while the block runs, as Linux keeps it."""
    peak = Peak()
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    yield peak
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    peak.mebibytes = int(line.split()[1]) / 1024


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
