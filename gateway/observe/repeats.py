"""Repeated things are told at most once a minute: at their first time, and then with the number of times since."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

EVERY = 60.0
"""Seconds between two lines about one cause."""
MOST = 50
"""Causes that are told apart. Texts of requests may be part of a cause, and there is no end of them."""

Cause = TypeVar("Cause", bound=Hashable)


class Repeats(Generic[Cause]):
    """Counts the times of each cause, in one event loop. Without a loop, each time is told."""

    def __init__(
        self, tell: Callable[[Cause, int], None], *, after: float = 0.0, quiet: Callable[[], None] | None = None
    ) -> None:
        """``after``: seconds from the first time until it is told. ``quiet`` is called after a minute without one."""
        self._tell, self._after, self._quiet = tell, after, quiet
        self._counts: dict[Cause, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def tells_apart(self, cause: Cause) -> bool:
        """Return whether one more cause is counted by itself."""
        return cause in self._counts or len(self._counts) < MOST

    def note(self, cause: Cause) -> None:
        """Count a time of this cause."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._tell(cause, 1)
            return
        if loop is not self._loop:  # the timers of a former loop have ended with it
            self._loop, self._counts = loop, {}
        if cause in self._counts:
            self._counts[cause] += 1
        elif self._after:
            self._counts[cause] = 1
            loop.call_later(self._after, self._look, loop, cause)
        else:
            self._counts[cause] = 0
            loop.call_later(EVERY, self._look, loop, cause)
            self._tell(cause, 1)

    def _look(self, loop: asyncio.AbstractEventLoop, cause: Cause) -> None:
        """Tell what was counted since the last look. Forget a cause that was not met again."""
        count = self._counts.pop(cause)
        if count:
            self._counts[cause] = 0
            loop.call_later(EVERY, self._look, loop, cause)
            self._tell(cause, count)
        elif self._quiet is not None:
            self._quiet()
