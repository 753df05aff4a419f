"""Requests that may be cancelled at any moment, and leave their session in order.

Before a request, and after it, httpx closes connections that nobody has used for a while, one after the other, in a
scope of anyio's that cancellation does not reach. asyncio's own ``Task.cancel`` does reach it, and all timeouts and
task groups of asyncio's with it: those still to be closed would be in no pool any more, and stay open.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def cancellable(request: Callable[[], Awaitable[T]]) -> T:
    """What comes of the request. Whoever is cancelled here waits until what must not be cancelled is done."""
    answers: list[T] = []
    errors: list[Exception] = []

    async def ask() -> None:
        try:
            answers.append(await request())
        except Exception as error:  # noqa: BLE001 - raised below, as itself and not in a group
            errors.append(error)

    # Its child is cancelled as anyio does it, also where this task is cancelled as asyncio does it.
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
    if errors:
        raise errors.pop()
    if not answers:  # it alone was cancelled, by somebody who cancels all tasks there are
        raise asyncio.CancelledError
    return answers.pop()
