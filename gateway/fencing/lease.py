"""Locks and leases as data: what is wanted, what was granted, how a lock stands. No I/O, no clock.

All durations are seconds; all moments are aware and of the database's clock.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.fencing.token import Token

SHORTEST, LONGEST = 0.1, 31_622_400.0
"""Seconds that a lease lasts without renewal: at least, and at most, a year. A gateway may be set to less."""
LONGEST_WAIT = 60.0
"""Seconds that one request waits in the queue of a lock, at most."""


class LockMode(StrEnum):
    """Whether a holder has the lock alone, or shares it with all others that want it shared."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """The place of a waiter: at a gateway (``attendant``) that counts as dead after ``attended`` seconds without a
    heartbeat. A lease handed over to it is good for ``collect`` seconds.
    """

    attendant: UUID
    attended: float
    collect: float


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One wish for a lock. ``resource`` is in canonical form; ``caller`` is the proven identity of the holder.

    ``request`` is the client's own id of this wish. With one, the client keeps its place in the queue for a few seconds
    after ``wait`` is over, and may withdraw it. ``delay``: seconds for which the lock stays closed after this lease was
    lost without a release (lock-delay), for writers that cannot be fenced. ``place``: where it waits in the queue; None
    if it does not.
    """

    resource: str
    holder: str
    caller: str
    ttl: float
    mode: LockMode = LockMode.EXCLUSIVE
    wait: float = 0.0
    request: str | None = None
    delay: float = 0.0
    place: WaitingPlace | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """A lease as any caller may see it: without its id.

    ``expires_in``: the rest of its time when the database answered. Counted from before the request was sent, it is a
    deadline that does not depend on any difference between clocks.
    """

    holder: str
    caller: str
    mode: LockMode
    token: Token
    acquired_at: datetime
    expires_at: datetime
    expires_in: float


@dataclass(frozen=True, slots=True)
class Lease(Hold):
    """One holder's time-limited hold of a lock. ``id`` is a capability: its owner may renew and release."""

    resource: str
    id: UUID


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
class Waiter:
    holder: str
    caller: str
    mode: LockMode
    since: datetime


@dataclass(frozen=True, slots=True)
class LockState:
    """The state of a lock. ``token`` is the last one issued, None if there was none; ``queue`` the first of
    ``waiters``.

    ``delayed_for``: seconds for which a lost lease keeps the lock closed; None without a delay.
    """

    resource: str
    token: Token | None
    holders: tuple[Hold, ...]
    waiters: int
    queue: tuple[Waiter, ...]
    delayed_for: float | None

    @property
    def mode(self) -> LockMode | None:
        return self.holders[0].mode if self.holders else None
