"""Many tasks at a time, and background tasks, which run as long as the gateway does, in spite of errors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from gateway.errors import GatewayError
from gateway.observe.events import Event, Observe, Service, ServiceUnreachable, SweepFailed

Item = TypeVar("Item")
Result = TypeVar("Result")


async def at_a_time(most: int, work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    """Return what ``work`` returns for each item, in their order. Raises the first error of them, and ends the others.

    ``most``: the number of items that are worked on at one time.
    """
    gate = asyncio.Semaphore(most)

    async def one(item: Item) -> Result:
        async with gate:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except* Exception as errors:  # noqa: BLE001 - it is raised again
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def background_tasks(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run each of these in a task of its own while the block runs, then cancel them.

    None of them may raise, because that would end the block, too.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def wait_until(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, for at most so many seconds. Return whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def grown(pause: float, first: float, longest: float) -> float:
    """Return the pause after a failure, given the one before it: it doubles from the first to the longest."""
    return max(first, min(2 * pause, longest))


class Attempts:
    """Attempts at some work in the background. A failure ends neither the work nor the gateway, even if it is a bug."""

    def __init__(
        self, observe: Observe, failed: Callable[[Exception], Event], pause: float = 0.0, longest: float = 0.0
    ) -> None:
        """``pause``: seconds before the next attempt. With a ``longest`` pause, failures double it up to that limit.

        Each failure is an event, and counts. The log limits how often it tells one cause.
        """
        self._observe, self._failed = observe, failed
        self._first, self._longest = pause, longest
        self.pause = pause

    def succeeded(self) -> None:
        """Begin again with the first pause. Work that lasts calls it as soon as it has what it needs."""
        self.pause = self._first

    async def make(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Return whether the work succeeded."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - a bug must end neither the task nor the gateway
            self._observe(self._failed(error))
            self.pause = grown(self.pause, self._first, self._longest)
            return False
        self.succeeded()
        return True

    async def repeat(self, work: Callable[[], Awaitable[object]]) -> None:
        """Repeat the work forever."""
        while True:
            await self.make(work)
            await asyncio.sleep(self.pause)


async def repeat(
    name: str,
    work: Callable[[], Awaitable[object]],
    observe: Observe,
    pause: float,
    *,
    longest: float = 0.0,
    at_once: bool = False,
) -> None:
    """Repeat ``work`` forever, with ``pause`` seconds between two rounds, and before the first unless ``at_once``."""
    if not at_once:
        await asyncio.sleep(pause)
    await Attempts(observe, partial(sweep_failed, name), pause, longest).repeat(work)


def describe_failure(error: Exception) -> str:
    """Describe an error. For an unexpected one return only the type, because its text may contain secrets."""
    return error.told if isinstance(error, GatewayError) else type(error).__name__


def sweep_failed(what: str, error: Exception) -> SweepFailed:
    """Return the event of work in the background that has failed."""
    return SweepFailed(what, describe_failure(error))


def unreachable(service: Service, consequence: str, error: Exception) -> ServiceUnreachable:
    """Return the event of work in the background that an error keeps from its service, with the ``consequence``."""
    told = f"{consequence}: {describe_failure(error)}"
    if not isinstance(error, GatewayError):
        return ServiceUnreachable(service, told)
    return ServiceUnreachable(service, told, error.remedy, error.repeated_as)
