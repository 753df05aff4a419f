"""Runs a command on a machine that stands still again and again, for moments of up to three seconds.

``python -m tests.stalls COMMAND …`` starts a busy process for each processor. It works and sleeps for random times,
before all others where the user may have it so. A test that fails then has a race, or a time limit that a busy machine
exceeds.
"""

import contextlib
import os
import random
import subprocess
import sys
import time

WORKS, SLEEPS = (0.05, 0.3, 1.0, 3.0), (0.2, 1.0, 4.0)
FIRST = -10
"""The niceness of the busy processes."""


def keep_busy(parent: int) -> None:
    """Work and sleep until the parent is gone."""
    with contextlib.suppress(PermissionError):
        os.nice(FIRST)
    while os.getppid() == parent:
        end = time.monotonic() + random.choice(WORKS)
        while time.monotonic() < end:
            sum(range(20_000))
        time.sleep(random.choice(SLEEPS))


def main(command: list[str]) -> int:
    busy = [sys.executable, "-c", "import sys; from tests.stalls import keep_busy; keep_busy(int(sys.argv[1]))"]
    started = [subprocess.Popen([*busy, str(os.getpid())]) for _ in range(os.cpu_count() or 1)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in started:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
