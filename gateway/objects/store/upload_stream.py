"""A body that goes to the store as it arrives: sent once, never whole in memory, and broken off where it fails."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class BodyStream:
    """A body of ``length`` bytes, known beforehand. An error in ``chunks`` breaks the request off unfinished."""

    chunks: AsyncIterator[bytes]
    length: int


class UploadStream:
    """One stream on its way out. The HTTP library iterates over it and writes each piece to the store.

    ``timeout``: seconds that the store may take to accept a piece. ``missing``: bytes not yet handed over.
    ``failure``: the error that the stream itself has raised.
    """

    def __init__(self, body: BodyStream, timeout: float) -> None:
        self._source = body.chunks
        self._timeout = timeout
        self._limit: asyncio.Timeout | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.missing = body.length
        self.failure: Exception | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None, None]:
        """Raise ``TimeoutError`` where the store stops accepting pieces while the context lasts.

        The time that the source takes does not count: its client has limits of its own.
        """
        async with asyncio.timeout(None) as limit:
            self._limit = limit
            try:
                yield
            finally:
                self._limit = None

    async def until_idle(self) -> None:
        """Return once nothing waits for the source any more, so that it can be closed."""
        await self._idle.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._expect_progress(within=None)
        self._idle.clear()
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
            self._idle.set()
        self.missing -= len(chunk)
        self._expect_progress(within=self._timeout)
        return chunk

    def _expect_progress(self, *, within: float | None) -> None:
        if self._limit is not None:
            self._limit.reschedule(None if within is None else asyncio.get_running_loop().time() + within)
