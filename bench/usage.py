"""Processor time of processes for each request, and their system calls where ``perf`` can count them.

Both carry over between machines better than rates do.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import psutil


@dataclass(slots=True)
class Usage:
    """Seconds of processor time, and system calls; None if they cannot be counted here."""

    seconds: float = 0.0
    calls: float | None = None

    def each(self, requests: int) -> "Usage":
        """Return the share of one request."""
        return Usage(self.seconds / requests, None if self.calls is None else self.calls / requests)


@contextmanager
def using(pid: int, *, family: bool = False) -> Iterator[Usage]:
    """Fill in what a process uses while the block runs. ``family``: with its children, those that end included."""
    usage = Usage()
    before = seconds(pid, family=family)
    with _counting([pid, *(child.pid for child in psutil.Process(pid).children())] if family else [pid], usage):
        yield usage
    usage.seconds = seconds(pid, family=family) - before


def seconds(pid: int, *, family: bool = False) -> float:
    """Return the processor time that a process has used so far. ``family``: with its children."""
    process = psutil.Process(pid)
    times = process.cpu_times()
    spent = float(times.user + times.system)
    if family:
        spent += times.children_user + times.children_system
        for child in process.children():
            with suppress(psutil.NoSuchProcess):  # it has just ended, and counts with its parent from now on
                spent += seconds(child.pid)
    return spent


@contextmanager
def _counting(pids: Sequence[int], usage: Usage) -> Iterator[None]:
    if shutil.which("perf") is None or os.geteuid() != 0:
        yield
        return
    with NamedTemporaryFile(prefix="bench") as file:
        command = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o", file.name]
        with subprocess.Popen([*command, "-p", ",".join(map(str, pids))], stderr=subprocess.DEVNULL) as counter:
            yield
            # A signal at an unlucky moment is lost.
            while counter.poll() is None:
                counter.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    counter.wait(1)
        fields = [line.split(",") for line in Path(file.name).read_text().splitlines() if "sys_enter" in line]
    if fields and fields[0][0].isdigit():
        usage.calls = float(fields[0][0])
