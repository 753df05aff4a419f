"""The timeline of one resource as a picture in numbers: the place and the text of each lane, mark and arrow. Pure.

It is made from a ``history``; ``sentences`` has the texts. Units are those of the SVG's view box; x
grows with time, y with the token. The template and the style sheet decide about shapes and colours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from gateway.fencing.record import Kind
from gateway.timeline import sentences
from gateway.timeline.history import (
    Activity,
    Axis,
    History,
    Key,
    Lane,
    LeaseSpan,
    Refusals,
    Span,
    Takeover,
    Tick,
    lanes,
    takeovers,
)
from gateway.timeline.sentences import Clock, Sentence


@dataclass(frozen=True, slots=True)
class Mark:
    """Refused writes. One links to its entry ``id``, several to their ``span``. ``noted``: all passed."""

    x: float
    width: float
    text: str | None
    label: str
    noted: bool
    id: UUID
    span: Span | None


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line along a lane. ``begins`` and ``ends`` are False if it continues beyond the picture."""

    x1: float
    x2: float
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """A lease. ``end`` tells in one word how it ended; None if it runs, or ends outside the picture."""

    x1: float
    x2: float
    label: str
    end: str | None

    @property
    def wide(self) -> bool:
        return self.x2 - self.x1 > 90


@dataclass(frozen=True, slots=True)
class Row:
    """A lane around ``y``: its texts, and the lines ``held``, and ``late`` for the time after it was overtaken."""

    lane: Lane
    y: float
    height: float
    name: str
    token: str
    note: str | None
    label: str
    held: Stroke | None
    late: Stroke | None
    bands: tuple[Band, ...]
    marks: tuple[Mark, ...]
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A takeover, down from lane to lane. ``from_lane`` is False if the overtaken party is not drawn."""

    x: float
    y1: float
    y2: float
    time: str
    flipped: bool
    label: str
    from_lane: bool
    inferred: bool


@dataclass(frozen=True, slots=True)
class Upright:
    """A moment that concerns every lane: a new epoch."""

    x: float
    text: str
    flipped: bool


@dataclass(frozen=True, slots=True)
class Flag:
    """A warning at the foot of the picture, with a link to its entry."""

    x: float
    label: str
    kind: Kind
    id: UUID


@dataclass(frozen=True, slots=True)
class Bar:
    """Activity of a part of the time, as heights, with a link to its ``span``."""

    x: float
    width: float
    refused: float
    takeovers: float
    label: str
    span: Span


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole picture with its texts. ``strip`` is empty if every party is drawn.

    ``shapes``: those that the legend has to explain, beside those of every picture.
    """

    span: Span
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    ticks: tuple[Tick, ...]
    rows: tuple[Row, ...]
    arrows: tuple[Arrow, ...]
    uprights: tuple[Upright, ...]
    flags: tuple[Flag, ...]
    flags_y: float | None
    strip: tuple[Bar, ...]
    headline: tuple[Sentence, ...]
    summary: str
    rest: str | None
    shapes: frozenset[str]
    clock: Clock
    counted: int = 0

    @property
    def troubled(self) -> bool:
        """Return whether any write was refused, or would have been."""
        return self.counted > 0 or any(row.lane.tally.refused for row in self.rows)


WIDTH, LEFT, RIGHT = 1120.0, 232.0, 1088.0
TOP, FOOT = 34.0, 44.0
ROW, LOW_ROW, MANY = 54.0, 42.0, 8
"""The height of a lane. With more than ``MANY`` lanes it is ``LOW_ROW``."""
MARK = 38.0
"""The width of a mark. Refused writes closer than that share one mark."""
STRIP = 56.0
"""The height of the strip of activity."""

_FLAGS = 36.0
_LABEL = 96.0
"""The room for a time beside an arrow."""


def draw(history: History) -> Picture:
    clock, axis = Clock(history.span), Axis(history.span, LEFT, RIGHT)
    drawn = lanes(history)
    rest = _rest(history, drawn)
    strip = _strip(history.activity, axis, clock) if rest else ()
    top = TOP + (STRIP if strip else 0.0)
    height = ROW if len(drawn) <= MANY else LOW_ROW
    rows = tuple(
        _row(lane, round(top + (place + 0.5) * height, 1), height, axis, clock) for place, lane in enumerate(drawn)
    )
    lanes_end = top + max(1, len(rows)) * height
    flags = tuple(
        Flag(axis.x(one.at), sentences.describe_remark(one, clock), one.kind, one.id)
        for one in history.remarks
        if history.span.has(one.at)
    )
    bottom = lanes_end + (_FLAGS if flags else 0.0)
    headline = sentences.headline(drawn, history.totals, clock, history.counted)
    return Picture(
        span=history.span,
        width=WIDTH,
        height=bottom + FOOT,
        left=LEFT,
        right=RIGHT,
        top=top,
        bottom=bottom,
        ticks=axis.ticks(),
        rows=rows,
        arrows=tuple(_arrows(takeovers(history), rows, axis, clock, height)),
        uprights=tuple(_uprights(takeovers(history), axis)),
        flags=flags,
        flags_y=lanes_end + _FLAGS / 2 if flags else None,
        strip=strip,
        headline=headline,
        summary=sentences.plain(headline),
        rest=rest,
        shapes=_shapes(rows, flags),
        clock=clock,
        counted=history.counted,
    )


def _shapes(rows: Sequence[Row], flags: Sequence[Flag]) -> frozenset[str]:
    marks = [mark for row in rows for mark in row.marks]
    known = {
        "several": any(mark.text for mark in marks),
        "noted": any(mark.noted for mark in marks),
        "leases": any(row.bands for row in rows),
    }
    return frozenset([*(name for name, there in known.items() if there), *(flag.kind for flag in flags)])


def _row(lane: Lane, y: float, height: float, axis: Axis, clock: Clock) -> Row:
    return Row(
        lane,
        y,
        height,
        sentences.name(lane),
        lane.party.token_text,
        sentences.note(lane),
        sentences.describe_lane(lane, clock),
        _held(lane, axis),
        _late(lane, axis),
        tuple(_bands(lane, axis, clock, labelled=height == ROW)),
        tuple(_marks(lane, axis, clock)),
        tuple(sentences.describe_lease(lane.party, lease, clock) for lease in lane.leases),
    )


def _held(lane: Lane, axis: Axis) -> Stroke | None:
    """Return the line from raising the fence to being overtaken. An epoch begun by an administrator has no holder."""
    span, since = axis.span, lane.since
    until = span.until if lane.overtaken is None else lane.overtaken.at
    if since is None or lane.begins_epoch or until < span.since or since > span.until:
        return None
    goes_on = lane.overtaken is None or until > span.until
    return Stroke(axis.x(since), axis.x(until), begins=since >= span.since, ends=not goes_on)


def _late(lane: Lane, axis: Axis) -> Stroke | None:
    """Return the line of a zombie, up to its last refused write. It begins with the takeover or the first write."""
    first, last = lane.tally.first, lane.tally.last
    if first is None or last is None:
        return None
    overtaken = lane.overtaken
    since = first if overtaken is None or first < overtaken.at else overtaken.at
    return Stroke(axis.x(since), axis.x(last), begins=axis.span.has(since))


def _bands(lane: Lane, axis: Axis, clock: Clock, *, labelled: bool) -> list[Band]:
    bands = []
    for lease in lane.leases:
        since, until = lease.since or axis.span.since, _end(lease, lane, axis)
        if until >= axis.span.since and since <= axis.span.until:
            ended = labelled and lease.end is not None and lease.until is not None and axis.span.has(lease.until)
            end = sentences.LEASE_ENDS[lease.end] if ended and lease.end is not None else None
            bands.append(Band(axis.x(since), axis.x(until), sentences.describe_lease(lane.party, lease, clock), end))
    return bands


def _end(lease: LeaseSpan, lane: Lane, axis: Axis) -> datetime:
    if lease.until is not None:
        return lease.until
    return axis.span.until if lane.overtaken is None else lane.overtaken.at


def _marks(lane: Lane, axis: Axis, clock: Clock) -> list[Mark]:
    """Return the marks of a lane from left to right. Refused writes that are too close share a mark."""
    groups: list[Refusals] = []
    for refusals in lane.refusals:
        if groups and axis.x(refusals.first) - axis.x(groups[-1].first) < MARK + 2:
            groups[-1] = _together(groups[-1], refusals)
        else:
            groups.append(refusals)
    return [_mark(lane, group, axis, clock) for group in groups]


def _together(one: Refusals, other: Refusals) -> Refusals:
    return replace(
        one,
        last=max(one.last, other.last),
        count=one.count + other.count,
        noted=one.noted + other.noted,
        requests=one.requests + other.requests,
        reason=one.reason if one.reason == other.reason else None,
    )


def _mark(lane: Lane, refusals: Refusals, axis: Axis, clock: Clock) -> Mark:
    several = refusals.count > 1
    margin = max((refusals.last - refusals.first) / 4, timedelta(milliseconds=5))
    return Mark(
        axis.x(refusals.first),
        MARK - 2,
        _short_number(refusals.count) if several else None,
        sentences.describe_refusals(lane, refusals, clock),
        noted=refusals.noted == refusals.count,
        id=refusals.id,
        span=Span(refusals.first - margin, refusals.last + margin) if several else None,
    )


def _arrows(known: Sequence[Takeover], rows: Sequence[Row], axis: Axis, clock: Clock, height: float) -> list[Arrow]:
    """Return an arrow for each takeover within the span whose new holder is drawn, and whose old one is known."""
    arrows = []
    by_key = {row.lane.party.key: row for row in rows}
    for takeover in known:
        target = by_key.get(takeover.by.key)
        if target is None or not axis.span.has(takeover.at):
            continue
        source = _source(takeover, rows, by_key)
        if source is None and takeover.over is None:
            continue
        x = axis.x(takeover.at)
        arrows.append(
            Arrow(
                x,
                round(target.y - height * 0.62, 1) if source is None else source.y,
                target.y,
                clock.time(takeover.at),
                flipped=x > RIGHT - _LABEL,
                label=sentences.describe_takeover(takeover, clock),
                from_lane=source is not None,
                inferred=takeover.inferred,
            )
        )
    return arrows


def _source(takeover: Takeover, rows: Sequence[Row], by_key: Mapping[Key, Row]) -> Row | None:
    """Return the overtaken lane: the one on record, or else the last one that is known to be overtaken."""
    if takeover.over is not None and takeover.over.key in by_key:
        return by_key[takeover.over.key]
    overtaken = [row for row in rows if row.lane.overtaken == takeover and row.lane.since is not None]
    return overtaken[-1] if overtaken else None


def _uprights(known: Sequence[Takeover], axis: Axis) -> list[Upright]:
    """Return the beginnings of epochs: by an administrator, or by the first token of a new epoch."""
    uprights: list[Upright] = []
    for before, one in zip([None, *known], known, strict=False):
        assert one.by.token is not None
        epoch = one.by.token.epoch
        begins = one.kind is Kind.EPOCH or (
            before is not None and before.by.token is not None and before.by.token.epoch < epoch
        )
        if begins and axis.span.has(one.at) and all(f"epoch {epoch}" != upright.text for upright in uprights):
            x = axis.x(one.at)
            uprights.append(Upright(x, f"epoch {epoch}", flipped=x > RIGHT - _LABEL))
    return uprights


def _strip(activity: Sequence[Activity], axis: Axis, clock: Clock) -> tuple[Bar, ...]:
    most_refused = max((piece.refused for piece in activity), default=0)
    most_takeovers = max((piece.takeovers for piece in activity), default=0)
    bars = []
    for piece in activity:
        if not piece.refused and not piece.takeovers:
            continue
        x1, x2 = axis.x(piece.span.since), axis.x(piece.span.until)
        bars.append(
            Bar(
                x1,
                round(max(1.0, x2 - x1 - 1.0), 1),
                _height(piece.refused, most_refused),
                _height(piece.takeovers, most_takeovers),
                sentences.describe_activity(piece, clock),
                piece.span,
            )
        )
    return tuple(bars)


def _height(count: int, most: int) -> float:
    """Return the height of a bar: zero for none, visible for any other count."""
    return round(max(2.0, count / most * (STRIP / 2 - 8)), 1) if count else 0.0


def _rest(history: History, drawn: Sequence[Lane]) -> str | None:
    """Describe the parties that are not drawn; None if all are."""
    totals = history.totals
    if not history.crowded:
        return None
    others = totals.parties - len(history.parties)
    zombies = totals.zombies - sum(1 for lane in drawn if lane.tally.refused)
    refused = totals.refused - sum(lane.tally.refused for lane in drawn)
    requests = totals.requests - sum(lane.tally.requests for lane in drawn)
    return sentences.describe_rest(others, max(0, zombies), max(0, refused), max(0, requests))


def _short_number(count: int) -> str:
    """Return a count that fits on a mark: ``12``, ``1.2k``, ``3M``."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 10 * size else f"{count // size}{unit}"
    return str(count)
