"""Cancellation: steps that run to their end, so that a cancelled acquire knows what to give back."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

import anyio
import httpx

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

MOST: Final = 1000

GRACE: Final = 5.0
"""Seconds for giving back after a cancelled or failed acquire. The lease ends by itself otherwise."""


async def whole(step: Coroutine[Any, Any, T]) -> T:
    """Carry ``step`` out to its end, even if this task is cancelled meanwhile; raise ``CancelledError`` afterwards.

    A half-sent request may be carried out after its sender has given up, and after the sender has looked and found
    nothing. So ``step`` must end by itself, in bounded time, and store its result where the caller finds it.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    # anyio cancels repeatedly until its scope is left; asyncio cancels as often as a caller asks.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()


class Remembered(Generic[K, V]):
    """A mapping of the ``MOST`` entries noted last, for what helps where it is remembered, and is not needed."""

    def __init__(self) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > MOST:
            self._entries.popitem(last=False)

    def get(self, key: K) -> V | None:
        return self._entries.get(key)

    def take(self, key: K) -> V | None:
        """Take the entry, which is forgotten by this."""
        return self._entries.pop(key, None)


_LOG = logging.getLogger("gateway.client")


async def finish(work: Coroutine[Any, Any, None], seconds: float, what: str, level: int = logging.WARNING) -> None:
    """Await ``work`` for at most ``seconds``, also where this task is being cancelled; a failure is only logged."""
    await whole(_bounded(work, seconds, what, level))


async def _bounded(work: Coroutine[Any, Any, None], seconds: float, what: str, level: int) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except Exception as error:  # noqa: BLE001 - best effort: a lease ends by itself
        _LOG.log(level, "%s failed: %s: %s", what, type(error).__name__, error)


async def cancellable(request: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """Return the answer. A task that is cancelled here waits until the request has finished."""
    scope = anyio.CancelScope()

    async def ask() -> httpx.Response:
        with scope:
            return await request()
        raise asyncio.CancelledError

    asking, cancelled = asyncio.ensure_future(ask()), None
    try:
        while not asking.done():
            try:
                await asyncio.wait((asking,))
            except asyncio.CancelledError as error:
                cancelled = error
                scope.cancel()
        if cancelled is None:
            return asking.result()
        if not asking.cancelled() and asking.exception() is None:
            # The answer came at the same moment. Its connection would stay in use for ever.
            with anyio.CancelScope(shield=True):
                await asking.result().aclose()
        raise cancelled
    finally:
        del asking, cancelled  # an error that is raised here refers to this frame


class Body:
    """The task that has entered the block. Made inside it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the wait of the block's task, once. Called by that task, it does nothing: the caller raises anyway."""
        if not self._cancelled and asyncio.current_task() is not self._task:
            self._cancelled = True
            self._task.cancel()

    def left(self, error: BaseException | None) -> bool:
        """Return, at the end of the block, whether ``error`` is our own cancellation and no other."""
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._before
        return isinstance(error, asyncio.CancelledError) and not others
