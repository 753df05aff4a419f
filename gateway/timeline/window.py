"""Which span of time a timeline shows, and where one can go from there. Pure."""

from datetime import UTC, datetime, timedelta

from gateway.timeline.history import Span

DAY = timedelta(days=1)
"""Without another wish, a timeline is of the last day on which something of note happened."""

EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
"""What can be asked for."""

SHORTEST = timedelta(seconds=2)
_NARROWEST = timedelta(milliseconds=20)
_MARGIN = 0.12


def fitted(first: datetime, last: datetime, now: datetime) -> Span:
    """A span around all that happened from ``first`` to ``last``, with some room on both sides, none of it to come."""
    margin = max((last - first) * _MARGIN, SHORTEST / 2)
    until = min(last + margin, max(now, last + SHORTEST / 20))
    return Span(min(first - margin, until - SHORTEST), until)


def wider(span: Span, now: datetime) -> Span:
    """Four times as much, with the same middle as far as that is possible."""
    until = min(span.until + span.length * 1.5, max(now, span.until))
    return Span(max(until - span.length * 4, EARLIEST), until)


def narrower(span: Span) -> Span | None:
    """The half in the middle; None where it is too little to be worth it."""
    if span.length < _NARROWEST:
        return None
    return Span(span.since + span.length / 4, span.until - span.length / 4)


def earlier(span: Span) -> Span | None:
    """Half a span before; None where no time is."""
    since = span.since - span.length / 2
    return None if since < EARLIEST else Span(since, since + span.length)


def later(span: Span, now: datetime) -> Span | None:
    """Half a span after, as far as there has been any time yet; None where there has not."""
    by = min(span.length / 2, now - span.until)
    return None if by < span.length / 20 else Span(span.since + by, span.until + by)
