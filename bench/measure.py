"""One measurement: how much was done in what time, and what it took of the machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

CONNECTIONS = 32
SECONDS = 8
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Load:
    """What a load generator saw: rate per second, latencies in milliseconds, answers that were no success."""

    rate: float
    p50: float
    p99: float
    errors: int = 0

    @classmethod
    def of_wrk(cls, output: str) -> Self:
        """Read the line that our scripts for wrk print: requests, microseconds, p50, p99, errors."""
        result = next(line for line in output.splitlines() if line.startswith("RESULT"))
        requests, microseconds, p50, p99, errors = map(float, result.split()[1:])
        return cls(requests / microseconds * 1e6, p50 / 1000, p99 / 1000, int(errors))


@dataclass(slots=True)
class Cost:
    """What the gateway used meanwhile: CPU in cores, resident memory in MiB (at the end, or at most).

    ``seconds_per_gibibyte`` of CPU, for transfers.
    """

    cores: float = 0.0
    memory: float = 0.0
    seconds_per_gibibyte: float | None = None


@dataclass(slots=True)
class Row:
    """One line of the table. ``peer`` is the same work without the gateway, or with another proxy, in the same run."""

    work: str
    against: str
    load: Load
    peer: Load
    cost: Cost = field(default_factory=Cost)
    unit: str = "/s"

    @property
    def ratio(self) -> float:
        return self.load.rate / self.peer.rate

    def line(self) -> str:
        """The row in Markdown."""
        load, cost = self.load, self.cost
        note = f" ({load.errors} errors)" if load.errors else ""
        per_gibibyte = "" if cost.seconds_per_gibibyte is None else f", {cost.seconds_per_gibibyte:.1f} s/GiB"
        return (
            f"| {self.work}{note} | {load.rate:,.0f} {self.unit} | {self.against}: {self.peer.rate:,.0f} | "
            f"{self.ratio:.2f} | {load.p50:,.1f} ({self.peer.p50:,.1f}) | {load.p99:,.1f} ({self.peer.p99:,.1f}) | "
            f"{cost.cores:.2f} cores{per_gibibyte}, {cost.memory:.0f} MiB |"
        )


HEADER = (
    "| work | rate | peer in the same run | ratio | p50 ms (peer) | p99 ms (peer) | the gateway used |\n"
    "|---|--:|--:|--:|--:|--:|--:|"
)


@contextmanager
def costing(pid: int) -> Iterator[Cost]:
    """Fill in what the process costs while the block runs."""
    cost = Cost()
    before, start = cpu_seconds(pid), time.perf_counter()
    yield cost
    cost.cores = (cpu_seconds(pid) - before) / (time.perf_counter() - start)
    cost.memory = psutil.Process(pid).memory_info().rss / MEBIBYTE


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
    """The median and the 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1000, ordered[int(len(ordered) * 0.99)] * 1000


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
