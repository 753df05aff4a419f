"""A budget for the bodies in memory. A request that needs more than is free waits, and so does its client."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Memory:
    """A budget in bytes, given out in the order of asking. What is larger than all of it gets all of it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def size(self) -> int:
        """All there is."""
        return self._size

    @property
    def used(self) -> int:
        """How much of it is given out."""
        return self._size - self._free

    @asynccontextmanager
    async def reserved(self, size: int) -> AsyncGenerator[None, None]:
        """Reserve room for a body of so many bytes, until the block is left."""
        room = await self.take(size)
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
