"""Ticks are at round moments for any span, and spans lead to others."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.timeline import axis
from gateway.timeline.axis import Axis
from gateway.timeline.history import Span
from tests.web.timeline_samples import NOON, at


def axis_of(seconds: float) -> Axis:
    return Axis(Span(NOON, at(seconds)), 0.0, 1000.0)


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.5, ["12:00:00.000", "12:00:00.100", "12:00:00.200", "12:00:00.300", "12:00:00.400", "12:00:00.500"]),
        (30, ["12:00:00", "12:00:05", "12:00:10", "12:00:15", "12:00:20", "12:00:25", "12:00:30"]),
        (3600, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        (5 * 86400, ["2 Mar 2026", "3 Mar 2026", "4 Mar 2026", "5 Mar 2026", "6 Mar 2026"]),
    ],
)
def test_ticks_are_round(seconds: float, labels: list[str]) -> None:
    assert [tick.label for tick in axis_of(seconds).ticks()] == labels


def test_a_day_is_said_where_it_begins() -> None:
    ticks = axis_of(86400).ticks()
    assert [(tick.label, tick.day) for tick in ticks if tick.day] == [("12:00", "1 Mar 2026"), ("00:00", "2 Mar 2026")]


@given(st.floats(0, 170 * 365 * 86400), st.timedeltas(timedelta(microseconds=1), timedelta(days=70_000)))
def test_there_are_never_too_many_ticks_and_all_are_inside(seconds: float, length: timedelta) -> None:
    since = at(seconds)
    of = Axis(Span(since, since + length), 0.0, 1000.0)
    ticks = of.ticks()
    assert len(ticks) <= 8
    assert all(of.span.has(tick.at) and 0.0 <= tick.x <= 1000.0 for tick in ticks)


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e7))
def test_a_fitted_span_has_all_that_happened_and_nothing_to_come(
    first: float, length: float, since_then: float
) -> None:
    begin, end, now = at(first), at(first + length), at(first + length + since_then)
    span = axis.fitted(begin, end, now)
    assert span.since <= begin
    assert end <= span.until <= max(now, end + axis.SHORTEST / 20)
    assert span.length >= axis.SHORTEST


def test_from_one_span_to_another() -> None:
    span, now = Span(at(0), at(100)), at(1000)
    assert axis.wider(span, now) == Span(at(-150), at(250))
    assert axis.wider(span, at(100)) == Span(at(-300), at(100))
    assert axis.narrower(span) == Span(at(25), at(75))
    assert axis.narrower(Span(at(0), at(0.01))) is None
    assert axis.earlier(span) == Span(at(-50), at(50))
    assert axis.later(span, now) == Span(at(50), at(150))
    assert axis.later(span, at(120)) == Span(at(20), at(120))
    assert axis.later(span, at(100)) is None
    assert axis.earlier(Span(axis.EARLIEST, at(0))) is None
