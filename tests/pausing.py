"""Pauses processes, as a suspended machine does."""

import os
import signal
import time
from pathlib import Path

_PATIENCE = 30.0
_STOPPED = ("T", "t", "Z", "X")


def pause(*processes: int) -> None:
    """Send SIGSTOP to processes, and return when each of their threads stands still or has ended.

    The signal alone stops nothing yet: until the kernel has run the signalled thread, the others go on.
    """
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    give_up = time.monotonic() + _PATIENCE
    while running := [process for process in processes if not _is_still(process)]:
        assert time.monotonic() < give_up, f"processes {running} do not stop"
        time.sleep(0.001)


def resume(*processes: int) -> None:
    """Let processes go on."""
    for process in processes:
        os.kill(process, signal.SIGCONT)


def _is_still(process: int) -> bool:
    try:
        states = [_state(thread) for thread in Path(f"/proc/{process}/task").iterdir()]
    except FileNotFoundError:
        return True
    return all(state in _STOPPED for state in states)


def _state(thread: Path) -> str:
    try:
        # The name of the program is in parentheses, and may contain some itself.
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"
