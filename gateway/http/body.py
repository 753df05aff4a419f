"""The one reader of request bodies: a limit on size, a deadline, a lowest rate, and one memory budget for all planes.

Callers are authenticated before their bodies are read. A body that is held in memory beyond ``SMALL`` bytes has a share
of the budget until its request is answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from gateway.errors import BodyTooLarge, BodyTooSlow
from gateway.http.head import Head
from gateway.http.memory import Memory

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Scope: TypeAlias = MutableMapping[str, Any]

SMALL = 64 * 1024
"""Bytes that a body may have without a share of the memory budget: a connection buffers as many anyway."""


class ClientGone(Exception):
    """The client hung up before its request was complete. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How slow a client may be.

    It may send nothing for ``idle`` seconds, and take ``grace`` seconds in all and one more for each ``rate`` bytes.
    Only the time spent waiting for the client counts: a store that takes the bytes slowly is not the client's fault.
    """

    idle: float = 30.0
    grace: float = 30.0
    rate: int = 16 * 1024


class Arrivals:
    """The body of one request as it arrives. ``state`` is that of its ASGI scope."""

    __slots__ = ("_pace", "_receive", "_state", "_waited", "arrived")

    def __init__(self, receive: Receive, pace: Pace, state: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._receive, self._pace, self._state = receive, pace, state
        self._waited = 0.0
        self.arrived = 0
        """Bytes so far."""

    async def next(self) -> tuple[bytes, bool]:
        """Return what has arrived, and whether more is to come. Raises ``BodyTooSlow`` or ``ClientGone``."""
        # The connection says when nothing is left to wait for; a timer would cost more than all else here.
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
            raise BodyTooSlow("The body came too slowly. Nothing was written.") from None
        self._waited += loop.time() - since
        return message


class Body(Arrivals):
    """The body of one request, whole. Call ``release`` when the request is answered."""

    __slots__ = ("_content", "_memory", "_room", "_scope")

    def __init__(self, scope: Scope, receive: Receive, pace: Pace, memory: Memory) -> None:
        super().__init__(receive, pace, scope["state"])
        self._scope, self._memory = scope, memory
        self._content: bytes | None = None
        self._room = 0

    async def whole(self, limit: int) -> bytes:
        """Return the whole body, and the same again if asked again. ``limit`` is in bytes.

        Raises ``BodyTooLarge``, before the body is asked for if its size is announced; ``BodyTooSlow``, ``ClientGone``.
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
class Bodies:
    """Shared by all bodies: the slowest pace, and the memory budget."""

    memory: Memory
    pace: Pace = Pace()

    def of(self, scope: Scope, receive: Receive) -> Body:
        """Return the body of a request, not asked for yet."""
        return Body(scope, receive, self.pace, self.memory)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than {limit:,} bytes.")
