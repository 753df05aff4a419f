"""Runs work on large inputs in a thread, so that one caller's body does not hold up all others."""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LARGE = 128 * 1024
"""Bytes that are handled at once on the event loop: a few milliseconds at the most."""


async def offload(
    size: int, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return what ``work`` returns. ``size`` is that of its input in bytes; a large one is handled in a thread.

    A thread yields between steps of Python only: work in one long call of a C library must be cut into pieces.
    """
    if size <= LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
