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

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

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
