"""A gateway is paused or killed at each step of an object write, and a new holder takes over: P1–P5."""

import pytest

from tests.crash import kinds
from tests.crash.kinds import ZOMBIE, Stop, Takeover, by_restoring, cases, complete, put
from tests.crash.stage import Stage
from tests.tiers import first

TAKEOVERS = [kinds.by_barrier, kinds.by_writing, by_restoring, kinds.by_removing]


@pytest.mark.parametrize("takeover", first(TAKEOVERS, pytest.mark.nightly))
@pytest.mark.parametrize("stop", cases(kinds.OBJECTS))
def test_paused(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """The writer goes on only when the new holder is done."""
    stage.stopped(stop, "stop", takeover)


@pytest.mark.parametrize("stop", cases(kinds.OBJECTS, "overwrite", "delete"))
def test_killed(stage: Stage, stop: Stop) -> None:
    """The requests that the dead gateway left neither delay the new holder nor take effect later."""
    stage.stopped(stop, "kill", by_restoring)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("stop", cases([*kinds.UPLOADS, *kinds.OTHERS]))
def test_down_on_another_way(stage: Stage, stop: Stop, how: str) -> None:
    """The same for all writes that end in one of these requests. The tests above cover the takeovers' differences."""
    stage.stopped(stop, how, by_restoring)


@pytest.mark.thorough
@pytest.mark.parametrize("takeover", [by_restoring, kinds.by_row])
@pytest.mark.parametrize("stop", cases([*kinds.SETTLERS, kinds.TABLE_SETTLER]))
def test_paused_while_settling(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """34 goes down while it settles what 33 has in flight; 35 takes over; then both come back at once."""
    stage.stopped(stop, "stop", takeover)


@pytest.mark.parametrize("stop", cases([*kinds.SETTLERS[:2], kinds.OVER_COMPLETION], "barrier over overwrite"))
def test_killed_while_settling(stage: Stage, stop: Stop) -> None:
    """The write of 33 is still in flight, so 35 has to settle it."""
    stage.stopped(stop, "kill", by_restoring)


@pytest.mark.parametrize("how", first(["stop", "kill", None]))
def test_a_completion_that_is_sent_again_settles_what_is_under_way(stage: Stage, how: str | None) -> None:
    """It writes nothing, and is acknowledged as everything else is: the older holder's late put comes to nothing."""
    with stage.story() as story:
        kinds.a_row(story)
        kinds.an_upload(story)
        assert story.done(33, complete(ZOMBIE)).succeeded
        story.in_flight(33, put(b"late"), how=how, method="PUT")
        story.taken_over(34, complete(ZOMBIE))
        assert story.resumed() == [412]
        assert story.done(33, kinds.upsert("late")).refused_by_fence
        story.check()
