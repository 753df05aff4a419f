"""Timelines: lanes of a resource's history, ticks at round moments, and a sentence for each shape."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.timeline import history
from gateway.timeline.history import Axis, LeaseSpan, Party, Span, Takeover, lanes
from gateway.timeline.picture import LEFT, MARK, RIGHT, draw
from tests.web.timeline_samples import NOON, Story, at, party

A, B = party(33, "writer-a"), party(34, "writer-b")


def overtaken_once() -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(100, B)
    story.refuses(110, A)
    story.refuses(160, A)
    return story


def test_another_holder_of_the_same_token_comes_after_it_and_writes_without_a_token_come_last() -> None:
    story = overtaken_once()
    story.refuses(50, party(None, "careless"), "token-required", noted=True)
    story.refuses(170, party(34, "a-twin"), "token-duplicate")
    found = lanes(story.history(0, 200))
    assert [lane.party.holder for lane in found] == ["writer-a", "writer-b", "a-twin", "careless"]
    assert found[2].since is None


def test_a_takeover_that_is_not_on_record_is_inferred_from_the_fence() -> None:
    """An inferred takeover counts less than one on record."""
    known, unknown = overtaken_once(), overtaken_once()
    known.takeovers.append(Takeover(at(90), Kind.RAISED, B, A, None, inferred=True))
    unknown.takeovers.clear()
    for story, inferred in ((known, False), (unknown, True)):
        first, _ = lanes(story.history(0, 200))
        assert first.overtaken is not None
        assert (first.overtaken.by, first.overtaken.at, first.overtaken.inferred) == (B, at(100), inferred)


def test_leases_have_a_beginning_and_an_end_as_far_as_they_are_known() -> None:
    story = overtaken_once()
    story.lease(10, Kind.LEASE_EXPIRED, A)
    story.lease(20, Kind.LEASE_GRANTED, A)
    story.lease(30, Kind.LEASE_BROKEN, A)
    story.lease(90, Kind.LEASE_GRANTED, B)
    first, second = lanes(story.history(0, 200))
    assert first.leases == (LeaseSpan(None, at(10), Kind.LEASE_EXPIRED), LeaseSpan(at(20), at(30), Kind.LEASE_BROKEN))
    assert second.leases == (LeaseSpan(at(90), None, None),)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["raise", "barrier", "epoch", "stale", "twin", "nameless", "nothing"]),
        st.floats(0.001, 5000, allow_nan=False),
        st.integers(0, 5),
    ),
    max_size=40,
)


def play(steps: list[tuple[str, float, int]]) -> Story:
    """Any history that a fence can have."""
    story, now, past = Story(), 0.0, [Party(Token(0, 1), "writer-1", "worker")]
    story.raises(now, past[0])
    for what, later, which in steps:
        now += later
        assert story.fence is not None
        epoch, value = story.fence.token.epoch, story.fence.token.value
        old = past[which % len(past)]
        if what in ("raise", "barrier"):
            past.append(Party(Token(epoch, value + 1 + which), f"writer-{value + 1 + which}", "worker"))
            story.raises(now, past[-1], Kind.BARRIER if what == "barrier" else Kind.RAISED)
        elif what == "epoch":
            past.append(Party(Token(epoch + 1, 0), None, "operator"))
            story.raises(now, past[-1], Kind.EPOCH)
        elif what == "twin":
            story.refuses(now, Party(story.fence.token, "a-twin", "worker"), "token-duplicate")
        elif what != "nothing" and old.token != story.fence.token:
            story.refuses(now, old if what == "stale" else Party(old.token, None, "worker"))
    return story


@given(STEPS)
def test_lanes_are_in_the_order_of_tokens_and_have_each_refused_write_after_its_takeover(
    steps: list[tuple[str, float, int]],
) -> None:
    story = play(steps)
    found = lanes(story.history(0, 1))
    tokens = [lane.token or Token(0, 0) for lane in found]
    assert tokens == sorted(tokens)
    assert len({lane.party.key for lane in found}) == len(found)
    assert sum(lane.holds for lane in found) <= 1
    placed = [(lane, refusals) for lane in found for refusals in lane.refusals]
    assert sorted(one.id for _, one in placed) == [one.id for one in story.refusals]
    for lane, refusals in placed:
        assert refusals.key[0] == lane.token
        if refusals.reason == "token-stale":
            assert lane.overtaken is not None
            assert refusals.first >= lane.overtaken.at


@given(STEPS, st.floats(-100, 1000), st.floats(1, 100_000))
def test_nothing_is_drawn_beside_the_axis_or_over_each_other_and_arrows_lead_from_a_holder_to_the_next(
    steps: list[tuple[str, float, int]], since: float, length: float
) -> None:
    """Each takeover in the span is an arrow."""
    story = play(steps)
    history = story.history(since, since + length)
    drawn = draw(history)
    for row in drawn.rows:
        strokes = [stroke for stroke in (row.held, row.late) if stroke is not None]
        places = [x for stroke in strokes for x in (stroke.x1, stroke.x2)] + [mark.x for mark in row.marks]
        assert all(LEFT <= x <= RIGHT for x in places)
        assert all(stroke.x1 <= stroke.x2 for stroke in strokes)
        assert all(later.x - mark.x >= MARK for mark, later in pairwise(row.marks))
        assert drawn.top < row.y < drawn.bottom < drawn.height
    assert all(drawn.span.since <= tick.at <= drawn.span.until for tick in drawn.ticks)
    holders = [row.y for row in drawn.rows if row.lane.since is not None]
    for arrow in drawn.arrows:
        assert LEFT <= arrow.x <= RIGHT
        assert holders.index(arrow.y2) - holders.index(arrow.y1) == 1
    assert len(drawn.arrows) == sum(history.span.has(one.at) for one in story.takeovers)


def test_writes_that_are_close_together_are_one_mark_which_leads_to_its_span() -> None:
    story = overtaken_once()
    for step in range(5):
        story.refuses(160.01 + step / 100, A)
    first = draw(story.history(0, 2000)).rows[0]
    assert [(mark.text, mark.span is None) for mark in first.marks] == [("7", False)]
    assert first.marks[0].span is not None
    assert first.marks[0].span.since < at(110)
    closer = draw(story.history(0, 200)).rows[0]
    assert [mark.text for mark in closer.marks] == [None, "6"]
    assert closer.marks[0].span is None


def test_who_was_overtaken_before_the_span_is_drawn_as_late_from_its_beginning() -> None:
    first, second = draw(overtaken_once().history(150, 200)).rows
    assert first.held is None
    assert first.late is not None
    assert (first.late.x1, first.late.begins) == (LEFT, False)
    assert second.held is not None
    assert (second.held.x1, second.held.x2, second.held.begins, second.held.ends) == (LEFT, RIGHT, False, False)
    assert draw(overtaken_once().history(150, 200)).arrows == ()


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
    span = history.fitted(begin, end, now)
    assert span.since <= begin
    assert end <= span.until <= max(now, end + history.SHORTEST / 20)
    assert span.length >= history.SHORTEST


def test_from_one_span_to_another() -> None:
    span, now = Span(at(0), at(100)), at(1000)
    assert history.wider(span, now) == Span(at(-150), at(250))
    assert history.wider(span, at(100)) == Span(at(-300), at(100))
    assert history.narrower(span) == Span(at(25), at(75))
    assert history.narrower(Span(at(0), at(0.01))) is None
    assert history.earlier(span) == Span(at(-50), at(50))
    assert history.later(span, now) == Span(at(50), at(150))
    assert history.later(span, at(120)) == Span(at(20), at(120))
    assert history.later(span, at(100)) is None
    assert history.earlier(Span(history.EARLIEST, at(0))) is None


def said(story: Story, until: float = 1000) -> str:
    return draw(story.history(0, until)).summary


def story_of(*steps: tuple[Any, ...]) -> Story:
    """A story in steps: each is a method, and what it is given."""
    story = Story()
    for happens, *more in steps:
        happens(story, *more)
    return story


def observed(story: Story, seconds: float, who: Party) -> None:
    story.refuses(seconds, who, noted=True)


def late_barrier(story: Story, seconds: float, who: Party) -> None:
    story.refuses(seconds, who, requests=1)


RAISES, REFUSES = Story.raises, Story.refuses
TAKEN_OVER = ((RAISES, 0, A), (RAISES, 100, B))
ONE_WRITE = (*TAKEN_OVER, (REFUSES, 112, A))
NEW_EPOCH = ((RAISES, 0, A), (RAISES, 100, party("1.0", None, "operator"), Kind.EPOCH), (REFUSES, 130, A))


def forgets_takeovers(story: Story) -> None:
    story.takeovers.clear()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (
            ((RAISES, 0, A), (RAISES, 7, B), *((REFUSES, seconds, A) for seconds in (20, 400, 849))),
            (
                "writer-a (token 33) was overtaken by writer-b (token 34) at 12:00:07 and tried 3 more writes during "
                "the next 14 minutes 2 seconds. All were refused. writer-b (token 34) holds the newest token, since "
                "12:00:07."
            ),
        ),
        (ONE_WRITE, "at 12:01:40 and tried 1 more write 12 seconds later. It was refused."),
        (
            (*ONE_WRITE, (observed, 200, A)),
            "tried 2 more writes during the next 1 minute 40 seconds. 1 of 2 took effect, because the rule",
        ),
        (
            (*ONE_WRITE, (REFUSES, 113, A), (late_barrier, 120, party(32, "writer-z"))),
            "One other writer tried 1 more request that is no write. It was refused.",
        ),
        ((*TAKEN_OVER, (observed, 112, A)), "It took effect, because the rule only observes."),
        (NEW_EPOCH, "writer-a (token 33) was ruled out by a new epoch (token 1.0) at 12:01:40 and tried 1 more write"),
        (
            ((RAISES, 0, A), (REFUSES, 30, party(33, "a-twin"), "token-duplicate")),
            "tried 1 write with a token that it had not taken over with, at 12:00:30. It was refused.",
        ),
        ((*ONE_WRITE, (forgets_takeovers,)), "was overtaken by writer-b (token 34) no later than 12:01:40"),
        (
            ((RAISES, 0, A),),
            "No write was refused here in this time. writer-a (token 33) holds the newest token, since 12:00:00.",
        ),
        ((), "No write was refused here in this time."),
    ],
)
def test_what_happened_in_plain_words(steps: tuple[tuple[Any, ...], ...], words: str) -> None:
    assert words in said(story_of(*steps))
