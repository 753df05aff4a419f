"""The texts of the timeline: its headline, and a sentence for each lane, mark and arrow. Pure.

A sentence consists of text and parties. Names of parties come from outside, so pages mark them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from gateway.fencing.incident import attempts, counted_only, fate, nothing_refused
from gateway.fencing.record import Kind
from gateway.text import span, visible
from gateway.timeline.history import (
    Activity,
    Lane,
    LeaseSpan,
    Party,
    Refusals,
    Remark,
    Span,
    Takeover,
    Totals,
    format_day,
    format_time,
)

Sentence: TypeAlias = tuple[str | Party, ...]

_FINE = timedelta(seconds=20)
"""In a shorter span, times have milliseconds."""

_NAME_LENGTH = 24

_REMARKS = {
    Kind.BYPASS: "Changed past the gateway",
    Kind.GUARD_REFUSED: "The guard refused writes, and only their number is known",
    Kind.SETTLED: "A pending write was prevented from taking effect",
}
LEASE_ENDS = {
    Kind.LEASE_RELEASED: "released",
    Kind.LEASE_EXPIRED: "expired",
    Kind.LEASE_BROKEN: "broken",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """Formats moments within one span: at its precision, and with their day unless it is the last one."""

    span: Span

    def time(self, moment: datetime) -> str:
        return format_time(moment, timedelta(milliseconds=1) if self.span.length < _FINE else timedelta(seconds=1))

    def say(self, moment: datetime) -> str:
        """Return the time of day, with the day if it is not the last one of the span."""
        time = self.time(moment)
        same_day = moment.astimezone(UTC).date() == self.span.until.astimezone(UTC).date()
        return time if same_day else f"{time} on {format_day(moment)}"


def party_text(party: Party) -> str:
    """Return a party in plain text: ``writer-a (token 33)``."""
    return f"{party.name} ({party.token_text})"


def plain(sentences: Sequence[Sentence]) -> str:
    return " ".join(
        "".join(party_text(piece) if isinstance(piece, Party) else piece for piece in one) for one in sentences
    )


def headline(lanes: Sequence[Lane], totals: Totals, clock: Clock, counted: int = 0) -> tuple[Sentence, ...]:
    """Return the headline in a few sentences, the worst zombie first. ``totals`` counts undrawn parties, too.

    ``counted`` are refusals by guards of which only the number is known.
    """
    troubled = sorted((lane for lane in lanes if lane.tally.refused), key=lambda lane: -lane.tally.refused)
    if not troubled:
        return (
            (nothing_refused(counted, " in this time" if counted else " here in this time"),),
            *_standing(lanes, clock),
        )
    worst = troubled[0]
    sentences: list[Sentence] = [(*_zombie(worst, clock), f" {fate(worst.tally.refused, worst.tally.noted)}")]
    others = max(totals.zombies, len(troubled)) - 1
    if others:
        refused = max(totals.refused, sum(lane.tally.refused for lane in troubled)) - worst.tally.refused
        noted = max(totals.noted, sum(lane.tally.noted for lane in troubled)) - worst.tally.noted
        requests = max(totals.requests, sum(lane.tally.requests for lane in troubled)) - worst.tally.requests
        subject = "One other writer" if others == 1 else f"{others:,} other writers"
        sentences.append((f"{subject} tried {attempts(refused, requests, 'more ')}. {fate(refused, noted)}",))
    if counted:
        sentences.append((counted_only(counted, " in this time"),))
    return (*sentences, *_standing(lanes, clock))


def _zombie(lane: Lane, clock: Clock) -> Sentence:
    tally, overtaken = lane.tally, lane.overtaken
    assert tally.first is not None
    assert tally.last is not None
    writes = attempts(tally.refused, tally.requests)
    if overtaken is None or tally.first < overtaken.at:
        return lane.party, f" tried {writes} {_standing_of(lane)}, {_between(tally.first, tally.last, clock)}."
    at = clock.say(overtaken.at)
    by = "no later than " if overtaken.inferred else "at "
    more = attempts(tally.refused, tally.requests, "more ")
    begun: Sentence
    if overtaken.kind is Kind.EPOCH:
        begun = lane.party, f" was ruled out by a new epoch ({overtaken.by.token_text}) {by}{at}"
    else:
        begun = lane.party, " was overtaken by ", overtaken.by, f" {by}{at}"
    return *begun, f" and tried {more} {_lag(overtaken, tally.first, tally.last)}."


def _standing_of(lane: Lane) -> str:
    """Explain why writes were refused although their writer had not been overtaken."""
    if lane.token is None:
        return "without a token"
    return "that it was not to send" if lane.since is not None else "with a token that it had not taken over with"


def _lag(overtaken: Takeover, first: datetime, last: datetime) -> str:
    if first == last:
        return f"{span(last - overtaken.at)} later"
    return f"during the next {span(last - overtaken.at)}"


def _between(first: datetime, last: datetime, clock: Clock) -> str:
    return f"at {clock.say(first)}" if first == last else f"from {clock.say(first)} to {clock.say(last)}"


def _standing(lanes: Sequence[Lane], clock: Clock) -> tuple[Sentence, ...]:
    holding = next((lane for lane in lanes if lane.holds), None)
    if holding is None or holding.since is None:
        return ()
    if holding.begins_epoch:
        return ((f"No holder has taken it over since the new epoch began at {clock.say(holding.since)}.",),)
    return ((holding.party, f" holds the newest token, since {clock.say(holding.since)}."),)


def describe_refusals(lane: Lane, refusals: Refusals, clock: Clock) -> str:
    outcome = "Passed, would have been refused" if refusals.noted == refusals.count else "Refused"
    reason = f" ({refusals.reason})" if refusals.reason else ""
    late = ""
    if lane.overtaken is not None and refusals.first >= lane.overtaken.at:
        late = f", {span(refusals.first - lane.overtaken.at)} after it was overtaken"
    if refusals.count == 1:
        one = "a request (no write)" if refusals.requests else "a write"
        return f"{outcome}: {one} of {party_text(lane.party)} at {clock.say(refusals.first)}{late}{reason}."
    times = _between(refusals.first, refusals.last, clock)
    return (
        f"{outcome}: {attempts(refusals.count, refusals.requests)} of {party_text(lane.party)} {times}{late}{reason}."
    )


def describe_takeover(takeover: Takeover, clock: Clock) -> str:
    at = f"{'No later than ' if takeover.inferred else ''}{clock.say(takeover.at)}"
    if takeover.kind is Kind.EPOCH:
        return f"{at}: {takeover.by.caller or 'an administrator'} began a new epoch, {takeover.by.token_text}."
    if takeover.over is None:
        return f"{at}: {party_text(takeover.by)} took over."
    held = ""
    if takeover.over_since is not None:
        held = f", whose token had been the newest for {span(takeover.at - takeover.over_since)}"
    barrier = " by a barrier" if takeover.kind is Kind.BARRIER else ""
    return f"{at}: {party_text(takeover.by)} took over{barrier} from {party_text(takeover.over)}{held}."


def describe_lane(lane: Lane, clock: Clock) -> str:
    parts = [party_text(lane.party) + "."]
    if lane.since is not None:
        parts.append(f"Took over at {clock.say(lane.since)}.")
    else:
        parts.append("It is not known to have taken over.")
    if lane.overtaken is not None:
        parts.append(f"Overtaken by {party_text(lane.overtaken.by)} at {clock.say(lane.overtaken.at)}.")
    elif lane.holds:
        parts.append("Its token is the newest.")
    if lane.tally.refused:
        parts.append(f"{attempts(lane.tally.refused, lane.tally.requests)} refused.")
    return " ".join(parts)


def name(lane: Lane) -> str:
    """Return the name beside a lane: short, and with hidden characters visible."""
    return "new epoch" if lane.begins_epoch else _shortened(lane.party.name)


def _shortened(name: str) -> str:
    shown = visible(name)
    return shown if len(shown) <= _NAME_LENGTH else shown[: _NAME_LENGTH - 1] + "…"


def note(lane: Lane) -> str | None:
    """Return the note beside the token of a lane."""
    if lane.begins_epoch:
        return f"begun by {_shortened(lane.party.caller or 'an administrator')}"
    if lane.holds:
        return "newest token"
    passed, refused = lane.tally.noted, lane.tally.refused - lane.tally.noted
    counted = [f"{count:,} {outcome}" for count, outcome in ((refused, "refused"), (passed, "passed")) if count]
    return ", ".join(counted) or None


def describe_lease(party: Party, lease: LeaseSpan, clock: Clock) -> str:
    since = "from before this record" if lease.since is None else f"granted at {clock.say(lease.since)}"
    if lease.until is None or lease.end is None:
        return f"Lease of {party_text(party)}, {since}."
    return f"Lease of {party_text(party)}, {since}, {LEASE_ENDS[lease.end]} at {clock.say(lease.until)}."


def describe_remark(remark: Remark, clock: Clock) -> str:
    times = "" if remark.count == 1 else f", {remark.count:,} times"
    return f"{_REMARKS[remark.kind]}{times}, {clock.say(remark.at)}."


def describe_activity(activity: Activity, clock: Clock) -> str:
    when = f"From {clock.say(activity.span.since)} to {clock.say(activity.span.until)}"
    return f"{when}: {attempts(activity.refused, activity.requests, 'refused ')}, {activity.takeovers:,} takeovers."


def describe_rest(others: int, zombies: int, refused: int, requests: int) -> str:
    """Describe the parties that are not drawn: ``1,240 more holders without refused writes``."""
    holders = "holder is" if others == 1 else "holders are"
    quiet = others - zombies
    if not zombies:
        return f"{others:,} more {holders} not drawn, none of them with refused writes."
    had = f"{zombies:,} with {attempts(refused, requests, 'refused ')}"
    return f"{others:,} more {holders} not drawn: {had}" + (f", {quiet:,} without." if quiet else ".")
