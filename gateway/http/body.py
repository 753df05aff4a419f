"""The reader of request bodies: a limit on size, a deadline, a lowest rate, and one memory budget for all planes.

Callers are authenticated before their bodies are read. A body that is held in memory beyond ``SMALL`` bytes has a share
of the budget until its request is answered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from gateway.errors import BodyTooLarge, BodyTooSlow, Unavailable
from gateway.http.head import Head


class Memory:
    """A budget in bytes, handed out in the order of requests. A body larger than the budget gets all of it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def size(self) -> int:
        """Return the whole budget."""
        return self._size

    @property
    def used(self) -> int:
        """Return how much of it is handed out."""
        return self._size - self._free

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncGenerator[None, None]:
        """Reserve room for a body of so many bytes, until the block is left."""
        room = await self.take(size)
        try:
            yield
        finally:
            self.give(room)

    @contextmanager
    def at_once(self, size: int) -> Iterator[None]:
        """Reserve room for a body that was read already, until the block is left. A small one needs none.

        Raises ``Unavailable`` if there is no room now, because a body that waits for room takes it.
        """
        room = 0 if size <= SMALL else min(size, self._size)
        if room > self._free or (room and self._waiting):
            raise Unavailable("All memory for requests of this database is in use.")
        self._free -= room
        try:
            yield
        finally:
            self.give(room)

    async def take(self, size: int) -> int:
        """Wait for room for a body of so many bytes, and return what to ``give`` back."""
        # A body exists twice while it is joined: as the pieces that arrived, and whole.
        room = min(2 * size, self._size)
        await self._wait(room)
        return room

    def give(self, room: int) -> None:
        """Give back what ``take`` has returned."""
        self._free += room
        self._hand_out()

    async def _wait(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._free += size
            self._waiting = deque(entry for entry in self._waiting if entry[1] is not turn)
            self._hand_out()
            raise

    def _hand_out(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._free -= size
                turn.set_result(None)


Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Scope: TypeAlias = MutableMapping[str, Any]

SMALL = 64 * 1024
"""Bytes that a body may have without a share of the memory budget, because a connection buffers as many anyway."""


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
    """The body of one request as it arrives. ``state`` is that of its ASGI scope."""

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
        try:
            async with asyncio.timeout(min(pace.idle, left)):
                message = await self._receive()
        except TimeoutError:
            raise BodyTooSlow("The body arrived too slowly. Nothing was written.") from None
        self._waited += loop.time() - since
        return message


class Body(ArrivingBody):
    """The body of one request, whole. Call ``release`` when the request is answered."""

    __slots__ = ("_content", "_memory", "_room", "_scope")

    def __init__(self, scope: Scope, receive: Receive, pace: Pace, memory: Memory) -> None:
        super().__init__(receive, pace, scope["state"])
        self._scope, self._memory = scope, memory
        self._content: bytes | None = None
        self._room = 0

    async def whole(self, limit: int) -> bytes:
        """Return the whole body. A second call returns the same. ``limit`` is in bytes.

        Raises ``BodyTooLarge``, before reading the body if its size is announced; also ``BodyTooSlow``, ``ClientGone``.
        """
        if self._content is None:
            if not self._state.get("whole"):
                self._check_announced(limit)
            data, more = await self.next()
            if self.arrived > limit:
                raise _too_large(limit)
            self._content = await self._joined(data, limit) if more else data
        return self._content

    async def reserve(self, size: int) -> None:
        """Wait for room in the memory budget for a body of so many bytes, unless it is small."""
        if size > SMALL and not self._room:
            self._room = await self._memory.take(size)

    def release(self) -> None:
        """Give back the share of the memory budget."""
        if self._room:
            self._memory.give(self._room)
            self._room = 0

    async def _joined(self, first: bytes, limit: int) -> bytes:
        pieces, more = [first], True
        while more:
            if self.arrived > SMALL:
                await self.reserve(min(limit, self._announced() or limit))
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


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads the bodies of all requests, at the slowest allowed pace and within one memory budget."""

    memory: Memory
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
