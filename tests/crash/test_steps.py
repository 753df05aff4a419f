"""Every durable step has a name, an operator can look it up, and these tests stop at it; a broken promise is seen."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from gateway.objects.protocol import runner
from gateway.observe.events import Plane, StepReached
from gateway.tables.execute import fast_path, transaction
from tests import ROOT
from tests.crash import kinds
from tests.crash.kinds import BEFORE, EVERY, STALE, ZOMBIE, Kind, Stop, an_object, barrier, cases, put, stops
from tests.crash.stage import Stage
from tests.tiers import first

_PAGE = ROOT / "docs" / "verification.md"


def announced() -> set[str]:
    """All names the product can announce."""
    of_objects = {f"objects.{name}.{moment}" for name in runner._STEPS.values() for moment in ("before", "after")}
    of_paths = (*vars(fast_path).values(), *vars(transaction).values())
    of_tables = {value.name for value in of_paths if isinstance(value, StepReached)}
    of_refusals = {f"{plane}.reject.{moment}" for plane in get_args(Plane) for moment in ("before", "after")}
    return of_objects | of_tables | of_refusals


def test_every_step_is_stopped_at_and_documented() -> None:
    assert {step for kind in EVERY for step in kind.path} == announced()
    listed = re.findall(r"^\| `((?:objects|tables|api)\.[a-z-]+)` \|", _PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({step.rpartition(".")[0] for step in announced()})


@pytest.mark.parametrize("kind", first(EVERY), ids=str)
def test_an_unharmed_write_passes_its_steps(stage: Stage, kind: Kind) -> None:
    """So that no case stops at a step that another path would have to itself."""
    with stage.story() as story:
        kind.prepare(story)
        passed = story.unharmed(kind)
        if kind.deed.writes == 1:
            assert passed == list(kind.path)
        else:
            assert sorted(passed) == sorted(kind.path)
        story.resumed()


# P5: a stale write is on record, durably, before its refusal is sent.

ON_RECORD = (33, 34, "token-stale", True)


@pytest.mark.parametrize("how", first(["kill", "stop"]))
@pytest.mark.parametrize("stop", cases(STALE))
def test_on_record_before_it_is_answered(stage: Stage, stop: Stop, how: str) -> None:
    """Never an answer without a row. A row without an answer is what a crash in between leaves, and may."""
    with stage.story() as story:
        zombie = story.stopped(stop, how)
        assert story.recorded() == ([ON_RECORD] if stop.step.endswith("reject.after") else [])
        assert zombie.killed or not zombie.pending.done()
        # The barrier of 34 stands already; once more does no harm.
        story.taken_over(34, barrier())
        story.resumed()
        if how == "stop":
            assert zombie.answer is not None
            assert zombie.answer.refused_by_fence
            assert story.recorded(zombie.answer.request_id) == [ON_RECORD]
        story.check()


@pytest.mark.parametrize("stop", [stop for stop in stops(STALE) if stop.step.endswith("reject.before")], ids=str)
def test_what_cannot_be_recorded_is_not_refused(stage: Stage, stop: Stop) -> None:
    """The record is unavailable, so the answer is not a refusal: no reader could look it up."""
    with stage.story() as story:
        zombie = story.stopped(stop, "stop")
        story.taken_over(34, barrier())
        stage.postgres.rows("ALTER TABLE fencing.intake RENAME TO lost")
        try:
            story.resumed()
        finally:
            stage.postgres.rows("ALTER TABLE fencing.lost RENAME TO intake")
        assert zombie.answer is not None
        assert zombie.answer.unknown
        story.check()


@pytest.mark.thorough
class TestBrokenPromises:
    """The check of a broken promise says so."""

    @pytest.mark.parametrize("takeover", [kinds.by_barrier, kinds.by_restoring])
    def test_a_store_that_ignores_conditions_is_caught(self, stage: Stage, takeover: kinds.Takeover) -> None:
        """It has passed its probe and breaks its word afterwards: the late packet lands."""
        with stage.story() as story:
            an_object(story)
            story.in_flight(33, put(ZOMBIE), how="kill", method="PUT")
            story.taken_over(34, *takeover(BEFORE))
            with stage.behaving(ignored_conditions=(["*"], [])):
                assert story.resumed() == [200]
            with pytest.raises(AssertionError, match=r"^P1"):
                story.p1_only_the_new_holder_writes_from_its_first_acknowledgement_on()
            with pytest.raises(AssertionError, match=r"^P2"):
                story.p2_nothing_takes_effect_after_the_last_acknowledgement()

    @pytest.mark.parametrize(("step", "lie"), [("objects.put.before", 200), ("objects.finish.after", 412)])
    def test_an_untrue_answer_is_caught(self, stage: Stage, step: str, lie: int) -> None:
        """A success without an effect; a refusal with one."""
        with stage.story() as story:
            an_object(story)
            zombie = story.stopped_at(33, put(ZOMBIE), step, 1, "stop")
            story.taken_over(34, barrier())
            story.resumed()
            assert zombie.answer is not None
            zombie.answer = replace(zombie.answer, status=lie)
            with pytest.raises(AssertionError, match=r"^P3"):
                story.check()

    def test_an_intent_that_outlives_an_acknowledgement_is_caught(self, stage: Stage) -> None:
        """The fence is raised behind the protocol's back, by a barrier that settles nothing."""
        with stage.story() as story:
            an_object(story)
            story.in_flight(33, put(ZOMBIE), how="kill", method="PUT")
            stage.postgres.rows("UPDATE fencing.intent SET value = 34 WHERE resource = $1", story.place.resource)
            story.taken_over(34, barrier())
            stage.postgres.rows("UPDATE fencing.intent SET value = 33 WHERE resource = $1", story.place.resource)
            story.acknowledged.append(story.acknowledge(barrier(), story.acknowledged[0].before))
            with pytest.raises(AssertionError, match=r"^P4"):
                story.check()

    def test_a_refusal_that_is_not_on_record_is_caught(self, stage: Stage) -> None:
        with stage.story() as story:
            an_object(story)
            story.stopped_at(33, put(ZOMBIE), "objects.begin.before", 1, "stop")
            story.taken_over(34, barrier())
            story.resumed()
            story.p5_refusals_are_on_record()
            # Or a trigger would keep the record as it is.
            stage.postgres.rows("SET session_replication_role = replica")
            for table in ("intake", "entry"):
                stage.postgres.rows(f"DELETE FROM fencing.{table} WHERE resource = $1", story.place.resource)
            stage.postgres.rows("RESET session_replication_role")
            with pytest.raises(AssertionError, match=r"^P5"):
                story.check()
