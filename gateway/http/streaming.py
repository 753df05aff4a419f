"""Streamed answers: sent piece by piece to a client that has to keep up, and ended when it goes."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeAlias, TypeVar

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from gateway.errors import TooManyReaders

SEND_TIMEOUT = 30.0
"""Seconds in which a client must read some of the waiting bytes."""


class ClientStalled(Exception):
    """The client does not read the answer."""


class BodyWriter:
    """The body of an answer. A connection buffers little for a slow client; then writing waits."""

    def __init__(self, send: Send, timeout: float) -> None:
        self._send, self._timeout = send, timeout

    async def write(self, piece: bytes) -> None:
        """Send a piece. Raises ``ClientStalled`` if the client has read nothing for too long."""
        try:
            async with asyncio.timeout(self._timeout):
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except TimeoutError as error:
            raise ClientStalled from error


Result = TypeVar("Result")

Work: TypeAlias = Callable[[BodyWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def while_connected(
    work: Coroutine[Any, Any, Result], state: Mapping[str, Any], receive: Receive
) -> "AsyncIterator[tuple[asyncio.Future[Result], asyncio.Future[None]]]":
    """Run work until it is done, the client goes, or this gateway is being stopped. At the end it is cancelled.

    Yield the work, and a future that is done once the client is gone. The body of the request must have been read.
    ``state`` is that of its scope.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    tasks: list[asyncio.Future[Any]] = [working, leaving, asyncio.ensure_future(state["stopping"].wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        yield working, leaving
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class StreamedResponse(Response):
    """An answer that is written until it is complete, the client goes, or this gateway is being stopped.

    ``opening`` yields the function that writes, and is left with the answer. Its errors are answered like any other.
    An ``endless`` answer is complete whenever the gateway stops. Any other answer that was not written to its end is
    aborted, so that no client takes it for complete.
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
        # A proxy must not buffer an answer that never ends.
        own = {"cache-control": "no-store", "x-accel-buffering": "no"} if endless else {}
        super().__init__(None, 200, {**own, **(headers or {})}, media_type)
        del self.headers["content-length"]
        self._opening, self._endless = opening, endless
        self._timeout = SEND_TIMEOUT if timeout is None else timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._endless:
            scope["state"]["area"] = "streams"
        head: Message = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        async with self._opening as work:
            if self._endless:  # its client waits for the head, and the first piece may come much later
                await send(head)
            else:
                send = _with_head(head, send)
            await self._write(work, scope["state"], receive, send)

    async def _write(self, work: Work, state: Mapping[str, Any], receive: Receive, send: Send) -> None:
        async with while_connected(work(BodyWriter(send, self._timeout)), state, receive) as (working, leaving):
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


def _with_head(head: Message, send: Send) -> Send:
    """Return a ``send`` that sends the head with the first piece of the body: a small answer is one packet."""
    is_sent = False

    async def sending(message: Message) -> None:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            await send(head)
        await send(message)

    return sending


class ReaderSlots:
    """At most ``most`` readers at one time. ``kind`` names them in errors.

    Every caller may read its own entries. The last quarter is reserved for auditors: otherwise a caller with many open
    connections could keep them from the record during an incident.
    """

    def __init__(self, most: int, kind: str) -> None:
        self._left, self._most, self._kind = most, most, kind

    @contextmanager
    def place(self, *, audits: bool) -> Iterator[None]:
        """Occupy a place while the block runs. Raises ``TooManyReaders`` if none is free for this kind of caller."""
        kept = 0 if audits else self._most // 4
        if self._left <= kept:
            most = self._most - kept
            raise TooManyReaders(f"This gateway serves {most} {self._kind} at one time, and all places are taken.")
        self._left -= 1
        try:
            yield
        finally:
            self._left += 1
