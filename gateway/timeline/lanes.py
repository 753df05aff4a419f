"""The lanes of a history: one for each token and holder, in the order of tokens. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gateway.fencing.decision import Fence
from gateway.fencing.record import Kind
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token
from gateway.timeline.history import LEASE_ENDS, History, Key, LeaseEvent, Party, Refusals, Takeover, Tally

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
    )


def _order(lane: Lane) -> tuple[bool, Token, bool, str, str]:
    """Sort by token: first the party that raised the fence with it, then others. Parties without a token are last."""
    return lane.token is None, lane.token or _LAST, lane.since is None, lane.party.holder or "", lane.party.caller or ""
