"""A gateway is paused or killed at each step of a table write, and a new holder takes over: P1–P5."""

import pytest

from tests.crash.deeds import (
    Takeover,
    by_barrier,
    by_restoring,
    by_row,
    insert_two,
    put,
    update,
    update_one,
)
from tests.crash.kinds import TABLES, ZOMBIE, Stop, a_row, an_object, cases, nothing
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.crash.story import IN_TRANSACTION
from tests.tiers import first


def play(stage: Stage, stop: Stop, how: str, takeover: Takeover) -> None:
    with stage.story() as story:
        stop.kind.prepare(story)
        zombie = story.stopped_at(stop.kind.token, stop.kind.deed, stop.step, stop.nth, how)
        story.taken_over(stop.kind.token + 1, *takeover(None))
        story.resumed()
        Promises(story).check()
        if stop.step in IN_TRANSACTION and how == "stop":
            assert zombie.answer is not None
            assert zombie.answer.unknown, "the database has ended its transaction"


@pytest.mark.parametrize("takeover", first([by_barrier, by_row]))
@pytest.mark.parametrize("stop", cases(TABLES))
def test_paused(stage: Stage, stop: Stop, takeover: Takeover) -> None:
    """The new holder waits for a transaction under way, but no longer than the database lets a gateway sleep in it."""
    play(stage, stop, "stop", takeover)


@pytest.mark.parametrize("stop", cases(TABLES))
def test_killed(stage: Stage, stop: Stop) -> None:
    play(stage, stop, "kill", by_row)


@pytest.mark.parametrize("stop", cases(TABLES))
def test_paused_under_a_role(role_stage: Stage, stop: Stop) -> None:
    """One call claims, takes the role and writes: a gateway that sleeps beside it holds nothing up."""
    play(role_stage, stop, "stop", by_row)


@pytest.mark.parametrize("stop", cases(TABLES))
def test_killed_under_a_role(role_stage: Stage, stop: Stop) -> None:
    play(role_stage, stop, "kill", by_row)


@pytest.mark.parametrize("step", IN_TRANSACTION)
def test_a_paused_row_does_not_hold_up_an_object(stage: Stage, step: str) -> None:
    """One resource on two planes: the new holder only puts an object, and the old one's row is not written any more."""
    with stage.story() as story:
        a_row(story)
        an_object(story)
        zombie = story.stopped_at(34, update_one("zombie"), step, 1, "stop")
        story.taken_over(35, *by_restoring(None))
        story.resumed()
        Promises(story).check()
        assert zombie.answer is not None
        assert zombie.answer.unknown


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("step", [*IN_TRANSACTION, "tables.commit.after"])
def test_two_rows_are_written_both_or_not_at_all(stage: Stage, step: str, how: str) -> None:
    """The second of two resources is overtaken: the row of the first goes with it."""
    with stage.story() as story:
        nothing(story)
        story.stopped_at(33, insert_two("zombie"), step, 1, how)
        story.taken_over(34, *by_barrier(None))
        story.resumed()
        assert len(story.rows()) == (2 if step == "tables.commit.after" else 0)
        Promises(story).check()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_row_over_a_late_put_that_is_over_a_row(stage: Stage, how: str) -> None:
    """Three holders, three gateways: 33's put is late, 34's row waits to settle it, 35 overtakes both with a row."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", method="PUT")
        story.stopped_at(34, update("zombie"), "objects.forbid.after", 1, how)
        story.taken_over(35, *by_row(None))
        assert story.resumed() == [412]
        Promises(story).check()
