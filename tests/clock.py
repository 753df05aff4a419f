"""The clock of a test's event loop, which the test sets forward instead of waiting."""

import asyncio

_TURNS = 10
"""Turns of the loop that a time limit takes to interrupt what it limits."""


class Clock:
    """The clock of the running loop. Limits of many seconds pass at once, and a short stall exceeds none of them."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._ahead, self._real = 0.0, loop.time
        loop.time = lambda: self._real() + self._ahead  # type: ignore[method-assign]

    async def pass_by(self, seconds: float) -> None:
        """Let so many seconds pass at once, and let everything happen that is due by then."""
        self._ahead += seconds
        for _ in range(_TURNS):
            await asyncio.sleep(0)
