"""The reader of request bodies: a limit on size, a deadline, a lowest rate, and one memory budget for all planes.

Callers are proven, and their grants looked at, before a byte of their bodies is read. A body of more than ``SMALL``
bytes takes of its caller's share of the memory until its request is answered. So does an answer that is made whole.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.budget import CALLER, Budget
from gateway.errors import BodyTooLarge, BodyTooSlow, Overloaded
from gateway.http.head import Head

SMALL = 64 * 1024
"""Bytes that a body may have without a share of the memory budget, because a connection buffers as many anyway."""

GROWTH = 4
"""Times its size: memory that a body of another form than JSON takes when it arrives, for the JSON made of it."""
_SPLIT = "Split the write, or give the columns shorter names."


class ClientGone(Exception):
    """The client hung up before its request was complete. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The lowest speed of a client.

    It may pause for ``idle`` seconds. In all it may take ``grace`` seconds, and one more for each ``rate`` bytes. Only
    the time spent waiting for the client counts: a slow store is not the client's fault.
    """

    idle: float = 30.0
    grace: float = 30.0
    rate: int = 16 * 1024


class ArrivingBody:
    """The body of one request as it arrives.

    ``state`` is that of its ASGI scope. If it has ``await_body``, that notes when the gateway waits for the client.
    """

    __slots__ = ("_pace", "_receive", "_state", "_waited", "arrived")

    def __init__(self, receive: Receive, pace: Pace, state: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._receive, self._pace, self._state = receive, pace, state
        self._waited = 0.0
        self.arrived = 0
        """The number of bytes so far."""

    async def next(self) -> tuple[bytes, bool]:
        """Return the next bytes, and whether more follow. Raises ``BodyTooSlow`` or ``ClientGone``."""
        # The connection says when the body is complete. A timer would cost more than all the rest here.
        message = await (self._receive() if self._state.get("whole") else self._timed())
        if message["type"] != "http.request":
            raise ClientGone
        data: bytes = message.get("body", b"")
        self.arrived += len(data)
        return data, message.get("more_body", False)

    async def _timed(self) -> Message:
        pace, loop = self._pace, asyncio.get_running_loop()
        since = loop.time()
        left = pace.grace + self.arrived / pace.rate - self._waited
        note = self._state.get("await_body", _unnoted)
        note()
        try:
            async with asyncio.timeout(min(pace.idle, left)):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow("The body arrived too slowly. Nothing was written.") from None
        finally:
            note(is_over=True)
        self._waited += loop.time() - since
        return message


def _unnoted(*, is_over: bool = False) -> None:
    """Do without the note of a connection."""


class Body(ArrivingBody):
    """The body of one request, whole. It keeps memory until the request is answered."""

    __slots__ = ("_content", "_memory", "_scope", "growth")

    def __init__(self, scope: Scope, receive: Receive, pace: Pace, memory: Budget) -> None:
        super().__init__(receive, pace, scope["state"])
        self._scope, self._memory = scope, memory
        self._content: bytes | None = None
        self.growth = 1
        """Times its size: memory that it takes when it arrives."""

    async def whole(self, limit: int) -> bytes:
        """Return the whole body. A second call returns the same. ``limit`` is in bytes.

        Raises ``BodyTooLarge``, before reading the body if its size is announced; also ``BodyTooSlow``, ``ClientGone``
        and ``Overloaded``.
        """
        if self._content is None:
            if not self._state.get("whole"):
                self._check_announced(limit)
            data, more = await self.next()
            if self.arrived > limit:
                raise _too_large(limit)
            self._content = await self._joined(data, limit) if more else data
        return self._content

    async def keep(self, size: int) -> None:
        """Take memory for so many bytes of it, until the request is answered. Raises ``Overloaded``."""
        if size > SMALL:
            await self._memory.keep(twice(size))

    async def grow(self, size: int) -> None:
        """Take memory for what is made of the body, of so many bytes. Raises what ``keep`` raises.

        A large body does not wait: meanwhile it would be in memory without a share. Raises ``BodyTooLarge`` for one of
        which far more is made than its caller's share holds.
        """
        if size > GROWTH * self.arrived and twice(size) > self._memory.most():
            raise BodyTooLarge("The body's rows, as JSON, take more memory than one caller may use.", advice=_SPLIT)
        if self.arrived <= SMALL:
            await self.keep(size)
        elif size > SMALL:
            self._memory.keep_now(twice(size))

    def release(self) -> None:
        """Give back the memory, before the request is answered."""
        self._memory.release()

    async def _joined(self, first: bytes, limit: int) -> bytes:
        pieces, more = [first], True
        while more:
            if self.arrived > SMALL:
                await self.keep(self.growth * min(limit, self._announced() or limit))
            data, more = await self.next()
            if self.arrived > limit:
                raise _too_large(limit)
            pieces.append(data)
        return b"".join(pieces)

    def _check_announced(self, limit: int) -> None:
        announced = self._announced()
        if announced is not None and announced > limit:
            raise _too_large(limit)

    def _announced(self) -> int | None:
        value = Head.of(self._scope).value(b"content-length") or b""
        return int(value) if value.isdigit() and len(value) <= 18 else None


def twice(size: int) -> int:
    """Return the memory that a body of so many bytes takes: it is there in pieces and whole while they are joined."""
    return 2 * size


class WholeAnswers:
    """ASGI middleware: an answer that ``app`` makes whole takes of its caller's share of memory until it is sent.

    It has come already, so it does not wait: beyond the share, ``refuse`` answers. This holds for requests that change
    nothing. Requests without a caller get documents that are the same for all.
    """

    def __init__(
        self, app: ASGIApp, memory: Budget, refuse: Callable[[Request, Exception], Awaitable[ASGIApp]]
    ) -> None:
        self._app, self._memory, self._refuse = app, memory, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        refusal: Overloaded | None = None

        async def measured(message: Message) -> None:
            nonlocal refusal
            if message["type"] == "http.response.start" and CALLER.get() is not None:
                size = int(dict(message["headers"]).get(b"content-length", 0))
                try:
                    if size > SMALL:
                        self._memory.keep_now(twice(size))
                except Overloaded as error:
                    refusal = error
            if refusal is None:
                await send(message)

        await self._app(scope, receive, measured)
        if refusal is not None:
            answer = await self._refuse(Request(scope), refusal)
            await answer(scope, receive, send)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads the bodies of all requests, at the slowest allowed pace and within one memory budget."""

    memory: Budget
    pace: Pace = Pace()

    def of(self, scope: Scope, receive: Receive) -> Body:
        """Return the body of a request, of which nothing is read yet."""
        return Body(scope, receive, self.pace, self.memory)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than {limit:,} bytes.")


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LARGE = 128 * 1024
"""Bytes that the event loop handles at once: a few milliseconds at most."""


async def offload(
    size: int, work: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return the result of ``work``, which runs in a thread if its input is large. ``size`` is in bytes.

    A thread yields between steps of Python only, so long calls of a C library must be cut into pieces.
    """
    if size <= LARGE:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)
