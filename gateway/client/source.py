"""The source of tokens: the interface of a lock service from which a lock can be made.

A source is a thin adapter of one lock service. It acquires, renews, releases, and passes on the service's answers. It
starts no task, renews nothing by itself, and raises no fence. All of that belongs to the lock (gateway/client/lock.py).
The lock calls a source from one event loop, and for different locks at the same time.

Each method keeps these rules:

- Connections are made on first use, in the event loop that uses them, and again after ``aclose``. The constructor does
  no I/O, so the blocking client can take a source, too.
- Time is counted by ``gateway.client.source.now`` (or the clock given to the constructor), from *before* the request
  was sent. Then a pause during a call only makes validity shorter.
- Cancellation leaves nothing behind. A cancelled ``acquire`` gives back a lock that it may have got, or leaves the
  queue, in bounded time, and then raises ``CancelledError``.
- ``Unavailable`` is for errors that may pass (connection refused, timeout, 5xx): the lock retries. A ``renew`` that
  raises it must not have shortened or lost the lease.
"""

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import anyio

from gateway.client.cancellation import GRACE, Remembered, whole
from gateway.client.errors import FencingError, LockLost, NotAcquired

H = TypeVar("H")

Clock: TypeAlias = Callable[[], float]
"""Seconds since some moment in the past; never set, never going backwards."""

_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds by CLOCK_BOOTTIME where there is one (Linux), else by the monotonic clock.

    CLOCK_MONOTONIC stands still on Linux while the machine is suspended, and leases go on running out meanwhile.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


Mode: TypeAlias = Literal["exclusive", "shared"]


@dataclass(frozen=True, slots=True)
class Held:
    """One hold of one lock, as the source last heard of it. A renewal returns a new one with the same token.

    ``value``: the number of the token, 0 to 2^63 - 1, which only grows for this lock.
    ``valid_until``: by the source's clock, the time *before* the request was sent plus the time the hold lasts. No
        margin is taken off: the lock does that.
    ``epoch``: None where the lock service knows no epochs; the lock then sends that of the fence, which it has read
        before ``acquire`` was called.
    ``handle``: the source's own particulars, such as a lease id, a key, a revision.
    ``sequencer``: the signed form of the token, where the source has one.
    """

    resource: str
    holder: str
    value: int
    valid_until: float
    epoch: int | None = None
    handle: object = None
    sequencer: str | None = None
    mode: Mode = "exclusive"


@runtime_checkable
class Source(Protocol):
    """A lock service. All methods raise ``Unavailable`` where it cannot be reached."""

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """Acquire the lock for ``holder`` for ``ttl`` seconds, or for the time that the lock service makes of it.

        ``resource`` is the fence's name: RFC 3986 path characters, at most 512 bytes; escape characters that the lock
        service refuses. ``holder`` is unique to one process, and the same when an acquire is retried. If the lock
        service recognises the holder, the same token comes back. ``wait``: seconds to wait for it; 0 not at all, None
        for ever.

        Raise ``NotAcquired`` (with the holder, if known), and ValueError for a ``mode`` that the service does not have.
        """
        ...

    async def renew(self, held: Held, ttl: float) -> Held:
        """Keep it for another ``ttl`` seconds from now. Raises ``LockLost`` where it is not held any more."""
        ...

    async def release(self, held: Held) -> None:
        """Release the lock. Return without an error if it is lost already."""
        ...

    async def holds(self, held: Held) -> bool:
        """Ask the lock service now (no cache, no replica that may lag) whether this very hold is still alive."""
        ...

    async def aclose(self) -> None:
        """Close what was opened. The next call opens it again; holds stay as they are."""
        ...


@dataclass(slots=True)
class Attempt(Generic[H]):
    """One acquire under way, until ``give_up`` by the source's clock. ``mode`` is one that the service has.

    ``handle``: what has to be given back if it comes to nothing. ``refused``: the last answer, None before the first.
    ``waiting``: what the source keeps from one try to the next. ``opened`` is closed at the end.
    """

    resource: str
    holder: str
    ttl: float
    give_up: float
    mode: Mode = "exclusive"
    handle: H | None = None
    refused: NotAcquired | None = None
    waiting: Any = None
    opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    def held(self, value: int, valid_until: float) -> Held:
        """Return the hold that the attempt has become."""
        return Held(self.resource, self.holder, value, valid_until, handle=self.handle)


class LockService(ABC, Generic[H]):
    """A source as three functions, take, keep and give back, and a policy. ``H`` is the class of its handles.

    The frame is here: the loop of a waiter, its time, what a cancelled or failed acquire gives back, and losses.
    """

    service: ClassVar[str]
    handles: type[H]
    shares: ClassVar[bool] = False
    """Whether it has shared locks, too."""
    queues: ClassVar[bool] = False
    """Whether a refused attempt has something to give back, such as a place in a queue."""
    reuses: ClassVar[bool] = False
    """Whether the next acquire of a holder takes over what the service could not take back while it was away."""
    poll: float = 0.0
    """Seconds between two attempts at most. 0 where an attempt itself waits, or is told of a release."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: Remembered[tuple[str, str], H] = Remembered()

    async def acquire(self, resource: str, *, holder: str, ttl: float, wait: float | None, mode: Mode) -> Held:
        """See ``Source.acquire``. Each call is a hold of its own, also for the same ``holder``."""
        if mode != "exclusive" and not self.shares:
            raise ValueError(f"{self.service} has exclusive locks only.")
        give_up = math.inf if wait is None else self._clock() + wait
        attempt = Attempt(resource, holder, ttl, give_up, mode, self._left.take((resource, holder)))
        try:
            async with attempt.opened:
                while True:
                    taken = await self._take(attempt)
                    if isinstance(taken, Held):
                        return taken
                    attempt.refused = taken
                    if not self.queues:
                        attempt.handle = None
                    if (left := give_up - self._clock()) <= 0:
                        raise taken
                    await self._pause(attempt, taken, left)
        except BaseException:
            await whole(self._undo(attempt))
            raise

    async def renew(self, held: Held, ttl: float) -> Held:
        """See ``Source.renew``. Some services keep the time for which they granted the lock."""
        handle, asked = self._handle(held), self._clock()
        lasts = await self._keep(held, handle, ttl)
        if lasts is None:
            raise LockLost(f"{self.service} does not have the lock {held.resource} for this holder any more.")
        return replace(held, valid_until=asked + lasts)

    async def release(self, held: Held) -> None:
        """See ``Source.release``."""
        await self._give_back(self._handle(held))

    @abstractmethod
    async def holds(self, held: Held) -> bool: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def _take(self, attempt: Attempt[H]) -> Held | NotAcquired:
        """Try to take the lock. Set ``attempt.handle`` before anything that would have to be given back."""

    @abstractmethod
    async def _keep(self, held: Held, handle: H, ttl: float) -> float | None:
        """Renew the hold; return the seconds from the request on for which it lasts. None where it is lost."""

    @abstractmethod
    async def _give_back(self, handle: H) -> None:
        """Give back a hold, or what an attempt has made. Return without an error if it is gone already."""

    async def _pause(self, attempt: Attempt[H], refused: NotAcquired, left: float) -> None:  # noqa: ARG002
        """Wait until another attempt may succeed, for at most ``left`` seconds."""
        known = left if refused.expires_in is None else refused.expires_in
        await asyncio.sleep(max(0.0, min(self.poll, known, left)))

    async def _undo(self, attempt: Attempt[H]) -> None:
        if attempt.handle is None:
            return
        with anyio.move_on_after(GRACE), suppress(FencingError):
            await self._give_back(attempt.handle)
            return
        if self.reuses:
            self._left[attempt.resource, attempt.holder] = attempt.handle

    def _handle(self, held: Held) -> H:
        if not isinstance(held.handle, self.handles):
            raise TypeError(f"The hold of {held.resource} is not one of {self.service}.")
        return held.handle
