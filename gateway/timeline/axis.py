"""The axis of time: positions of moments, ticks, and the spans one can zoom to. All in UTC. Pure."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.timeline.history import Span

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
