"""Answers without a known end: sent piece by piece to a client that has to keep up, and given up with it."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeAlias

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.errors import TooManyReaders

SEND_TIMEOUT = 30.0
"""Seconds in which a client must take something of what waits for it."""


class ClientStalled(Exception):
    """The client does not take the answer."""


class BodyWriter:
    """The body of an answer. What a client does not take waits in its connection, which takes little; then we wait."""

    def __init__(self, send: Send, timeout: float) -> None:
        self._send, self._timeout = send, timeout

    async def write(self, piece: bytes) -> None:
        """Raises ``NotReading`` where the client has taken nothing for too long."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError as error:
            raise ClientStalled from error


Work: TypeAlias = Callable[[BodyWriter], Coroutine[Any, Any, None]]


class StreamedResponse(Response):
    """An answer that is written until there is no more of it, or the client goes, or this gateway is being stopped.

    ``opening`` gives what writes it, and is left with the answer. What it raises is answered as any error is.
    ``endless``: what is written until the gateway stops is all there is. Otherwise an answer that could not be written
    to its end is broken off, so that nobody takes it for whole.
    """

    def __init__(
        self,
        opening: AbstractAsyncContextManager[Work],
        media_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        endless: bool = False,
        timeout: float | None = None,
    ) -> None:
        super().__init__(None, 200, headers, media_type)
        del self.headers["content-length"]
        self._opening, self._endless = opening, endless
        self._timeout = SEND_TIMEOUT if timeout is None else timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._endless:
            scope["state"]["area"] = "streams"
        async with self._opening as work:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._write(work, scope["state"], receive, send)

    async def _write(self, work: Work, state: Mapping[str, Any], receive: Receive, send: Send) -> None:
        working: asyncio.Future[None] = asyncio.ensure_future(work(BodyWriter(send, self._timeout)))
        leaving = asyncio.ensure_future(_left(receive))
        stopping = asyncio.ensure_future(state["stopping"].wait())
        try:
            await asyncio.wait((working, leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            (failure,) = await asyncio.gather(working, return_exceptions=True)
            if leaving.done():
                return
            if failure is None or (self._endless and isinstance(failure, asyncio.CancelledError)):
                await send({"type": "http.response.body", "body": b""})
            elif isinstance(failure, (ClientStalled, asyncio.CancelledError)):
                state["abort"]()
                await leaving
            else:
                raise failure
        finally:
            for task in (working, leaving, stopping):
                task.cancel()
            await asyncio.gather(working, leaving, stopping, return_exceptions=True)


class ReaderSlots:
    """So many at one time. ``who`` they are, as people call them.

    Whoever may write may read what it has done itself. The last quarter is for those that may audit: otherwise anybody
    who leaves connections open could keep them from the record while something goes on.
    """

    def __init__(self, most: int, who: str) -> None:
        self._left, self._most, self._who = most, most, who

    @contextmanager
    def place(self, *, audits: bool) -> Iterator[None]:
        """A place, for somebody who ``audits`` or does not. Raises ``TooManyReaders`` where all places are taken."""
        kept = 0 if audits else self._most // 4
        if self._left <= kept:
            most = self._most - kept
            raise TooManyReaders(f"This gateway serves {most} {self._who} at one time, and they are taken.")
        self._left -= 1
        try:
            yield
        finally:
            self._left += 1


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
