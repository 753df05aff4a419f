"""One measurement: how much was done in what time, and what it took of the machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What a load generator saw: rate per second, latencies in milliseconds, answers that were no success."""

    rate: float
    p50: float
    p99: float
    errors: int = 0


@dataclass(slots=True)
class Cost:
    """What one process and its children used meanwhile: CPU in cores, resident memory at the end in MiB."""

    cores: float = 0.0
    memory: float = 0.0


@dataclass(slots=True)
class Row:
    """One line of the table. ``peer`` is the same work without the gateway, in the same run."""

    work: str
    load: Load
    peer: Load | None = None
    cost: Cost = field(default_factory=Cost)

    @property
    def ratio(self) -> float | None:
        return None if self.peer is None else self.load.rate / self.peer.rate


@contextmanager
def costing(pid: int) -> Iterator[Cost]:
    """Fill in what the process costs while the block runs."""
    process, cost = psutil.Process(pid), Cost()
    before, start = _cpu(process), time.perf_counter()
    yield cost
    cost.cores = (_cpu(process) - before) / (time.perf_counter() - start)
    cost.memory = process.memory_info().rss / MEBIBYTE


def percentiles(seconds: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
