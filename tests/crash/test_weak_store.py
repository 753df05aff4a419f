"""A store that ignores the condition of a completion. A late one fails because its upload is gone."""

import pytest

from gateway.fencing.intent import DEAD_AFTER
from tests.crash.deeds import barrier, by_restoring, complete, delete, put
from tests.crash.kinds import BEFORE, UPLOADS, ZOMBIE, Kind, Stop, an_object, an_upload, cases
from tests.crash.promises import Promises
from tests.crash.stage import Stage

pytestmark = pytest.mark.thorough

COMPLETIONS = UPLOADS[:3]
COMPLETE = {"operation": "CompleteMultipartUpload"}
ABORT = {"operation": "AbortMultipartUpload"}
PUT, DELETE = {"method": "PUT"}, {"method": "DELETE"}
OVERWRITE = Kind("overwrite", put(ZOMBIE), (), an_object, BEFORE)
DELETION = Kind("delete", delete(), (), an_object, BEFORE)
SECONDS = 0.3


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("stop", cases(COMPLETIONS))
def test_down(weak_stage: Stage, stop: Stop, how: str) -> None:
    with weak_stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(33, stop.kind.deed, stop.step, stop.nth, how)
        story.taken_over(34, *by_restoring(stop.kind.before))
        story.resumed()
        Promises(story).check()


@pytest.mark.parametrize("at", ["arrival", "before"])
@pytest.mark.parametrize("how", ["stop", "kill", None])
def test_a_late_completion(weak_stage: Stage, how: str | None, at: str) -> None:
    with weak_stage.story() as story:
        an_upload(story)
        story.in_flight(33, complete(ZOMBIE), at=at, how=how, **COMPLETE)
        story.taken_over(34, *by_restoring(BEFORE))
        assert story.resumed() == [404]
        Promises(story).check()


def test_an_upload_that_is_slow_to_go(weak_stage: Stage) -> None:
    """The store answers an abort before the upload is gone, and the takeover waits until it is."""
    with weak_stage.story() as story, weak_stage.aborting_slowly(SECONDS):
        an_upload(story)
        story.in_flight(33, complete(ZOMBIE), how="kill", **COMPLETE)
        story.taken_over(34, *by_restoring(BEFORE))
        assert story.resumed() == [404]
        Promises(story).check()


def test_an_upload_that_is_completed_while_it_is_given_up(weak_stage: Stage) -> None:
    """The late completion comes before the abort and takes effect, but no newer holder has been acknowledged."""
    with weak_stage.story() as story:
        an_upload(story)
        story.in_flight(33, complete(ZOMBIE), **COMPLETE)
        story.in_flight(34, barrier(), **ABORT)
        assert story.resumed() == [200, 404]
        assert [zombie.answer is not None and zombie.answer.succeeded for zombie in story.zombies] == [True, True]
        assert story.content() == ZOMBIE
        story.not_overtaken_yet()
        story.taken_over(35, *by_restoring(BEFORE))
        Promises(story).check()


@pytest.mark.parametrize("how", ["stop", "kill", None])
def test_a_late_settlement(weak_stage: Stage, how: str | None) -> None:
    """34 gives the upload of 33 up, and its request is late as well: 35 gives it up once more."""
    with weak_stage.story() as story:
        an_upload(story)
        story.in_flight(33, complete(ZOMBIE), how="kill", **COMPLETE)
        story.in_flight(34, barrier(), how=how, **ABORT)
        story.taken_over(35, *by_restoring(BEFORE))
        assert story.resumed() == [404, 204]
        Promises(story).check()


@pytest.mark.parametrize("how", ["stop", "kill", None])
@pytest.mark.parametrize(("kind", "match"), [(OVERWRITE, PUT), (DELETION, DELETE)], ids=str)
def test_what_cannot_be_broken_is_settled_by_the_clock(
    weak_stage: Stage, kind: Kind, match: dict[str, str], how: str | None
) -> None:
    """There is no way to write the same bytes with another ETag, so the signature is a short one."""
    with weak_stage.story() as story:
        kind.prepare(story)
        story.in_flight(33, kind.deed, at="arrival", how=how, **match)
        assert story.done(34, barrier()).unknown
        with weak_stage.later(2 * DEAD_AFTER):
            story.taken_over(34, barrier())
            assert story.resumed() == [None], "it was evaluated"
        Promises(story).check()
