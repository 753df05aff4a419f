"""The history of one resource during one span, summarised for a picture. Data, no I/O.

All moments are aware and of the database's clock.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from gateway.fencing.decision import Fence
from gateway.fencing.record import Kind
from gateway.fencing.token import Token

TAKEOVERS = (Kind.RAISED, Kind.BARRIER, Kind.EPOCH)
LEASE_ENDS = (Kind.LEASE_RELEASED, Kind.LEASE_EXPIRED, Kind.LEASE_BROKEN)

Key: TypeAlias = tuple[Token | None, str | None]
"""The identity of a lane: a token, and the name that its holder gives itself."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time from ``since`` up to and including ``until``."""

    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    def has(self, moment: datetime) -> bool:
        return self.since <= moment <= self.until

    def nearest(self, moment: datetime) -> datetime:
        """Return ``moment``, or the end of the span that is closest to it."""
        return min(max(moment, self.since), self.until)


@dataclass(frozen=True, slots=True)
class Party:
    """A writer: the token it sent, the name it gave itself, and its proven caller."""

    token: Token | None
    holder: str | None
    caller: str | None

    @property
    def key(self) -> Key:
        return self.token, self.holder

    @property
    def name(self) -> str:
        """Return the best name there is."""
        return self.holder or self.caller or "an unnamed holder"

    @property
    def token_text(self) -> str:
        """Return its token in words: ``token 33``."""
        return "no token" if self.token is None else f"token {self.token}"


@dataclass(frozen=True, slots=True)
class Tally:
    """A party with its refused writes during the span.

    ``noted`` of the ``refused`` passed because their rule observes. ``first`` and ``last`` are None if there are none.
    """

    party: Party
    refused: int = 0
    noted: int = 0
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Takeover:
    """A newer token raised the fence. ``over`` held it before, since ``over_since``; None if no party did.

    ``inferred``: the takeover itself is not on record, but a refused write names the fence that it met, and its age.
    There may have been other takeovers before.
    """

    at: datetime
    kind: Kind
    by: Party
    over: Party | None
    over_since: datetime | None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refused writes of one party, close to each other. ``id`` is the entry of the first.

    ``noted`` of them passed because their rule observes. ``reason`` is None if they have several.
    """

    key: Key
    first: datetime
    last: datetime
    count: int
    noted: int
    reason: str | None
    id: UUID


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """A lock was granted, released or lost. ``granted_at`` is set for an end, if it is on record."""

    at: datetime
    kind: Kind
    party: Party
    granted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """An event outside all lanes: a change that bypassed the gateway, a pending write that was stopped."""

    at: datetime
    kind: Kind
    id: UUID
    party: Party
    count: int = 1


@dataclass(frozen=True, slots=True)
class Activity:
    """The number of events during a part of the span."""

    span: Span
    refused: int
    takeovers: int


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of events during the whole span, drawn or not."""

    parties: int = 0
    zombies: int = 0
    """Parties with refused writes."""
    refused: int = 0
    noted: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """One resource during one span. ``parties`` are drawn; ``totals`` counts all.

    ``takeovers`` has each by which one of these took over or was first overtaken, also from before the span. ``fence``
    is the present one. ``remarks`` are the newest of ``remarked`` ones. ``counted``: refusals by guards of which only
    the number is known. They may be of this resource.
    """

    resource: str
    span: Span
    fence: Fence | None
    totals: Totals
    parties: tuple[Tally, ...] = ()
    takeovers: tuple[Takeover, ...] = ()
    refusals: tuple[Refusals, ...] = ()
    leases: tuple[LeaseEvent, ...] = ()
    remarks: tuple[Remark, ...] = ()
    remarked: int = 0
    activity: tuple[Activity, ...] = ()
    counted: int = 0

    @property
    def crowded(self) -> bool:
        """Return whether some parties are not drawn."""
        return self.totals.parties > len(self.parties)
