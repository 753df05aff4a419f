"""A body that goes to the store as it comes: sent once, never whole in memory, and broken off where it fails."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class BodyStream:
    """A body of ``length`` bytes, known beforehand. What ``chunks`` raises breaks the request off unfinished."""

    chunks: AsyncIterator[bytes]
    length: int


class Outflow:
    """One stream on its way out, as an iterator for the one who writes it to the store.

    ``patience``: seconds the store may take to accept a piece. ``missing`` is how many bytes have not been handed over
    yet; ``failure`` is what the stream itself has raised.
    """

    def __init__(self, body: BodyStream, patience: float) -> None:
        self._source = body.chunks
        self._patience = patience
        self._limit: asyncio.Timeout | None = None
        self._resting = asyncio.Event()
        self._resting.set()
        self.missing = body.length
        self.failure: Exception | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None, None]:
        """Raise ``TimeoutError`` where the store stops taking pieces while the context lasts.

        The time that the source takes does not count: whoever feeds the stream has limits of its own.
        """
        async with asyncio.timeout(None) as limit:
            self._limit = limit
            try:
                yield
            finally:
                self._limit = None

    async def rested(self) -> None:
        """Return once the source is not being asked for a piece any more, so that it can be closed."""
        await self._resting.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._expect_movement(within=None)
        self._resting.clear()
        try:
            chunk = await anext(self._source)
            if len(chunk) > self.missing:
                raise ValueError("a stream is longer than its length")
        except StopAsyncIteration:
            if self.missing:
                self.failure = ValueError("a stream is shorter than its length")
                raise self.failure from None
            raise
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._resting.set()
        self.missing -= len(chunk)
        self._expect_movement(within=self._patience)
        return chunk

    def _expect_movement(self, *, within: float | None) -> None:
        if self._limit is not None:
            self._limit.reschedule(None if within is None else asyncio.get_running_loop().time() + within)
