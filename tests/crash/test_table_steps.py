"""A gateway is paused or killed at each step of a table write, and a new holder takes over: P1–P5."""

import pytest

from tests.crash.kinds import KEYED, TABLES, Stop, Takeover, by_barrier, by_row, cases
from tests.crash.stage import IN_TRANSACTION, Stage, Story
from tests.tiers import first

COMMITTED = "tables.commit.after"


def play(stage: Stage, stop: Stop, how: str, takeover: Takeover) -> None:
    zombie = stage.stopped(stop, how, takeover)
    if stop.step in IN_TRANSACTION and how == "stop":
        assert zombie.answer is not None
        assert zombie.answer.unknown, "the database has ended its transaction"


@pytest.mark.parametrize("takeover", first([by_barrier, by_row]))
@pytest.mark.parametrize("stop", cases(TABLES))
def test_paused(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """The new holder waits for a transaction under way, but no longer than the database lets a gateway sleep in it."""
    play(stage, stop, "stop", takeover)


@pytest.mark.parametrize("stop", cases(TABLES, "raising update", "insert of two"))
def test_killed(stage: Stage, stop: Stop) -> None:
    play(stage, stop, "kill", by_row)


class TestSentAgain:
    """A client retries a write with an idempotency key: it is applied once, whichever holder retries it."""

    @pytest.mark.parametrize("how", first(["kill", "stop"]))
    @pytest.mark.parametrize("later", first([1, 0]))
    @pytest.mark.parametrize("stop", cases(KEYED))
    def test_it_is_applied_once(self, stage: Stage, stop: Stop, later: int, how: str) -> None:
        token, deed = stop.kind.token, stop.kind.deed
        with stage.story() as story:
            stop.kind.prepare(story)
            before = story.rows()
            zombie = story.stopped_at(token, deed, stop.step, stop.nth, how)
            done = story.rows()
            assert (done != before) == (stop.step == COMMITTED)
            answer = story.done(token + later, deed)
            assert (answer.succeeded, answer.replayed) == (True, stop.step == COMMITTED), answer.body
            written = story.rows()
            assert written != before
            assert written == done or stop.step != COMMITTED
            story.resumed()
            for following in (token, token + later + 1):
                again = story.done(following, deed)
                assert (again.status, again.body, again.replayed) == (answer.status, answer.body, True)
            assert story.rows() == written, "the version of a row tells if it has been written once more"
            if zombie.answer is not None:
                assert zombie.answer.unknown == (stop.step != COMMITTED)
                assert zombie.answer.unknown or zombie.answer.body == answer.body
            assert self.fences(story) == {token + later + 1}, "whoever is told of it has taken over"

    @pytest.mark.parametrize("stop", cases(KEYED))
    def test_an_overtaken_holder_is_told_what_it_has_done_and_does_no_more(self, stage: Stage, stop: Stop) -> None:
        """It had been carried out: the same answer. It had not: refused, because there is a newer holder by now."""
        with stage.story() as story:
            story.stopped(stop, "kill")
            story.taken_over(stop.kind.token + 1, *by_row(None))
            before = story.rows()
            again = story.done(stop.kind.token, stop.kind.deed)
            if stop.step == COMMITTED:
                assert (again.succeeded, again.replayed) == (True, True)
            else:
                assert (again.status, again.code) == (412, "token-stale")
            assert story.rows() == before
            story.resumed()
            story.check()

    def fences(self, story: Story) -> set[int]:
        """The tokens of the fences of both rows."""
        number = story.place.number
        sql = "SELECT value FROM fencing.fence WHERE resource IN ($1, $2)"
        names = (f"public.accounts/{number}", f"public.accounts/{-number}")
        return {value for (value,) in story.stage.postgres.rows(sql, *names)}
