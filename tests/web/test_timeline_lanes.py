"""A history becomes lanes: one for each token and holder, with its events."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.timeline.history import Party, Takeover, Totals
from gateway.timeline.lanes import LeaseSpan, lanes
from gateway.timeline.picture import LEFT, MARK, RIGHT, draw
from tests.web.timeline_samples import Story, at, party

A, B, C = party(33, "writer-a"), party(34, "writer-b"), party(35, "writer-c")


def overtaken_once() -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(100, B)
    story.refuses(110, A)
    story.refuses(160, A)
    return story


def test_who_was_overtaken_has_its_late_writes_on_its_own_lane() -> None:
    first, second = lanes(overtaken_once().history(0, 200))
    assert (first.party, first.since, first.holds, first.zombie) == (A, at(0), False, True)
    assert first.overtaken is not None
    assert (first.overtaken.by, first.overtaken.at) == (B, at(100))
    assert [one.first for one in first.refusals] == [at(110), at(160)]
    assert (second.party, second.since, second.overtaken, second.holds, second.refusals) == (B, at(100), None, True, ())


def test_writes_without_a_name_belong_to_who_raised_the_fence_with_their_token() -> None:
    story = overtaken_once()
    story.refuses(170, party(33, None))
    first, _ = lanes(story.history(0, 200))
    assert (first.tally.refused, len(first.refusals), first.tally.last) == (3, 3, at(170))


def test_another_holder_of_the_same_token_has_a_lane_of_its_own_after_it() -> None:
    story = overtaken_once()
    story.refuses(170, party(34, "a-twin"), "token-duplicate")
    assert [lane.party.holder for lane in lanes(story.history(0, 200))] == ["writer-a", "writer-b", "a-twin"]
    assert lanes(story.history(0, 200))[2].since is None


def test_writes_without_a_token_come_last() -> None:
    story = overtaken_once()
    story.refuses(50, party(None, "careless"), "token-required", noted=True)
    assert lanes(story.history(0, 200))[-1].party.token is None


def test_a_takeover_that_is_not_on_record_is_inferred_from_the_fence() -> None:
    story = overtaken_once()
    story.takeovers.clear()
    first, _ = lanes(story.history(0, 200))
    assert first.overtaken is not None
    assert (first.overtaken.by, first.overtaken.at, first.overtaken.inferred) == (B, at(100), True)


def test_what_is_on_record_counts_more_than_what_is_inferred() -> None:
    story = overtaken_once()
    story.takeovers.append(Takeover(at(90), Kind.RAISED, B, A, None, inferred=True))
    first, _ = lanes(story.history(0, 200))
    assert first.overtaken is not None
    assert (first.overtaken.at, first.overtaken.inferred) == (at(100), False)


def test_a_fence_that_was_raised_after_the_span_has_no_lane() -> None:
    story = overtaken_once()
    story.raises(500, C)
    del story.parties[C.key]
    assert [lane.party for lane in lanes(story.history(0, 200))] == [A, B]


def test_leases_have_a_beginning_and_an_end_as_far_as_they_are_known() -> None:
    story = overtaken_once()
    story.lease(10, Kind.LEASE_EXPIRED, A)
    story.lease(20, Kind.LEASE_GRANTED, A)
    story.lease(30, Kind.LEASE_BROKEN, A)
    story.lease(90, Kind.LEASE_GRANTED, B)
    first, second = lanes(story.history(0, 200))
    assert first.leases == (
        LeaseSpan(None, at(10), Kind.LEASE_EXPIRED),
        LeaseSpan(at(20), at(30), Kind.LEASE_BROKEN),
    )
    assert second.leases == (LeaseSpan(at(90), None, None),)


def test_an_epoch_is_a_takeover_of_nobody_who_writes() -> None:
    story = overtaken_once()
    story.raises(120, party("2.0", None, "operator"), Kind.EPOCH)
    lane = lanes(story.history(0, 200))[-1]
    assert (lane.begins_epoch, lane.holds) == (True, True)
    drawn = draw(story.history(0, 200))
    assert drawn.rows[-1].held is None
    assert [upright.text for upright in drawn.uprights] == ["epoch 2"]


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
def test_nothing_is_drawn_beside_the_axis_or_over_each_other(
    steps: list[tuple[str, float, int]], since: float, length: float
) -> None:
    drawn = draw(play(steps).history(since, since + length))
    for row in drawn.rows:
        strokes = [stroke for stroke in (row.held, row.late) if stroke is not None]
        places = [x for stroke in strokes for x in (stroke.x1, stroke.x2)] + [mark.x for mark in row.marks]
        assert all(LEFT <= x <= RIGHT for x in places)
        assert all(stroke.x1 <= stroke.x2 for stroke in strokes)
        assert all(later.x - mark.x >= MARK for mark, later in pairwise(row.marks))
        assert drawn.top < row.y < drawn.bottom < drawn.height
    assert all(drawn.span.since <= tick.at <= drawn.span.until for tick in drawn.ticks)


@given(STEPS, st.floats(-100, 1000), st.floats(1, 100_000))
def test_each_takeover_is_an_arrow_from_a_holder_to_the_next(
    steps: list[tuple[str, float, int]], since: float, length: float
) -> None:
    story = play(steps)
    history = story.history(since, since + length)
    drawn = draw(history)
    holders = [row.y for row in drawn.rows if row.lane.since is not None]
    for arrow in drawn.arrows:
        assert LEFT <= arrow.x <= RIGHT
        assert holders.index(arrow.y2) - holders.index(arrow.y1) == 1
    assert len(drawn.arrows) == sum(history.span.has(one.at) for one in story.takeovers)


def test_what_is_not_drawn_is_summed_up() -> None:
    story = overtaken_once()
    history = story.history(0, 200)
    assert draw(history).rest is None
    crowded = type(history)(
        history.resource,
        history.span,
        history.fence,
        Totals(1243, 4, 20, 0),
        parties=history.parties,
        takeovers=history.takeovers,
        refusals=history.refusals,
    )
    assert draw(crowded).rest == "1,241 more holders are not drawn: 3 with 18 refused writes, 1,238 without."


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
