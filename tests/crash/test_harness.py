"""That these tests can fail: where a promise is broken, its check says so, and a stop that is missed is no case."""

from dataclasses import replace

import pytest

from gateway.fencing.intent import DEAD_AFTER
from tests.crash.deeds import Takeover, barrier, by_barrier, by_restoring, complete, put, tag, update
from tests.crash.kinds import BEFORE, ZOMBIE, a_row_of_this_holder, an_object, an_upload
from tests.crash.promises import Promises
from tests.crash.stage import Stage


@pytest.mark.parametrize("takeover", [by_barrier, by_restoring])
def test_a_store_that_ignores_conditions_is_caught(stage: Stage, takeover: Takeover) -> None:
    """It has passed its probe and breaks its word afterwards: the late packet lands."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", method="PUT")
        story.taken_over(34, *takeover(BEFORE))
        with stage.ignoring_conditions():
            assert story.resumed() == [200]
        promises = Promises(story)
        with pytest.raises(AssertionError, match=r"^P1"):
            promises.p1_only_the_new_holder_writes_from_its_first_acknowledgement_on()
        with pytest.raises(AssertionError, match=r"^P2"):
            promises.p2_nothing_takes_effect_after_the_last_acknowledgement()


def test_a_store_that_accepts_a_dead_signature_is_caught(stage: Stage) -> None:
    """Its clock goes back to where the signature was good, when the new holder has been acknowledged."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, tag("zombie"), at="arrival", how="kill", operation="PutObjectTagging")
        with stage.later(2 * DEAD_AFTER):
            story.taken_over(34, barrier())
        assert story.resumed() == [200]
        with pytest.raises(AssertionError, match=r"^P1"):
            Promises(story).check()


def test_an_upload_that_was_not_given_up_is_caught(weak_stage: Stage) -> None:
    """The intent goes behind the protocol's back, and the upload stays."""
    with weak_stage.story() as story:
        an_upload(story)
        story.in_flight(33, complete(ZOMBIE), how="kill", operation="CompleteMultipartUpload")
        weak_stage.postgres.rows("DELETE FROM fencing.intent WHERE resource = $1", story.place.resource)
        story.taken_over(34, barrier())
        assert story.resumed() == [200]
        with pytest.raises(AssertionError, match=r"^P1"):
            Promises(story).check()


def test_a_row_written_behind_the_fence_is_caught(stage: Stage) -> None:
    with stage.story() as story:
        a_row_of_this_holder(story)
        story.stopped_at(33, update("zombie"), "tables.fast.before", 1, "stop")
        story.taken_over(34, barrier())
        story.resumed()
        stage.postgres.rows("UPDATE accounts SET note = 'at first' WHERE id = $1", story.place.number)
        with pytest.raises(AssertionError, match=r"^P2"):
            Promises(story).check()


@pytest.mark.parametrize(("step", "lie"), [("objects.put.before", 200), ("objects.finish.after", 412)])
def test_an_untrue_answer_is_caught(stage: Stage, step: str, lie: int) -> None:
    """A success without an effect; a refusal with one."""
    with stage.story() as story:
        an_object(story)
        zombie = story.stopped_at(33, put(ZOMBIE), step, 1, "stop")
        story.taken_over(34, barrier())
        story.resumed()
        assert zombie.answer is not None
        zombie.answer = replace(zombie.answer, status=lie)
        with pytest.raises(AssertionError, match=r"^P3"):
            Promises(story).check()


def test_an_intent_that_outlives_an_acknowledgement_is_caught(stage: Stage) -> None:
    """The fence is raised behind the protocol's back, by a barrier that settles nothing."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", method="PUT")
        stage.postgres.rows("UPDATE fencing.intent SET value = 34 WHERE resource = $1", story.place.resource)
        story.taken_over(34, barrier())
        stage.postgres.rows("UPDATE fencing.intent SET value = 33 WHERE resource = $1", story.place.resource)
        story.acknowledged.append(story.acknowledge(barrier(), story.acknowledged[0].before))
        with pytest.raises(AssertionError, match=r"^P4"):
            Promises(story).check()


def test_a_refusal_that_is_not_on_record_is_caught(stage: Stage) -> None:
    with stage.story() as story:
        an_object(story)
        story.stopped_at(33, put(ZOMBIE), "objects.begin.before", 1, "stop")
        story.taken_over(34, barrier())
        story.resumed()
        Promises(story).p5_refusals_are_on_record()
        stage.postgres.rows("SET session_replication_role = replica")  # else a trigger would keep the record as it is
        for table in ("intake", "entry"):
            stage.postgres.rows(f"DELETE FROM fencing.{table} WHERE resource = $1", story.place.resource)
        stage.postgres.rows("RESET session_replication_role")
        with pytest.raises(AssertionError, match=r"^P5"):
            Promises(story).check()


def test_a_missed_stop_is_caught(stage: Stage) -> None:
    """A case whose writer never went down would prove nothing."""
    with stage.story() as story:
        an_object(story)
        with pytest.raises(AssertionError, match="over before"):
            story.stopped_at(33, put(ZOMBIE), "objects.bump.before", 1, "stop")
