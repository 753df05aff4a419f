"""A completion that is sent again, by the next holder: it writes nothing, and is acknowledged as everything else is."""

import pytest

from tests.crash.deeds import complete, put, upsert
from tests.crash.kinds import ZOMBIE, a_row, an_upload
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.crash.story import Deed


@pytest.mark.parametrize("late", [put(b"late"), upsert("late")], ids=["object", "row"])
def test_an_older_holder_is_refused_from_then_on(stage: Stage, late: Deed) -> None:
    with stage.story() as story:
        an_upload(story)
        assert story.done(33, complete(ZOMBIE)).succeeded
        story.taken_over(34, complete(ZOMBIE))
        answer = story.done(33, late)
        assert (answer.status, answer.refused_by_fence) == (412, True)
        Promises(story).check()


@pytest.mark.parametrize("how", ["stop", "kill", None])
def test_an_older_holders_write_that_is_under_way_is_settled(stage: Stage, how: str | None) -> None:
    with stage.story() as story:
        a_row(story)
        an_upload(story)
        assert story.done(33, complete(ZOMBIE)).succeeded
        story.in_flight(33, put(b"late"), how=how, method="PUT")
        story.taken_over(34, complete(ZOMBIE))
        assert story.resumed() == [412]
        Promises(story).check()


def test_an_overtaken_holder_is_refused(stage: Stage) -> None:
    with stage.story() as story:
        an_upload(story)
        assert story.done(33, complete(ZOMBIE)).succeeded
        story.taken_over(34, put(b"the new holder's"))
        answer = story.done(33, complete(ZOMBIE))
        assert (answer.status, answer.refused_by_fence) == (412, True)
        Promises(story).check()
