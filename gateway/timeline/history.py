"""The history of one resource during one span, summarised for a picture; and the axis of its time. Data, no I/O.

All moments are aware and of the database's clock. The axis is in UTC; it has the positions of moments, its ticks, and
the spans that a viewer can zoom to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from uuid import UUID

from gateway.fencing.decision import Fence
from gateway.fencing.record import Kind
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token

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
        return self.holder or self.caller or "an unnamed holder"

    @property
    def token_text(self) -> str:
        """Return its token in words: ``token 33``."""
        return "no token" if self.token is None else f"token {self.token}"


@dataclass(frozen=True, slots=True)
class Tally:
    """A party with its refused writes during the span.

    ``noted`` of the ``refused`` passed because their rule observes. ``requests`` of them were no writes. ``first`` and
    ``last`` are None if there are none.
    """

    party: Party
    refused: int = 0
    noted: int = 0
    first: datetime | None = None
    last: datetime | None = None
    requests: int = 0


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

    ``noted`` of them passed because their rule observes. ``requests`` of them were no writes. ``reason`` is None if
    they have several.
    """

    key: Key
    first: datetime
    last: datetime
    count: int
    noted: int
    reason: str | None
    id: UUID
    requests: int = 0


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
    """The number of events during one piece of the span. ``requests`` of the ``refused`` were no writes."""

    span: Span
    refused: int
    takeovers: int
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of events during the whole span, drawn or not. ``requests`` of the ``refused`` were no writes."""

    parties: int = 0
    zombies: int = 0
    """Parties with refused writes."""
    refused: int = 0
    noted: int = 0
    requests: int = 0


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
        return self.totals.parties > len(self.parties)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_MILLISECONDS = [timedelta(milliseconds=step) for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
_SECONDS = [timedelta(seconds=step) for step in (1, 2, 5, 10, 15, 30)]
_MINUTES = [timedelta(minutes=step) for step in (1, 2, 5, 10, 15, 30)]
_HOURS = [timedelta(hours=step) for step in (1, 2, 3, 6, 12)]
_DAYS = [timedelta(days=step) for step in (1, 2, 5, 10, 30, 100, 365, 1000, 3650, 18250)]
STEPS = (*_MILLISECONDS, *_SECONDS, *_MINUTES, *_HOURS, *_DAYS)


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment on the axis. ``day`` is set if it differs from that of the previous tick."""

    at: datetime
    x: float
    label: str
    day: str | None


@dataclass(frozen=True, slots=True)
class Axis:
    """A span of time laid out from ``left`` to ``right``."""

    span: Span
    left: float
    right: float

    def x(self, moment: datetime) -> float:
        """Return the position of a moment, which is clamped to the span."""
        share = (self.span.nearest(moment) - self.span.since) / self.span.length
        return round(self.left + share * (self.right - self.left), 1)

    def ticks(self, at_most: int = 8) -> tuple[Tick, ...]:
        """Return round moments within the span, at the finest step that yields at most ``at_most`` of them."""
        step = next((step for step in STEPS if self.span.length / step <= at_most - 1), STEPS[-1])
        moment = _EPOCH + -(-(self.span.since - _EPOCH) // step) * step
        ticks: list[Tick] = []
        day = None
        while moment <= self.span.until:
            of_tick = format_day(moment)
            label = of_tick if step >= timedelta(days=1) else format_time(moment, step)
            named = of_tick if step < timedelta(days=1) and of_tick != day else None
            ticks.append(Tick(moment, self.x(moment), label, named))
            day = of_tick
            moment += step
        return tuple(ticks)


def format_time(moment: datetime, step: timedelta) -> str:
    """Return a time of day, at the precision of ``step``."""
    moment = moment.astimezone(UTC)
    if step < timedelta(seconds=1):
        return f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"
    return f"{moment:%H:%M:%S}" if step < timedelta(minutes=1) else f"{moment:%H:%M}"


def format_day(moment: datetime) -> str:
    """Return a day, such as ``21 Nov 2025``."""
    moment = moment.astimezone(UTC)
    return f"{moment.day} {moment:%b %Y}"


DAY = timedelta(days=1)
"""The default length of a timeline, which shows the last day on which something of note happened."""

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""The limits of a requested span."""

SHORTEST = timedelta(seconds=2)
_NARROWEST = timedelta(milliseconds=20)
_MARGIN = 0.12


def fitted(first: datetime, last: datetime, now: datetime) -> Span:
    """Return a span from ``first`` to ``last`` with a margin on both sides, but without a future."""
    margin = max((last - first) * _MARGIN, SHORTEST / 2)
    until = min(last + margin, max(now, last + SHORTEST / 20))
    return Span(min(first - margin, until - SHORTEST), until)


def wider(span: Span, now: datetime) -> Span:
    """Return a span of four times the length, with the same middle as far as possible."""
    until = min(span.until + span.length * 1.5, max(now, span.until))
    return Span(max(until - span.length * 4, EARLIEST), until)


def narrower(span: Span) -> Span | None:
    """Return the half in the middle; None if that is too short."""
    if span.length < _NARROWEST:
        return None
    return Span(span.since + span.length / 4, span.until - span.length / 4)


def earlier(span: Span) -> Span | None:
    """Return the span half a length earlier; None beyond the limits."""
    since = span.since - span.length / 2
    return None if since < EARLIEST else Span(since, since + span.length)


def later(span: Span, now: datetime) -> Span | None:
    """Return the span half a length later, at most until now; None if it ends there already."""
    by = min(span.length / 2, now - span.until)
    return None if by < span.length / 20 else Span(span.since + by, span.until + by)


_LAST = Token(MAX_EPOCH, MAX_VALUE)


@dataclass(frozen=True, slots=True)
class LeaseSpan:
    """A lease of a holder. ``since`` and ``until`` are None if they are unknown.

    ``end`` tells how it ended; None if it is unknown or still running.
    """

    since: datetime | None
    until: datetime | None
    end: Kind | None


@dataclass(frozen=True, slots=True)
class Lane:
    """One token of one holder. ``since``: when it raised the fence; None if it is not known to have done so.

    ``overtaken`` is the first takeover above its token. ``refusals`` are the writes after that, ``tally`` is their sum.
    ``holds``: the fence carries its token now. ``begins_epoch``: an administrator began an epoch with this token, which
    has no writer.
    """

    party: Party
    since: datetime | None
    overtaken: Takeover | None
    tally: Tally
    refusals: tuple[Refusals, ...]
    leases: tuple[LeaseSpan, ...]
    holds: bool
    begins_epoch: bool

    @property
    def token(self) -> Token | None:
        return self.party.token

    @property
    def zombie(self) -> bool:
        """Return whether it continued to write after it was overtaken."""
        return self.overtaken is not None and self.tally.last is not None and self.tally.last >= self.overtaken.at


@dataclass(slots=True)
class _Draft:
    party: Party
    since: datetime | None = None
    tallies: list[Tally] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)
    leases: list[LeaseSpan] = field(default_factory=list)
    begins_epoch: bool = False


def takeovers(history: History) -> tuple[Takeover, ...]:
    """Return the takeovers in the order of their tokens, one for each. A missing one is inferred from the fence."""
    known = list(history.takeovers)
    if history.fence is not None:
        by = _of_fence(history.fence)
        known.append(Takeover(history.fence.raised_at, Kind.RAISED, by, None, None, inferred=True))
    first: dict[Token, Takeover] = {}
    for one in sorted(known, key=lambda one: (one.inferred, one.kind is not Kind.EPOCH, one.at)):
        if one.by.token is not None:
            first.setdefault(one.by.token, one)
    return tuple(first[token] for token in sorted(first))


def lanes(history: History) -> tuple[Lane, ...]:
    """Return a lane for each party of the history, and for the holder of the fence.

    Unless the history is crowded, parties that overtook one of them before its span have a lane, too.
    """
    known = takeovers(history)
    drafts = _Drafts(_raisers(known))
    for tally in history.parties:
        drafts.open(tally.party).tallies.append(tally)
        overtaken = _overtaken(tally.party.token, known)
        if not history.crowded and tally.refused and overtaken is not None and overtaken.at <= history.span.until:
            drafts.open(overtaken.by)
    if history.fence is not None and history.fence.raised_at <= history.span.until:
        drafts.open(_of_fence(history.fence))
    for takeover in known:
        drafts.note(takeover)
    for refusals in history.refusals:
        drafts.note_refusals(refusals)
    for event in sorted(history.leases, key=lambda one: one.at):
        drafts.note_lease(event)
    finished = [_lane(draft, known, history.fence) for draft in drafts.all.values()]
    return tuple(sorted(finished, key=_order))


class _Drafts:
    """The unfinished lanes. A token without a name belongs to the party that raised the fence with it."""

    def __init__(self, raisers: Iterable[Party]) -> None:
        self.all: dict[Key, _Draft] = {}
        self._raisers = {party.token: party for party in raisers}

    def open(self, party: Party) -> _Draft:
        party = self._named(party)
        return self.all.setdefault(party.key, _Draft(party))

    def note(self, takeover: Takeover) -> None:
        """Record since when each side held the fence."""
        by = self._find(takeover.by)
        if by is not None:
            by.since = takeover.at if by.since is None else min(by.since, takeover.at)
            by.begins_epoch |= takeover.kind is Kind.EPOCH
        over = None if takeover.over is None else self._find(takeover.over)
        if over is not None and over.since is None:
            over.since = takeover.over_since

    def note_refusals(self, refusals: Refusals) -> None:
        draft = self._find(Party(*refusals.key, None))
        if draft is not None:
            draft.refusals.append(refusals)

    def note_lease(self, event: LeaseEvent) -> None:
        """Record a lease event. The events of a lane arrive in the order of time."""
        draft = self._find(event.party)
        if draft is None:
            return
        opened = draft.leases.pop() if draft.leases and draft.leases[-1].until is None else None
        if event.kind in LEASE_ENDS:
            draft.leases.append(LeaseSpan(opened.since if opened else event.granted_at, event.at, event.kind))
        else:
            draft.leases.append(LeaseSpan(event.at if opened is None else opened.since, None, None))

    def _find(self, party: Party) -> _Draft | None:
        return self.all.get(self._named(party).key)

    def _named(self, party: Party) -> Party:
        if party.holder is not None or party.token is None:
            return party
        return self._raisers.get(party.token, party)


def _raisers(known: Sequence[Takeover]) -> list[Party]:
    """Return the known parties that raised the fence. Named ones are last, so they stand for unnamed ones."""
    parties = [party for one in known for party in (one.by, one.over) if party is not None]
    return sorted(parties, key=lambda party: party.holder is not None)


def _of_fence(fence: Fence) -> Party:
    return Party(fence.token, fence.holder, fence.caller)


def _overtaken(token: Token | None, known: Sequence[Takeover]) -> Takeover | None:
    """Return the first takeover above a token. ``known`` are in the order of tokens, because a fence never falls."""
    if token is None:
        return None
    return next((one for one in known if one.by.token is not None and one.by.token > token), None)


def _lane(draft: _Draft, known: Sequence[Takeover], fence: Fence | None) -> Lane:
    party = draft.party
    return Lane(
        party,
        draft.since,
        _overtaken(party.token, known),
        _sum(party, draft.tallies),
        tuple(sorted(draft.refusals, key=lambda one: one.first)),
        tuple(draft.leases),
        holds=fence is not None and party.key == (fence.token, fence.holder),
        begins_epoch=draft.begins_epoch,
    )


def _sum(party: Party, tallies: Sequence[Tally]) -> Tally:
    return Tally(
        party,
        sum(tally.refused for tally in tallies),
        sum(tally.noted for tally in tallies),
        min((tally.first for tally in tallies if tally.first), default=None),
        max((tally.last for tally in tallies if tally.last), default=None),
        sum(tally.requests for tally in tallies),
    )


def _order(lane: Lane) -> tuple[bool, Token, bool, str, str]:
    """Sort by token: first the party that raised the fence with it, then others. Parties without a token are last."""
    return lane.token is None, lane.token or _LAST, lane.since is None, lane.party.holder or "", lane.party.caller or ""
