"""What a cancelled acquire owes: steps that are carried out whole, so that it is known what there is to give back."""

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final, Generic, TypeVar

import anyio

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

MOST: Final = 1000

GRACE: Final = 5.0
"""Seconds that giving back may take after a cancelled or failed acquire. What is held ends by itself otherwise."""


async def whole(step: Coroutine[Any, Any, T]) -> T:
    """Carry ``step`` out to its end, whoever is cancelled meanwhile; ``CancelledError`` is raised afterwards.

    A request that was half sent may still be carried out after its sender has given up, and after it has looked and
    found nothing. ``step`` must therefore end by itself, in bounded time, and note what it has got where the caller
    finds it.
    """
    task = asyncio.ensure_future(step)
    cancelled: asyncio.CancelledError | None = None
    # anyio cancels again and again until its scope is left; asyncio cancels as often as somebody asks.
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
        """The entry, which is forgotten by this."""
        return self._entries.pop(key, None)
