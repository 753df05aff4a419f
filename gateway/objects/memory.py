"""How many bytes of bodies may be in memory at one time. Whoever wants more waits, and its client with it."""

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
        """Room for a body of so many bytes, until the block is left."""
        # It is there twice while it is put together: in the pieces that came, and whole.
        size = min(2 * size, self._size)
        await self._take(size)
        try:
            yield
        finally:
            self._free += size
            self._hand_out()

    async def _take(self, size: int) -> None:
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
