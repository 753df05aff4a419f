"""Work in the background of a gateway: it lasts as long as the gateway does, whatever goes wrong with it meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from gateway.errors import GatewayError
from gateway.observe.events import Observe, SweepFailed


@asynccontextmanager
async def background_tasks(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """All of these, each in a task of its own, as long as this lasts; then they are cancelled, wherever they are.

    None of them may raise: that would end what goes on before them, too.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def repeat(
    what: str,
    work: Callable[[], Awaitable[object]],
    observe: Observe,
    pause: float,
    *,
    longest: float = 0.0,
    at_once: bool = False,
) -> None:
    """Work again and again, with ``pause`` seconds between two rounds, and before the first unless ``at_once``.

    What goes wrong is an event about ``what``, each time. With a ``longest`` pause each pause is twice as long as the
    one before, up to that, until it goes well again; and only the first failure is an event.
    """
    waits = pause
    if not at_once:
        await asyncio.sleep(waits)
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
            if waits == pause:
                observe(SweepFailed(what, describe_failure(error)))
            waits = max(pause, min(2 * waits, longest))
        else:
            waits = pause
        await asyncio.sleep(waits)


def describe_failure(error: Exception) -> str:
    """What went wrong. Of an error nobody has foreseen only the type: its text may quote what is not for the log."""
    return error.message if isinstance(error, GatewayError) else type(error).__name__
