"""A gateway is paused or killed at each step of an object write, and a new holder takes over: P1–P5."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.crash.deeds import (
    Takeover,
    by_barrier,
    by_removing,
    by_restoring,
    by_row,
    by_writing,
)
from tests.crash.kinds import (
    OBJECTS,
    OTHERS,
    OVER_COMPLETION,
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


def settling() -> Iterator[Any]:
    for stop in stops([*SETTLERS, TABLE_SETTLER]):
        for takeover in (by_restoring, by_row):
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
