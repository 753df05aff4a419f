"""Keeping one hold alive, and knowing by the clock when it is not: nothing here raises into the program."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from gateway.client.errors import FencingError, LockLost
from gateway.client.source import Clock, Held, Source

TICK = 1.0
"""Seconds between two looks at the clock. An event loop's own timers stand still while the machine is suspended."""

DRIFT = 0.01
"""The part of the validity that is left unused: no two clocks run at exactly the same speed."""


class Keeper:
    """One hold: renewed at a third of its validity, lost once and for ever.

    ``lost`` is called when it is, in whatever thread finds out, at least once. ``pause`` waits for so many seconds
    until the next renewal, or for less where that suits the source.
    """

    def __init__(
        self,
        source: Source,
        held: Held,
        ttl: float,
        clock: Clock,
        lost: Callable[[], None],
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._ttl = ttl
        self._clock = clock
        self._lost = lost
        self._pause = pause
        self._trouble: Exception | None = None
        self._failure: LockLost | None = None
        self._process = os.getpid()
        self._group = asyncio.TaskGroup()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self.held = held

    async def start(self) -> None:
        await self._group.__aenter__()
        self._tasks = self._group.create_task(self._watch()), self._group.create_task(self._renew())

    async def stop(self) -> None:
        """End the renewals without a notice. Nothing may be written under the lock any more."""
        if self._failure is None:
            self._failure = LockLost(f"The lock {self.held.resource} has been released.", advice="Acquire it again.")
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)

    def left(self) -> float:
        """Seconds for which the hold is certainly valid; nothing or less where it is lost. Looking changes nothing."""
        return 0.0 if self._failure or self.is_copy() else self.held.valid_until - self._clock() - DRIFT * self._ttl

    def is_copy(self) -> bool:
        """Whether a fork has made this: the hold is the parent's, which goes on keeping it and gives it back."""
        return os.getpid() != self._process

    def is_overdue(self) -> bool:
        """Whether the time is over, even if it was not noticed yet. The property changes nothing."""
        return self._failure is None and self.left() <= 0

    def loss(self) -> LockLost | None:
        """Why it is lost, by what is known and by the clock as it stands; None while it is held. From any thread."""
        if self.is_copy():
            return LockLost(
                f"The lock {self.held.resource} is held by the process that this one was forked from.",
                advice="Acquire a lock of your own here, or give this process the parent's lock.environment().",
            )
        if self.is_overdue():
            self.lose(f"The lock {self.held.resource} was not renewed in time.", self._trouble)
        failure = self._failure
        if failure is None:
            return None
        # One of its own for each who raises it: an exception grows with every place it passes.
        own = LockLost(failure.message, advice=failure.advice, code=failure.code, facts=failure.facts)
        own.__cause__ = failure.__cause__
        return own

    def check(self) -> None:
        """Raise ``LockLost`` if it is lost."""
        if (loss := self.loss()) is not None:
            raise loss

    def lose(self, message: str, cause: Exception | None) -> None:
        """Mark the hold as lost. Only the first reason counts."""
        if self._failure is None:
            known = cause if isinstance(cause, FencingError) else FencingError("")
            failure = LockLost(message, code=known.code, facts=known.facts)
            failure.__cause__ = cause
            self._failure = failure
            self._lost()

    async def _watch(self) -> None:
        tick = min(TICK, max(0.02, self._ttl / 20))
        while self.loss() is None:  # noqa: ASYNC110 - what is waited for is the time
            await asyncio.sleep(max(min(self.left(), tick), 0.0))

    async def _renew(self) -> None:
        """Renew until the hold is lost. Any error but a refusal is retried while there is time."""
        pause = self.left() / 3
        while self._failure is None:
            await self._pause(max(pause, 0.0))
            if self._failure is not None:
                return  # it was lost meanwhile
            pause = await self.renew_once()

    async def renew_once(self) -> float:
        """Renew, whatever comes of it. Return the seconds until the next renewal."""
        left = self.left()
        try:
            async with asyncio.timeout(max(left / 2, 0.05)):
                renewed = await self._source.renew(self.held, self._ttl)
        except LockLost as refused:
            self.lose(f"The lock {self.held.resource} is lost: {refused.message}", refused)
        except Exception as error:  # noqa: BLE001 - the network's troubles have many names; validity ends by itself
            self._trouble = error
            return min(max(left / 10, 0.05), 1.0)
        else:
            self._note(renewed)
        return self.left() / 3

    def _note(self, renewed: Held) -> None:
        if (renewed.value, renewed.epoch) != (self.held.value, self.held.epoch):
            self.lose(f"The lock {self.held.resource} came back from its renewal with another token.", None)
        elif self._failure is None:
            self.held, self._trouble = renewed, None
