"""Bars over time, as numbers for an SVG: charts of the overview, and the small ones beside incidents. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gateway.text import plain_time

HEIGHT = 100
WIDTH = 10
"""Units of the picture for the highest bar, and for one column. A page stretches both to their place."""
_LABELS = 4
_LONG = timedelta(days=10)
"""A label over more than this needs no time of the day."""
SPARKS = 48
"""Columns of a small chart."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of a column: ``series`` is the name of its colour; ``top`` and ``height`` are in units."""

    series: str
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Column:
    """One step of time. ``partial``: it is not over, so its numbers will grow. ``title`` says its numbers."""

    left: int
    bars: tuple[Bar, ...]
    address: str | None
    title: str
    partial: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns from left to right. ``highest`` is the value of the highest; ``labels`` name moments along the axis."""

    columns: tuple[Column, ...]
    highest: int
    labels: tuple[str, ...]
    width: int


@dataclass(frozen=True, slots=True)
class Step:
    since: datetime
    until: datetime
    values: Sequence[tuple[str, str, int]]
    address: str | None = None


def draw(steps: Sequence[Step], now: datetime) -> Chart:
    """Return the chart of some steps of equal length; the bars of a step stand upon each other."""
    highest = max((sum(count for _, _, count in step.values) for step in steps), default=0)
    columns = tuple(_column(number, step, highest, now) for number, step in enumerate(steps))
    return Chart(columns, highest, _labels(steps), max(1, len(steps)) * WIDTH)


def _column(number: int, step: Step, highest: int, now: datetime) -> Column:
    bars, top = list[Bar](), float(HEIGHT)
    for series, _, count in step.values:
        if count:
            # Few refusals beside thousands must still be seen.
            height = max(count / highest * HEIGHT, 2.0)
            top = max(0.0, top - height)
            bars.append(Bar(series, round(top, 2), round(height, 2)))
    partial = step.until > now
    said = ", ".join(f"{count:,} {words}" for _, words, count in step.values if count) or "none"
    until = f"{plain_time(now)}, not complete" if partial else plain_time(step.until)
    title = f"{plain_time(step.since)} to {until}: {said}"
    return Column(number * WIDTH, tuple(bars), step.address, title, partial)


def _labels(steps: Sequence[Step]) -> tuple[str, ...]:
    if not steps:
        return ()
    since, until = steps[0].since, steps[-1].until
    # Within a week the labels are no whole days apart, so a date alone would be wrong by hours.
    shown = slice(11, 16) if until - since <= timedelta(days=2) else slice(5, 16 if until - since <= _LONG else 10)
    moments = [since + (until - since) * number / _LABELS for number in range(_LABELS + 1)]
    return tuple(plain_time(moment)[shown] for moment in moments)


def sparks(counts: Iterable[tuple[datetime, int]], since: datetime, until: datetime, columns: int = SPARKS) -> Chart:
    length = max(until - since, timedelta(microseconds=columns)) / columns
    sums = [0] * columns
    for at, count in counts:
        sums[min(max(int((at - since) / length), 0), columns - 1)] += count
    steps = [
        Step(since + length * number, since + length * (number + 1), [("refused", "refused", count)])
        for number, count in enumerate(sums)
    ]
    # All of them are over. The calendar may have no later moment.
    return draw(steps, steps[-1].until)
