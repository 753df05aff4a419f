"""P5: a stale write is on record, durably, before its refusal is sent. Stopped and killed in between."""

import pytest

from tests.crash.deeds import barrier
from tests.crash.kinds import STALE, Stop, cases, stops
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.tiers import first

ON_RECORD = (33, 34, "token-stale", True)


@pytest.mark.parametrize("how", first(["kill", "stop"]))
@pytest.mark.parametrize("stop", cases(STALE))
def test_on_record_before_it_is_answered(stage: Stage, stop: Stop, how: str) -> None:
    """Never an answer without a row. A row without an answer is what a crash in between leaves, and may."""
    with stage.story() as story:
        stop.kind.prepare(story)
        zombie = story.stopped_at(33, stop.kind.deed, stop.step, stop.nth, how)
        promises = Promises(story)
        assert promises.recorded() == ([ON_RECORD] if stop.step.endswith("reject.after") else [])
        assert zombie.killed or not zombie.pending.done()
        # The barrier of 34 stands already; once more does no harm.
        story.taken_over(34, barrier())
        story.resumed()
        if how == "stop":
            assert zombie.answer is not None
            assert zombie.answer.refused_by_fence
            assert promises.recorded(zombie.answer.request_id) == [ON_RECORD]
        promises.check()


@pytest.mark.parametrize("stop", [stop for stop in stops(STALE) if stop.step.endswith("reject.before")], ids=str)
def test_what_cannot_be_recorded_is_not_refused(stage: Stage, stop: Stop) -> None:
    """The record is unavailable, so the answer is not a refusal: no reader could look it up."""
    with stage.story() as story:
        stop.kind.prepare(story)
        zombie = story.stopped_at(33, stop.kind.deed, stop.step, stop.nth, "stop")
        story.taken_over(34, barrier())
        with stage.without_record():
            story.resumed()
        assert zombie.answer is not None
        assert zombie.answer.unknown
        Promises(story).check()
