"""A gateway dies or sleeps at each step of a write with an idempotency key, and a client retries the write.

The write is applied exactly once, whichever client retries it.
"""

import pytest

from tests.crash.deeds import by_row
from tests.crash.kinds import KEYED, Stop, cases
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.crash.story import Story
from tests.tiers import first

COMMITTED = "tables.commit.after"


@pytest.mark.parametrize("how", first(["kill", "stop"]))
@pytest.mark.parametrize("later", [0, 1], ids=["by-the-same-holder", "by-the-next-holder"])
@pytest.mark.parametrize("stop", cases(KEYED))
def test_it_is_applied_once(stage: Stage, stop: Stop, later: int, how: str) -> None:
    with stage.story() as story:
        stop.kind.prepare(story)
        before = story.rows()
        zombie = story.stopped_at(stop.kind.token, stop.kind.deed, stop.step, stop.nth, how)
        done = story.rows()
        assert (done != before) == (stop.step == COMMITTED)
        answer = story.done(stop.kind.token + later, stop.kind.deed)
        assert (answer.succeeded, answer.replayed) == (True, stop.step == COMMITTED), answer.body
        written = story.rows()
        assert written != before
        assert written == done or stop.step != COMMITTED
        story.resumed()
        for token in (stop.kind.token, stop.kind.token + later + 1):
            again = story.done(token, stop.kind.deed)
            assert (again.status, again.body, again.replayed) == (answer.status, answer.body, True)
        assert story.rows() == written, "the version of a row tells if it has been written once more"
        if zombie.answer is not None:
            assert zombie.answer.unknown == (stop.step != COMMITTED)
            assert zombie.answer.unknown or zombie.answer.body == answer.body
        assert _fences(story) == {stop.kind.token + later + 1}, "whoever is told of it has taken over"


@pytest.mark.parametrize("stop", cases(KEYED))
def test_an_overtaken_holder_is_told_what_it_has_done_and_does_no_more(stage: Stage, stop: Stop) -> None:
    """It had been carried out: the same answer. It had not: refused, because there is a newer holder by now."""
    with stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(stop.kind.token, stop.kind.deed, stop.step, stop.nth, "kill")
        story.taken_over(stop.kind.token + 1, *by_row(None))
        before = story.rows()
        again = story.done(stop.kind.token, stop.kind.deed)
        if stop.step == COMMITTED:
            assert (again.succeeded, again.replayed) == (True, True)
        else:
            assert (again.status, again.code) == (412, "token-stale")
        assert story.rows() == before
        story.resumed()
        Promises(story).check()


def _fences(story: Story) -> set[int]:
    """The tokens of the fences of both rows."""
    number = story.place.number
    sql = "SELECT value FROM fencing.fence WHERE resource IN ($1, $2)"
    names = (f"public.accounts/{number}", f"public.accounts/{-number}")
    return {value for (value,) in story.stage.postgres.rows(sql, *names)}
