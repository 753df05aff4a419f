"""Processor time of processes for each request. It carries over between machines better than rates do."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Usage:
    """Seconds of processor time."""

    seconds: float = 0.0

    def each(self, requests: int) -> "Usage":
        """Return the share of one request."""
        return Usage(self.seconds / requests)


@contextmanager
def using(pid: int, *, family: bool = False) -> Iterator[Usage]:
    """Fill in what a process uses while the block runs. ``family``: with its children, those that end included."""
    usage = Usage()
    before = seconds(pid, family=family)
    yield usage
    usage.seconds = seconds(pid, family=family) - before


def seconds(pid: int, *, family: bool = False) -> float:
    """Return the processor time that a process has used so far. ``family``: with its children."""
    process = psutil.Process(pid)
    while True:
        times = process.cpu_times()
        spent = float(times.user + times.system)
        if not family:
            return spent
        ended = times.children_user + times.children_system
        for child in process.children():
            with suppress(psutil.NoSuchProcess):  # it has just ended
                spent += seconds(child.pid)
        after = process.cpu_times()
        if after.children_user + after.children_system == ended:  # else some have ended meanwhile, and were missed
            return spent + ended
