"""Locks and leases as data: what is wanted, what was granted, how a lock stands. No I/O, no clock.

All durations are seconds; all moments are aware and of the database's clock.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.fencing.token import Token


class Mode(StrEnum):
    """Whether a holder has the lock alone, or shares it with all others that want it shared."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One wish for a lock. ``resource`` is in canonical form; ``caller`` is who the holder proved to be.

    ``request`` is the client's own id of this wish: whoever names one keeps its place in the queue for a few seconds
    after ``wait`` is over, and may withdraw it. ``delay``: for so long nobody gets the lock after this lease was lost
    without having been released (lock-delay), for writers that cannot be fenced.
    """

    resource: str
    holder: str
    caller: str
    ttl: float
    mode: Mode = Mode.EXCLUSIVE
    wait: float = 0.0
    request: str | None = None
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's time-limited hold of a lock. ``id`` is a capability: whoever knows it may renew and release.

    ``expires_in``: what was left when the database answered. Counted from before the question was sent, it is a
    deadline that no difference between clocks can falsify.
    """

    resource: str
    id: UUID
    holder: str
    caller: str
    mode: Mode
    token: Token
    acquired_at: datetime
    expires_at: datetime
    expires_in: float


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to a wish. ``fresh`` is False where the same holder had the lease already."""

    lease: Lease
    fresh: bool


@dataclass(frozen=True, slots=True)
class Renewal:
    """A lease to be renewed by ``caller``: for ``ttl``, or for as long as last time where it is None."""

    resource: str
    lease: UUID
    caller: str
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A lease as anybody may see it: without its id."""

    holder: str
    caller: str
    mode: Mode
    token: Token
    acquired_at: datetime
    expires_at: datetime
    expires_in: float


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody in the queue of a lock."""

    holder: str
    caller: str
    mode: Mode
    since: datetime


@dataclass(frozen=True, slots=True)
class LockView:
    """How a lock stands. ``token`` is the last one issued, None if none ever was; ``queue`` the first of ``waiters``.

    ``delayed_for``: nobody gets the lock for so long, because a lease of it was lost; None where nothing delays it.
    """

    resource: str
    token: Token | None
    holders: tuple[Hold, ...]
    waiters: int
    queue: tuple[Waiter, ...]
    delayed_for: float | None

    @property
    def mode(self) -> Mode | None:
        """How the lock is held, None where it is not."""
        return self.holders[0].mode if self.holders else None
