"""A gateway is paused or killed at each step of an object write, and a new holder takes over: P1–P5."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.crash.deeds import (
    Takeover,
    barrier,
    by_barrier,
    by_removing,
    by_restoring,
    by_row,
    by_writing,
    put,
    upsert,
)
from tests.crash.kinds import (
    BEFORE,
    OBJECTS,
    OTHERS,
    OVER_COMPLETION,
    OVER_OVERWRITE,
    SETTLERS,
    TABLE_SETTLER,
    UPLOADS,
    Stop,
    cases,
    stops,
)
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.tiers import first

TAKEOVERS = [by_barrier, by_writing, by_restoring, by_removing]


def play(stage: Stage, stop: Stop, how: str, takeover: Takeover) -> None:
    """The writer goes down, the next token takes over, and whatever can come back does."""
    with stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(stop.kind.token, stop.kind.deed, stop.step, stop.nth, how)
        story.taken_over(stop.kind.token + 1, *takeover(stop.kind.before))
        said = story.resumed()
        assert set(said) <= {404, 409, 412}, f"a late request was answered with {said}"
        Promises(story).check()


@pytest.mark.parametrize("takeover", first(TAKEOVERS))
@pytest.mark.parametrize("stop", cases(OBJECTS))
def test_paused(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """The writer goes on only when the new holder is done."""
    play(stage, stop, "stop", takeover)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", cases([*UPLOADS, *OTHERS]))
def test_paused_on_another_way(stage: Stage, stop: Stop) -> None:
    """The same for all writes that end in one of these requests. The tests above cover the takeovers' differences."""
    play(stage, stop, "stop", by_restoring)


@pytest.mark.parametrize("stop", cases(OBJECTS))
def test_killed(stage: Stage, stop: Stop) -> None:
    """The requests that the dead gateway left neither delay the new holder nor take effect later."""
    play(stage, stop, "kill", by_restoring)


@pytest.mark.thorough
@pytest.mark.parametrize("stop", cases(UPLOADS))
def test_killed_during_an_upload(stage: Stage, stop: Stop) -> None:
    play(stage, stop, "kill", by_restoring)


# A small object has two forms. A request of 33 waits for the one, and a request of 34 for the other. So 35 can neither
# bump the object (while 34's request is pending) nor put those bytes back.
CORNERED = [Stop(OVER_OVERWRITE, "objects.begin.after", 2), Stop(OVER_OVERWRITE, "objects.put.before", 1)]
USED_UP = [Stop(OVER_OVERWRITE, "objects.put.after", 1), Stop(OVER_OVERWRITE, "objects.finish.before", 1)]


def settling() -> Iterator[Any]:
    for stop in stops([*SETTLERS, TABLE_SETTLER]):
        for takeover in (by_restoring, by_row):
            if stop not in CORNERED and (stop not in USED_UP or takeover is by_row):
                yield pytest.param(stop, takeover, id=f"{stop}-{takeover.__name__}")


@pytest.mark.thorough
@pytest.mark.parametrize(("stop", "takeover"), list(settling()))
def test_paused_while_settling(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """34 goes down while it settles what 33 has in flight; 35 takes over; then both come back at once."""
    play(stage, stop, "stop", takeover)


@pytest.mark.parametrize("stop", cases([*SETTLERS[:2], OVER_COMPLETION]))
def test_killed_while_settling(stage: Stage, stop: Stop) -> None:
    """The write of 33 is still in flight, so 35 has to settle it."""
    play(stage, stop, "kill", by_restoring)


@pytest.mark.parametrize("stop", CORNERED, ids=str)
def test_a_takeover_that_cannot_settle_is_not_acknowledged(stage: Stage, stop: Stop) -> None:
    """Rather no answer than a wrong one. Once 34's request is over, 35 gets through."""
    with stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(34, stop.kind.deed, stop.step, stop.nth, "stop")
        assert [story.done(35, deed).status for deed in (barrier(), put(b"x"), upsert("x"))] == [503, 503, 503]
        story.resumed()
        story.not_overtaken_yet()
        story.taken_over(35, barrier(), put(b"the new holder's"))
        Promises(story).check()


@pytest.mark.parametrize("stop", USED_UP, ids=str)
def test_bytes_without_a_form_left_are_not_written(stage: Stage, stop: Stop) -> None:
    """35 cannot put back what was there at first: a late request waits for it in either form."""
    with stage.story() as story:
        stop.kind.prepare(story)
        story.stopped_at(34, stop.kind.deed, stop.step, stop.nth, "stop")
        story.taken_over(35, barrier(), put(b"the new holder's"))
        assert story.done(35, put(BEFORE)).status == 503
        assert story.resumed() == [412]
        Promises(story).check()
