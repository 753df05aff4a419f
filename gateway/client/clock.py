"""The clock that the validity of a lock is counted by: one that also runs while the machine is suspended."""

import time
from collections.abc import Callable
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment in the past; never set, never going backwards."""

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds by CLOCK_BOOTTIME where there is one (Linux), else by the monotonic clock.

    CLOCK_MONOTONIC stands still on Linux while the machine is suspended, and leases go on running out meanwhile.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
