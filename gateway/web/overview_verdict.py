"""The verdict of the overview: what is wrong, the worst first, and what to do about it. Pure.

A sentence consists of text, names from outside and moments, so that a page can mark both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TypeAlias
from urllib.parse import urlencode

from gateway.errors import GatewayError, Unavailable
from gateway.fencing.incident import (
    NO_REFUSALS,
    ZOMBIE,
    Incident,
    Notable,
    RefusalCounts,
    State,
    attempts,
    counted_only,
    fate,
    nothing_refused,
    urgency,
)
from gateway.fencing.record import EntryReason
from gateway.findings import CheckStatus, Name, Notice, Piece, Sentence, Standing, question
from gateway.journal.contents import ADVICE, Problem
from gateway.text import age, visible
from gateway.web.advice import next_step, reason_words

RECENT = timedelta(hours=1)
"""A change past the gateway that is older is no longer the first thing to look at."""
STORM = 100
"""Denied requests of one incident. A caller that lacks so many grants is broken, or hostile."""
_MOST = 5


Level: TypeAlias = Literal["bad", "warned", "good"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: a sentence, what to do, and a link to more (``address`` and ``title``), if any.

    ``database``: the one where it is wrong, if the verdict is about several. ``count``: how many things it stands for.
    """

    level: Level
    sentence: Sentence
    advice: Sentence
    address: str | None = None
    title: str = ""
    database: str | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a verdict, at ``now``. ``since``: the beginning of the period, ``period``: its name.

    ``health``: the state of each service, and ``troubles``: its error. ``journal``: its trouble. ``buckets``: those
    that take no write, with the reason. ``webhooks``: those that do not get through, with the time since. ``alarms``:
    those that are on. ``refusals`` are those of the period, ``accepted`` is None if it is not known.
    ``database``: its name, if there are several.
    """

    now: datetime
    since: datetime
    period: str
    health: Mapping[str, str]
    troubles: Mapping[str, GatewayError] | None = None
    journal: str | None = None
    incidents: Sequence[Incident] = ()
    bypasses: Notable | None = None
    guard: Notable | None = None
    buckets: Mapping[str, str] | None = None
    standing: Standing | None = None
    webhooks: Mapping[str, datetime | None] | None = None
    alarms: Mapping[str, datetime] | None = None
    refusals: RefusalCounts = NO_REFUSALS
    accepted: int | None = None
    database: str | None = None


def assess(*several: Facts) -> tuple[Finding, ...]:
    """Return what is wrong, the worst first. If nothing is, return the one finding that says so.

    Outages come first, then changes that no fence has seen, then incidents that are going on. Of these, zombies whose
    writes took effect come first. Delays are next, and acknowledged incidents are last. With facts of several databases
    the worst decides, wherever it is.
    """
    found = (
        *_each(_outages, several),
        *_each(partial(_bypasses, recent=True), several),
        *_incidents(several),
        *_each(_guard, several),
        *_each(_backlogs, several),
        *_each(partial(_bypasses, recent=False), several),
        *_acknowledged(several),
    )
    return found or (_quiet(_summed(several)),)


def _each(find: Callable[[Facts], Iterator[Finding]], several: Sequence[Facts]) -> Iterator[Finding]:
    for facts in several:
        for finding in find(facts):
            yield replace(finding, database=facts.database)


def _summed(several: Sequence[Facts]) -> Facts:
    """Return the facts of several databases in which nothing is wrong."""
    if len(several) == 1:
        return several[0]
    return replace(
        several[0],
        refusals=RefusalCounts.over(one.refusals for one in several),
        accepted=sum(one.accepted or 0 for one in several),
        guard=_counted(several),
        database=None,
    )


def _counted(several: Sequence[Facts]) -> Notable | None:
    found = [one.guard for one in several if one.guard is not None]
    newest = max(found, key=lambda one: one.last, default=None)
    return None if newest is None else replace(newest, count=sum(one.count for one in found))


def _found(name: str, address: str | None = None, title: str = "", **pieces: Piece) -> Finding:
    return _noted(question(name).find(**pieces), address, title)


def _noted(notice: Notice, address: str | None = None, title: str = "") -> Finding:
    level: Level = "bad" if notice.status is CheckStatus.PROBLEM else "warned"
    return Finding(level, (*notice.sentence, "."), (notice.advice,), address, title)


def _outages(facts: Facts) -> Iterator[Finding]:
    for service, state in facts.health.items():
        if state != "ok":
            name = {"postgres": "The database", "s3": "The store"}[service]
            error = (facts.troubles or {}).get(service, Unavailable(f"{name} cannot be reached."))
            yield _found(service, told=visible(error.told).removesuffix("."), remedy=visible(error.remedy))
    if facts.journal is not None:
        known = facts.journal in list(Problem)
        remedy = ADVICE[Problem(facts.journal)] if known else "Run gateway doctor: it says why."
        yield _found("run", trouble=Name(facts.journal), remedy=remedy)
    for bucket, reason in (facts.buckets or {}).items():
        yield _found("buckets", bucket=Name(bucket), reason=Name(reason))


def _bypasses(facts: Facts, *, recent: bool) -> Iterator[Finding]:
    found = facts.bypasses
    if found is None or (facts.now - found.last <= RECENT) is not recent:
        return
    finding = _found(
        "bypasses",
        _link("/ui/events", facts, kind="bypass"),
        "The changes",
        changes=_number(found.count, "change was made", "changes were made"),
        period=facts.period,
        of=() if found.about is None else (", the last of ", Name(found.about, resource=True)),
        last=found.last,
    )
    yield finding if recent else replace(finding, level="warned")


def _ranked(several: Sequence[Facts], *states: State) -> list[tuple[Facts, Incident]]:
    found = [(facts, one) for facts in several for one in facts.incidents if one.state(facts.now) in states]
    return sorted(found, key=lambda one: urgency(one[1], one[0].now))


def _incidents(several: Sequence[Facts]) -> Iterator[Finding]:
    going_on = _ranked(several, State.GOING_ON, State.AGAIN)
    for facts, incident in going_on[:_MOST]:
        yield _incident(incident, facts)
    if len(going_on) > _MOST:
        yield Finding(
            "bad",
            (f"{len(going_on) - _MOST:,} more incidents are going on.",),
            ("Look at the list: one cause often has many.",),
            _link("/ui/incidents", min((facts for facts, _ in going_on), key=lambda facts: facts.since), of=None),
            "All incidents",
            count=len(going_on) - _MOST,
        )


def _acknowledged(several: Sequence[Facts]) -> Iterator[Finding]:
    for facts, incident in _ranked(several, State.ACKNOWLEDGED)[:_MOST]:
        note = incident.acknowledged
        assert note is not None
        by: Sentence = (", and ", Name(note.by or "a caller"), " acknowledged it at ", note.at, ".")
        advice = ("No such write has come since. Wait, or read the note.",)
        yield _about(incident, facts, "warned", (*_wrote(incident, facts.now), *by), advice)


def _about(incident: Incident, facts: Facts, level: Level, sentence: Sentence, advice: Sentence) -> Finding:
    of = "" if facts.database is None else f"?{urlencode({'of': facts.database})}"
    return Finding(level, sentence, advice, f"/ui/incidents/{incident.id}{of}", "The incident", facts.database)


def writer(incident: Incident) -> Name:
    return Name(incident.key.holder or incident.key.caller or "a writer without a name")


def _incident(incident: Incident, facts: Facts) -> Finding:
    key, now = incident.key, facts.now
    if key.reason == ZOMBIE:
        sentence, advice = _zombie(incident, now)
    elif key.of_a_token:
        sentence, advice = _other_token(incident, now)
    else:
        sentence, advice = _of_a_caller(incident)
    if incident.passed or key.reason == ZOMBIE:
        sentence = (*sentence, f" {fate(incident.count, incident.passed)}")
    if incident.state(now) is State.AGAIN and (note := incident.acknowledged) is not None:
        seen: Sentence = (" ", Name(note.by or "A caller"), " acknowledged it at ", note.at, "; it has gone on since.")
        sentence = (*sentence, *seen)
    serious = key.of_a_token or incident.refused >= STORM
    return _about(incident, facts, "bad" if serious else "warned", sentence, advice)


def _zombie(incident: Incident, now: datetime) -> tuple[Sentence, Sentence]:
    who, fence, key = writer(incident), incident.fence, incident.key
    late = attempts(incident.count, incident.requests, "late ")
    over: Sentence = ()
    if fence is not None:
        over = ("; ", Name(fence.raised_by), f" took over with token {fence.token} at ", fence.raised_at)
    said = (*_wrote(incident, now), f" with token {key.token}", *over, f". It tried {late}.")
    if incident.passed:
        return said, ("Stop ", who, " now, and compare what it wrote with the state of its successor.")
    return said, ("Stop ", who, ", or let it acquire its lock again.")


def _other_token(incident: Incident, now: datetime) -> tuple[Sentence, Sentence]:
    token, reason = f" with token {incident.key.token}", incident.key.reason
    what: Sentence = (token, ", which the policy of the resource refuses.")
    if reason == EntryReason.TOKEN_DUPLICATE:
        fence = incident.fence
        holder: Sentence = () if fence is None else (", which ", Name(fence.raised_by), " has shown before")
        what = (token, *holder, ": two holders have one token.")
    elif reason == EntryReason.TOKEN_USED:
        what = (" again", token, ", which may write once.")
    return (*_wrote(incident, now), *what), (next_step(reason),)


def _of_a_caller(incident: Incident) -> tuple[Sentence, Sentence]:
    caller = Name(incident.key.caller or "an unknown caller")
    requests = _number(incident.count, "request", "requests")
    reason, missing = Name(reason_words(incident.key.reason)), incident.missing
    grant: Sentence = () if missing is None else (f"; the last lacks {missing.action} for ", Name(missing.on))
    if incident.passed:
        advice = "Run its program under a lock before the rule enforces (docs/guides/retrofit.md)."
        if incident.key.reason == EntryReason.DENIED:
            advice = "Add the grant, or a rule with another resource, before the rule enforces (docs/grants.md)."
        return (caller, f" made {requests} that a rule refuses once it enforces: ", reason, *grant, "."), (advice,)
    if incident.key.reason == EntryReason.DENIED:
        advice = next_step(EntryReason.DENIED)
        return (caller, f" is denied {requests} that no grant covers", *grant, "."), (advice,)
    advice = "Correct the client: each refusal has told it what is wrong."
    return (caller, f" has {requests} refused: ", reason, "."), (advice,)


def _wrote(incident: Incident, now: datetime) -> Sentence:
    """Say when the writer wrote last: it may have ended since."""
    did = " sent a request for " if incident.requests == incident.count else " wrote "
    return writer(incident), did, _resource(incident), f" {age(incident.last, now)}"


def _resource(incident: Incident) -> Name:
    return Name("several resources") if incident.about is None else Name(incident.about, resource=True)


def _guard(facts: Facts) -> Iterator[Finding]:
    found = facts.guard
    if found is not None and facts.now - found.last <= RECENT:
        last = (" The last was noted at ", found.last, ". Nothing of them was written")
        yield _counted_refusals(facts, counted_only(found.count), *last)


def _counted_refusals(facts: Facts, *told: str | datetime) -> Finding:
    return _found("counted refusals", _link("/ui/events", facts, kind="guard-refused"), "The refusals", told=told)


def _backlogs(facts: Facts) -> Iterator[Finding]:
    for one in () if facts.standing is None else facts.standing.notices:
        if one.notable:
            yield _noted(one)
    for name, since in (facts.webhooks or {}).items():
        yield _found("webhooks", webhook=Name(name), begun=() if since is None else (" since ", since))
    for name, on_since in (facts.alarms or {}).items():
        yield _found("alarms", _link("/ui/incidents", facts), "The incidents", alarm=Name(name), since=on_since)


def _quiet(facts: Facts) -> Finding:
    idle = " No write was accepted either." if facts.accepted == 0 else ""
    counted = 0 if facts.guard is None else facts.guard.count
    if not facts.refusals.total:
        told = nothing_refused(counted, f" in {facts.period}")
        if counted:
            return _counted_refusals(facts, f"{told}{idle}".removesuffix("."))
        return Finding("good", (f"All is quiet: {told[0].lower()}{told[1:]}{idle}",), ("Nothing to do.",))
    last: Sentence = () if facts.refusals.last is None else (", the last at ", facts.refusals.last)
    return Finding(
        "good",
        (
            f"Nothing is going on. In {facts.period} {_past(facts.refusals)}",
            *last,
            ". Every incident is resolved.",
            idle,
        ),
        ("Nothing to do now.",),
        _link("/ui/incidents", facts),
        "The incidents",
    )


def _past(found: RefusalCounts) -> str:
    counts = (
        (found.zombies, "write of a zombie was refused", "writes of zombies were refused"),
        (found.others, "other request was refused", "other requests were refused"),
        (found.passed, "late write passed", "late writes passed"),
    )
    return _joined([_number(*one) for one in counts if one[0]])


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _link(path: str, facts: Facts, **parameters: str | None) -> str:
    given = {"of": facts.database, **parameters, "since": facts.since.isoformat()}
    return f"{path}?{urlencode({name: value for name, value in given.items() if value is not None})}"
