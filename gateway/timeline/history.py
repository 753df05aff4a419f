"""What the record has of one resource during one span, summed up as far as a picture needs it. Data, no I/O.

All moments are aware and of the database's clock.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from gateway.fencing.record import Kind
from gateway.fencing.rules import Fence
from gateway.fencing.token import Token

TAKEOVERS = (Kind.RAISED, Kind.BARRIER, Kind.EPOCH)
LEASE_ENDS = (Kind.LEASE_RELEASED, Kind.LEASE_EXPIRED, Kind.LEASE_BROKEN)

Key: TypeAlias = tuple[Token | None, str | None]
"""What tells one lane from another: a token, and the name its holder gives itself."""


@dataclass(frozen=True, slots=True)
class Span:
    """From ``since`` on, up to and including ``until``."""

    since: datetime
    until: datetime

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    def has(self, moment: datetime) -> bool:
        return self.since <= moment <= self.until

    def nearest(self, moment: datetime) -> datetime:
        """``moment``, or the end of the span that is closest to it."""
        return min(max(moment, self.since), self.until)


@dataclass(frozen=True, slots=True)
class Party:
    """One of those who write: what it shows, what it calls itself, and who it proved to be."""

    token: Token | None
    holder: str | None
    caller: str | None

    @property
    def key(self) -> Key:
        return self.token, self.holder

    @property
    def name(self) -> str:
        """The best name there is."""
        return self.holder or self.caller or "an unnamed holder"

    @property
    def shown(self) -> str:
        """What it showed, in words: ``token 33``."""
        return "no token" if self.token is None else f"token {self.token}"


@dataclass(frozen=True, slots=True)
class Tally:
    """A party, and how many writes of it did not pass, or would not have, during the span.

    ``noted`` of the ``refused`` did pass, since their rule observes. ``first`` and ``last`` are None if there are none.
    """

    party: Party
    refused: int = 0
    noted: int = 0
    first: datetime | None = None
    last: datetime | None = None


@dataclass(frozen=True, slots=True)
class Takeover:
    """A newer token has raised the fence. ``over`` is whose it was before, since ``over_since``; None if nobody's.

    ``inferred``: the takeover itself is not on record; a refused write told whose fence it met, and since when that had
    stood. There may have been others before.
    """

    at: datetime
    kind: Kind
    by: Party
    over: Party | None
    over_since: datetime | None
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refused writes of one party that came close together; ``id`` is the entry of the first.

    ``noted`` of them passed, since their rule observes. ``reason`` is None where they have several.
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
    """A lock was granted, released, lost; ``granted_at`` of one that has ended, where that is on record."""

    at: datetime
    kind: Kind
    party: Party
    granted_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """Something of note that is nobody's lane: a change past the gateway, a write that was stopped under way."""

    at: datetime
    kind: Kind
    id: UUID
    party: Party
    count: int = 1


@dataclass(frozen=True, slots=True)
class Activity:
    """How much there was during a piece of the span."""

    span: Span
    refused: int
    takeovers: int


@dataclass(frozen=True, slots=True)
class Totals:
    """How much there was during the whole span, drawn or not."""

    parties: int = 0
    zombies: int = 0
    """Parties with refused writes."""
    refused: int = 0
    noted: int = 0


@dataclass(frozen=True, slots=True)
class History:
    """One resource during one span. ``parties`` are those to be drawn; there may be more (``totals``).

    ``takeovers`` has each by which one of them took over or was the first to be overtaken, also from before the span.
    ``fence`` is the one there is now. ``remarks`` are the newest of ``remarked``.
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

    @property
    def crowded(self) -> bool:
        """Whether there are parties that are not drawn."""
        return self.totals.parties > len(self.parties)
