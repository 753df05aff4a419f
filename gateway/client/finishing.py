"""Giving back what was taken: to its end though the program wants to leave, in bounded time, and never in its way."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from gateway.client.undoing import whole

_LOG = logging.getLogger("gateway.client")


async def finish(work: Coroutine[Any, Any, None], seconds: float, what: str) -> None:
    """Await ``work`` for at most ``seconds``, also where this task is being cancelled; a failure is only logged."""
    await whole(_bounded(work, seconds, what))


async def _bounded(work: Coroutine[Any, Any, None], seconds: float, what: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except Exception as error:  # noqa: BLE001 - best effort: a lease ends by itself
        _LOG.warning("%s failed: %s: %s", what, type(error).__name__, error)
