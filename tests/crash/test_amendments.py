"""Writes for which S3 has no condition: nothing but the end of their signature stops them.

So a newer holder is not acknowledged while one of them may arrive, and is once the store would refuse it.
"""

import pytest

from gateway.fencing.intent import DEAD_AFTER, LATE_AFTER, SIGNATURE_LIFETIME
from tests.crash.deeds import barrier, by_restoring, put, tag, upsert
from tests.crash.kinds import AMENDMENTS, BEFORE, Stop, an_object, cases
from tests.crash.promises import Promises
from tests.crash.stage import Stage

LATER = DEAD_AFTER + LATE_AFTER
TAGGING = {"operation": "PutObjectTagging"}

# The steps from the announcement on until it is taken back. If the process died, no gateway can tell them apart.
IN_DOUBT = {
    "objects.begin.after",
    "objects.amend.before",
    "objects.amend.after",
    "objects.finish.before",
    "objects.abandon.before",
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("stop", cases(AMENDMENTS))
def test_a_takeover_waits_for_the_end_of_the_signature(stage: Stage, stop: Stop, how: str) -> None:
    with stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(33, stop.kind.deed, stop.step, stop.nth, how)
        assert story.done(34, barrier()).status == (503 if stop.step in IN_DOUBT else 200)
        with stage.later(LATER):
            story.taken_over(34, *by_restoring(stop.kind.before))
            story.resumed()
            Promises(story).check()


def test_nobody_is_acknowledged_before(stage: Stage) -> None:
    """The signature alone being dead is not enough: a request that has arrived may be slow to take effect."""
    with stage.story() as story:
        an_object(story)
        story.stopped_at(33, tag("zombie"), "objects.amend.before", 1, "stop")
        with stage.later(SIGNATURE_LIFETIME + LATE_AFTER / 2):
            assert [story.done(34, deed).status for deed in (barrier(), put(b"x"), upsert("x"))] == [503, 503, 503]
        story.resumed()
        story.not_overtaken_yet()
        story.taken_over(34, *by_restoring(BEFORE))
        Promises(story).check()


@pytest.mark.parametrize("how", ["stop", "kill", None])
def test_a_late_request_is_refused_by_the_store(stage: Stage, how: str | None) -> None:
    """It comes when the new holder has been acknowledged, with a signature that has ended."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, tag("zombie"), at="arrival", how=how, **TAGGING)
        assert story.done(34, barrier()).unknown
        with stage.later(LATER):
            story.taken_over(34, *by_restoring(BEFORE))
            assert story.resumed() == [None], "it was evaluated"
            Promises(story).check()


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill", None])
def test_a_request_that_comes_in_time_takes_effect_before(stage: Stage, how: str | None) -> None:
    with stage.story() as story:
        an_object(story)
        zombie = story.in_flight(33, tag("zombie"), how=how, **TAGGING)
        assert story.done(34, barrier()).unknown
        assert story.resumed() == [200]
        story.not_overtaken_yet()
        with stage.later(LATER):
            story.taken_over(34, *by_restoring(BEFORE))
            Promises(story).check()
        assert zombie.killed or zombie.answer is None or zombie.answer.succeeded


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_lost_request_or_answer_holds_a_takeover_up(stage: Stage, at: str) -> None:
    """Its writer cannot know what became of it, and says so."""
    with stage.story() as story:
        an_object(story)
        stage.double.rule("cut", at=at, key=story.place.key, **TAGGING)
        assert story.done(33, tag("zombie")).unknown
        assert story.done(34, barrier()).unknown
        with stage.later(LATER):
            story.taken_over(34, *by_restoring(BEFORE))
            Promises(story).check()
