"""A lock service in this very process, with every trouble that a lock service can have: what tests play with."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.client.errors import LockLost, NotAcquired, Unavailable
from gateway.client.source import Held, Mode, Source, now


def slow() -> float:
    """Return a clock so slow that a client loses no lock by time, however busy the machine is. Pauses ignore it."""
    return now() / 100


class Counter:
    """``Source``. It counts without epochs, and never lets a hold lapse by itself: tests take it away.

    ``value`` is the last token issued; ``trouble`` is raised by every call; ``silent``: renewals never answer.
    ``renewals``, ``refused`` and ``unanswered`` count.
    """

    def __init__(self, value: int = 0, clock: Callable[[], float] = now) -> None:
        self.value = value
        self.clock = clock
        self.trouble: Exception | None = None
        self.silent = False
        self.renewals = 0
        self.refused = 0
        self.unanswered = 0
        self.closed = 0
        self.holders: dict[str, Held] = {}

    def take_away(self, resource: str) -> None:
        """End the hold without notice to its holder."""
        del self.holders[resource]

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        self._troubled()
        if resource in self.holders:
            raise NotAcquired(resource, holder=self.holders[resource].holder)
        self.value += 1
        held = Held(resource, holder, self.value, self.clock() + ttl, mode=mode)
        self.holders[resource] = held
        return held

    async def renew(self, held: Held, ttl: float) -> Held:
        self._troubled()
        if self.silent:
            self.unanswered += 1
            await asyncio.Event().wait()
        asked = self.clock()
        if not self._has(held):
            raise LockLost("The counter has given it to somebody else.")
        self.renewals += 1
        return replace(held, valid_until=asked + ttl)

    async def release(self, held: Held) -> None:
        self._troubled()
        if self._has(held):
            del self.holders[held.resource]

    async def holds(self, held: Held) -> bool:
        self._troubled()
        return self._has(held)

    async def aclose(self) -> None:
        self.closed += 1

    def _has(self, held: Held) -> bool:
        standing = self.holders.get(held.resource)
        return standing is not None and (standing.value, standing.holder) == (held.value, held.holder)

    def _troubled(self) -> None:
        if self.trouble is not None:
            self.refused += 1
            raise self.trouble


@dataclass
class Asleep:
    """``Source``: another one, as a process sees it that is stopped. Its renewals never leave."""

    awake: Source

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        return await self.awake.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode=mode)

    async def renew(self, held: Held, ttl: float) -> Held:
        await asyncio.Event().wait()
        raise Unavailable("Nobody gets here.")

    async def release(self, held: Held) -> None:
        await self.awake.release(held)

    async def holds(self, held: Held) -> bool:
        return await self.awake.holds(held)

    async def aclose(self) -> None:
        await self.awake.aclose()
