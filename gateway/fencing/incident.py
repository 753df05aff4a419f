"""Incidents: refused writes that belong together, so that a zombie's thousand retries are one thing to look at. Pure.

Refused writes are one incident if they have the same key and no gap is longer than ``GAP``. The first one names the
incident, and any other one leads to it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from gateway.fencing.decision import Fence
from gateway.fencing.record import Entry, EntryReason, Kind, MissingGrant
from gateway.fencing.token import Token

GAP = timedelta(hours=1)
"""A refusal that comes later than this after the last one begins another incident."""
QUIET = timedelta(minutes=15)
"""An incident without a refusal for this long is resolved. A later one, within ``GAP``, reopens it."""
MOST_NOTES = 50
"""The most acknowledgements of one incident."""
LONGEST_NOTE = 1000
"""Characters of a note."""

OF_A_TOKEN = (
    EntryReason.TOKEN_STALE,
    EntryReason.TOKEN_DUPLICATE,
    EntryReason.TOKEN_USED,
    EntryReason.TOKEN_IMPLAUSIBLE,
)
"""Refusals of a token. Their incidents are about one resource; all others are about one caller."""

ZOMBIE = EntryReason.TOKEN_STALE
"""The reason of a zombie's refusals: another holder has overtaken its token. No other reason makes a zombie."""


def counted_only(count: int, when: str = "") -> str:
    """Return the sentence about refusals by guards of which only the number is on record. ``when`` follows it."""
    return f"{count:,} {'refusal' if count == 1 else 'refusals'} by the guard of which only the count is known{when}."


def nothing_refused(counted: int, when: str = "") -> str:
    """Return the sentence about a time without refused writes on record. ``when`` names the time.

    No other place says that no write was refused: a guard may have ``counted`` some.
    """
    return counted_only(counted, when) if counted else f"No write was refused{when}."


def fate(count: int, passed: int) -> str:
    """Return the sentence about what became of so many writes on record as refused, of which some passed."""
    if not passed:
        return "It was refused." if count == 1 else "All were refused."
    if passed < count:
        return f"{passed:,} of {count:,} took effect, because the rule only observes. The others were refused."
    return f"{'It' if count == 1 else 'All'} took effect, because the rule only observes."


def attempts(count: int, requests: int, kind: str = "") -> str:
    """Return in words what was refused. ``requests`` of the ``count`` were no writes. ``kind``: such as ``"late "``."""
    writes = count - requests
    tried = f"{writes:,} {kind}{'write' if writes == 1 else 'writes'}"
    if not requests:
        return tried
    if writes:
        return f"{tried} and {requests:,} other {'request' if requests == 1 else 'requests'}"
    return f"{requests:,} {kind}{'request that is no write' if requests == 1 else 'requests that are no writes'}"


@dataclass(frozen=True, slots=True)
class IncidentKey:
    """The common values of the refusals of an incident. ``resource``, ``token`` and ``holder`` are None for reasons
    that are about a caller.
    """

    reason: str
    caller: str | None
    resource: str | None = None
    token: Token | None = None
    holder: str | None = None

    @property
    def of_a_token(self) -> bool:
        return self.reason in OF_A_TOKEN


def key_of(entry: Entry) -> IncidentKey:
    reason = entry.reason or ""
    if reason not in OF_A_TOKEN:
        return IncidentKey(reason, entry.caller)
    return IncidentKey(reason, entry.caller, entry.resource, entry.token, entry.holder)


@dataclass(frozen=True, slots=True)
class Tally:
    """The refusals of one key during one step of time, which is not longer than ``GAP``.

    ``passed`` of the ``count`` took effect, because their rule observes. ``requests`` were no writes, but barriers or
    requests for credentials. ``inside`` of the ``count`` lie in the time that was asked for; the others show whether
    the incident is cut off by it. ``resource`` is one of their resources; ``same``: they have no other. Positions are
    those of the first and the last one in the record.
    """

    key: IncidentKey
    step: datetime
    count: int
    passed: int
    inside: int
    first: datetime
    last: datetime
    first_position: int
    last_position: int
    resource: str | None
    same: bool
    requests: int = 0


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A caller has seen an incident, with a note. It is an entry of the record."""

    id: UUID
    at: datetime
    by: str | None
    note: str


class State(StrEnum):
    """The state of an incident at one moment."""

    GOING_ON = "going-on"
    AGAIN = "going-on-again"
    """Refusals have come after the last acknowledgement."""
    ACKNOWLEDGED = "acknowledged"
    """No refusal has come since the acknowledgement, but not for long enough."""
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Incident:
    """Refused writes that belong together. The fields are those of ``Tally``, summed.

    ``inside``: how many of them lie in the time that was asked for. ``steps`` are counts by the beginning of a step.
    The rest is filled in from the record. ``id`` and ``fence`` are those of the first refusal. ``renewed``: the writer
    has taken a newer token since. ``acknowledgements`` are the oldest first. ``missing`` is the grant that the last
    denied request lacked.
    """

    key: IncidentKey
    count: int
    passed: int
    first: datetime
    last: datetime
    first_position: int
    last_position: int
    resource: str | None
    same: bool
    steps: tuple[tuple[datetime, int], ...]
    inside: int
    id: UUID | None = None
    last_id: UUID | None = None
    fence: Fence | None = None
    renewed: bool = False
    missing: MissingGrant | None = None
    acknowledgements: tuple[Acknowledgement, ...] = ()
    requests: int = 0

    @property
    def refused(self) -> int:
        return self.count - self.passed

    @property
    def is_zombie(self) -> bool:
        return self.key.reason == ZOMBIE

    @property
    def about(self) -> str | None:
        """Return the one resource of all its refusals; None if there are several, or none."""
        return self.resource if self.same else None

    @property
    def acknowledged(self) -> Acknowledgement | None:
        return self.acknowledgements[-1] if self.acknowledgements else None

    def state(self, now: datetime) -> State:
        """Return the state at ``now``, by the database's clock."""
        if self.renewed or now - self.last >= QUIET:
            return State.RESOLVED
        if self.acknowledged is None:
            return State.GOING_ON
        return State.AGAIN if self.last > self.acknowledged.at else State.ACKNOWLEDGED


def group(tallies: Iterable[Tally]) -> list[Incident]:
    """Return the incidents of some tallies, the one with the newest refusal first."""
    by_key: dict[IncidentKey, list[Tally]] = {}
    for tally in tallies:
        by_key.setdefault(tally.key, []).append(tally)
    found = [one for of_key in by_key.values() for one in _split(sorted(of_key, key=lambda one: one.first))]
    return sorted(found, key=lambda one: one.last, reverse=True)


def urgency(incident: Incident, now: datetime) -> tuple[int, bool, int, int, float]:
    """Return the place of an incident in a list: what goes on, then what is acknowledged, the worst of each first.

    The rest comes last, the newest first.
    """
    place = {State.ACKNOWLEDGED: 1, State.RESOLVED: 2}.get(incident.state(now), 0)
    age = (now - incident.last).total_seconds()
    if place == 2:
        return place, False, 0, 0, age
    reason, of_a_token = incident.key.reason, incident.key.of_a_token
    worst = OF_A_TOKEN.index(EntryReason(reason)) if of_a_token else len(OF_A_TOKEN)
    # An observed write without a token passes as it did before there was a rule. It is no emergency.
    return place, not (incident.passed and of_a_token), worst, -incident.count, age


def _split(tallies: Sequence[Tally]) -> Iterable[Incident]:
    """Yield the incidents of one key. Its tallies are in the order of time, because their steps do not overlap."""
    run: list[Tally] = []
    for tally in tallies:
        if run and tally.first - run[-1].last > GAP:
            yield _sum(run)
            run = []
        run.append(tally)
    if run:
        yield _sum(run)


def _sum(run: Sequence[Tally]) -> Incident:
    return Incident(
        key=run[0].key,
        count=sum(one.count for one in run),
        passed=sum(one.passed for one in run),
        first=min(one.first for one in run),
        last=max(one.last for one in run),
        first_position=min(one.first_position for one in run),
        last_position=max(one.last_position for one in run),
        resource=run[0].resource,
        same=all(one.same and one.resource == run[0].resource for one in run),
        steps=tuple((one.step, one.count) for one in run),
        inside=sum(one.inside for one in run),
        requests=sum(one.requests for one in run),
    )


def acknowledged_key(entry: Entry) -> IncidentKey | None:
    """Return the key of the incident that an acknowledgement is about; None for details that cannot be read."""
    details = entry.details or {}
    reason, of = details.get("reason"), details.get("of")
    if entry.kind is not Kind.ACKNOWLEDGED or not isinstance(reason, str) or not isinstance(of, str | None):
        return None
    if reason not in OF_A_TOKEN:
        return IncidentKey(reason, of)
    return IncidentKey(reason, of, entry.resource, entry.token, entry.holder)


def acknowledgement_details(incident: Incident, note: str) -> dict[str, object]:
    return {
        "incident": str(incident.id),
        "reason": incident.key.reason,
        "of": incident.key.caller,
        "writes": incident.count,
        "note": note,
    }


def with_acknowledgements(incidents: Sequence[Incident], entries: Iterable[Entry]) -> list[Incident]:
    """Give each incident its acknowledgements: those of its key after its first refusal, and before a later incident.

    ``entries`` are in any order.
    """
    by_key: dict[IncidentKey, list[Entry]] = {}
    for entry in sorted(entries, key=lambda one: one.at):
        if (key := acknowledged_key(entry)) is not None:
            by_key.setdefault(key, []).append(entry)
    starts: dict[IncidentKey, list[datetime]] = {}
    for incident in incidents:
        starts.setdefault(incident.key, []).append(incident.first)
    return [
        replace(incident, acknowledgements=_of(incident, by_key.get(incident.key, ()), starts[incident.key]))
        for incident in incidents
    ]


def _of(incident: Incident, entries: Iterable[Entry], starts: Iterable[datetime]) -> tuple[Acknowledgement, ...]:
    following = min((start for start in starts if start > incident.first), default=None)
    return tuple(
        Acknowledgement(entry.id, entry.at, entry.caller, str((entry.details or {}).get("note") or ""))
        for entry in entries
        if entry.at >= incident.first and (following is None or entry.at < following)
    )


@dataclass(frozen=True, slots=True)
class Notable:
    """How many entries of a kind there are, among the newest, and what the last one is about."""

    count: int
    last: datetime
    about: str | None


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """Refusals of one reason under one rule during one step. ``passed``: the writes took effect all the same."""

    step: datetime
    reason: str
    passed: bool
    plane: str | None
    rule: str | None
    count: int
    last: datetime

    @property
    def of_a_zombie(self) -> bool:
        """Return whether they are refused writes of zombies. Requests to the fencing API are no writes."""
        return self.reason == ZOMBIE and not self.passed and self.plane != "api"


@dataclass(frozen=True, slots=True)
class RefusalCounts:
    """The refusals of a time. ``complete``: all are counted, not only the newest."""

    counts: Sequence[RefusalCount] = ()
    complete: bool = True
    by_reason: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        sums: dict[str, int] = {}
        for one in self.counts:
            sums[one.reason] = sums.get(one.reason, 0) + one.count
        object.__setattr__(self, "by_reason", sums)

    @classmethod
    def over(cls, several: "Iterable[RefusalCounts]") -> "RefusalCounts":
        """Return the counts of several databases as one."""
        all_of = list(several)
        return cls([count for one in all_of for count in one.counts], all(one.complete for one in all_of))

    @property
    def total(self) -> int:
        return sum(one.count for one in self.counts)

    @property
    def zombies(self) -> int:
        """Return the refused writes of zombies: of overtaken tokens, and of nothing else."""
        return sum(one.count for one in self.counts if one.of_a_zombie)

    @property
    def zombie_requests(self) -> int:
        """Return the refused requests of zombies that are no writes."""
        return sum(one.count for one in self.counts if one.reason == ZOMBIE and not one.passed) - self.zombies

    @property
    def others(self) -> int:
        """Return the other refused requests."""
        return sum(one.count for one in self.counts if not one.of_a_zombie and not one.passed)

    @property
    def passed(self) -> int:
        """Return the writes that passed, and would have been refused."""
        return sum(one.count for one in self.counts if one.passed)

    @property
    def last(self) -> datetime | None:
        return max((one.last for one in self.counts), default=None)


NO_REFUSALS = RefusalCounts()
