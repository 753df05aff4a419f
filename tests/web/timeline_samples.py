"""Small histories of a resource, built step by step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gateway.fencing.decision import Fence
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.timeline.history import History, Key, LeaseEvent, Party, Refusals, Span, Takeover, Tally, Totals

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def party(token: int | str | None, holder: str | None = None, caller: str | None = "worker") -> Party:
    return Party(None if token is None else Token.parse(str(token)), holder, caller)


@dataclass
class Story:
    """A fence and what happens to it; ``history`` is what the record has of it then."""

    fence: Fence | None = None
    takeovers: list[Takeover] = field(default_factory=list)
    refusals: list[Refusals] = field(default_factory=list)
    leases: list[LeaseEvent] = field(default_factory=list)
    parties: dict[Key, Party] = field(default_factory=dict)

    def raises(self, seconds: float, by: Party, kind: Kind = Kind.RAISED) -> None:
        """Nothing is on record of the first raise of all."""
        assert by.token is not None
        self.parties.setdefault(by.key, by)
        if self.fence is not None:
            over = Party(self.fence.token, self.fence.holder, self.fence.caller)
            self.takeovers.append(Takeover(at(seconds), kind, by, over, self.fence.raised_at))
        self.fence = Fence("r", by.token, by.holder, by.caller, at(seconds))

    def refuses(
        self, seconds: float, who: Party, reason: str = "token-stale", *, noted: bool = False, requests: int = 0
    ) -> None:
        self.parties.setdefault(who.key, who)
        number = UUID(int=len(self.refusals))
        self.refusals.append(Refusals(who.key, at(seconds), at(seconds), 1, int(noted), reason, number, requests))

    def lease(self, seconds: float, kind: Kind, who: Party) -> None:
        self.parties.setdefault(who.key, who)
        self.leases.append(LeaseEvent(at(seconds), kind, who))

    def history(self, since: float, until: float) -> History:
        tallies = [_tally(party, self.refusals) for party in self.parties.values()]
        refused = [tally for tally in tallies if tally.refused]
        totals = Totals(
            len(tallies),
            len(refused),
            sum(one.refused for one in refused),
            sum(one.noted for one in refused),
            sum(one.requests for one in refused),
        )
        return History(
            "r",
            Span(at(since), at(until)),
            self.fence,
            totals,
            parties=tuple(tallies),
            takeovers=tuple(self.takeovers),
            refusals=tuple(self.refusals),
            leases=tuple(self.leases),
        )


def _tally(who: Party, refusals: Sequence[Refusals]) -> Tally:
    own = [one for one in refusals if one.key == who.key]
    return Tally(
        who,
        sum(one.count for one in own),
        sum(one.noted for one in own),
        min((one.first for one in own), default=None),
        max((one.last for one in own), default=None),
        sum(one.requests for one in own),
    )
