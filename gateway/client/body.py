"""The block of code that a lock is for: cancelled when the lock is lost, as ``asyncio.timeout`` does it."""

import asyncio
from typing import Any


class Body:
    """The task that has entered the block. Made inside it."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._before = task.cancelling()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel what it is waiting for, once. Called by the task itself, it does nothing: that one is told anyway."""
        if not self._cancelled and asyncio.current_task() is not self._task:
            self._cancelled = True
            self._task.cancel()

    def left(self, error: BaseException | None) -> bool:
        """At the end of the block: whether ``error``, which has left it, is our cancellation and nobody else's."""
        if not self._cancelled:
            return False
        others = self._task.uncancel() > self._before
        return isinstance(error, asyncio.CancelledError) and not others
