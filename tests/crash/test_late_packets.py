"""The request has left the gateway and is late: on the network, or in the store. Its sender is dead, paused or waiting.

The store gets it at any later time. It must have no effect then, whatever the new holder has written in between.
"""

from typing import Any

import pytest

from gateway.fencing.intent import DEAD_AFTER, LATE_AFTER, SIGNATURE_LIFETIME
from tests.crash import kinds
from tests.crash.kinds import BEFORE, ZOMBIE, Kind, Stop, an_object, barrier, by_restoring, cases, put
from tests.crash.stage import Stage
from tests.tiers import first

PUT, DELETE = {"method": "PUT"}, {"method": "DELETE"}
COMPLETE = {"operation": "CompleteMultipartUpload"}
TAGGING = {"operation": "PutObjectTagging"}


# A kind of write, and which of its requests is the one that counts. The paths are of no interest here.
LATE: list[tuple[Kind, dict[str, Any]]] = [
    (Kind("create", put(ZOMBIE), (), kinds.nothing), PUT),
    (Kind("overwrite", put(ZOMBIE), (), an_object, BEFORE), PUT),
    (Kind("same bytes", put(BEFORE), (), an_object, BEFORE), COMPLETE),  # they go in their other form
    (Kind("other form", put(ZOMBIE), (), kinds.a_forbidden_etag, BEFORE, 34), COMPLETE),
    (Kind("delete", kinds.delete(), (), an_object, BEFORE), DELETE),
    (Kind("delete by tombstone", kinds.delete(), (), kinds.forbidden_absence, BEFORE, 34), PUT),
]
LATE_ON_ANOTHER_WAY: list[tuple[Kind, dict[str, Any]]] = [
    *((kind, COMPLETE) for kind in kinds.UPLOADS[:3]),
    (kinds.UPLOADS[3], kinds.SECOND_COMPLETION),
    (kinds.OTHERS[0], PUT),
    (kinds.OTHERS[1], DELETE),
]


def parameters(late: list[tuple[Kind, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(kind, match, id=str(kind)) for kind, match in late]


def play(
    stage: Stage, kind: Kind, how: str | None, takeover: kinds.Takeover, *, at: str, match: dict[str, Any]
) -> None:
    with stage.story() as story:
        kind.prepare(story)
        story.in_flight(kind.token, kind.deed, at=at, how=how, **match)
        story.taken_over(kind.token + 1, *takeover(kind.before))
        said = story.resumed()
        assert said, "nothing was late"
        # A request that was evaluated in time is late with its answer only.
        assert set(said) <= ({404, 409, 412} if at != "after" else {200, 204, 412})
        story.check()


@pytest.mark.parametrize("at", first(["before", "arrival"]))
@pytest.mark.parametrize("takeover", first([kinds.by_barrier, kinds.by_writing, kinds.by_removing, kinds.by_row]))
@pytest.mark.parametrize(("kind", "match"), parameters(LATE))
def test_its_sender_waits(stage: Stage, kind: Kind, match: dict[str, Any], takeover: kinds.Takeover, at: str) -> None:
    play(stage, kind, None, takeover, at=at, match=match)


@pytest.mark.thorough
@pytest.mark.parametrize("how", first(["kill", "stop", None], pytest.mark.nightly))
@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize(("kind", "match"), parameters([*LATE, *LATE_ON_ANOTHER_WAY]))
def test_its_sender_waits_or_is_down(stage: Stage, kind: Kind, match: dict[str, Any], how: str | None, at: str) -> None:
    """At "after" it took effect in time, and its answer is late."""
    play(stage, kind, how, by_restoring, at=at, match=match)


def test_a_row_written_with_the_new_token_keeps_the_old_holders_object_out(stage: Stage) -> None:
    """One resource on two planes: the new holder never touches the bucket, and its row alone is acknowledged."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", **PUT)
        story.taken_over(34, *kinds.by_row(BEFORE))
        assert story.resumed() == [412]
        assert story.content() == BEFORE
        story.check()


def test_the_same_holders_next_write_waits_for_its_late_one(stage: Stage) -> None:
    """No takeover at all: a later acknowledged write of the same token ends what was unknown before it."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", **PUT)
        story.taken_over(33, put(b"later"))
        assert story.resumed() == [412]
        story.check()


def test_a_barrier_of_the_same_holder_does_not_settle_its_own(stage: Stage) -> None:
    """A barrier ends lower tokens only. Its own late write may still take effect before the next acknowledgement."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", **PUT)
        assert story.done(33, barrier()).succeeded
        assert story.resumed() == [200]
        story.not_overtaken_yet()
        story.taken_over(34, barrier())
        assert story.content() == ZOMBIE
        story.check()


# Writes for which S3 has no condition. Nothing but the end of their signature stops them. So a newer holder is not
# acknowledged while one of them may arrive, and is once the store would refuse it.

DEAD = DEAD_AFTER + LATE_AFTER

# The steps from the announcement on until it is taken back. If the process died, no gateway can tell them apart.
IN_DOUBT = {
    "objects.begin.after", "objects.amend.before", "objects.amend.after", "objects.finish.before",
    "objects.abandon.before",
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("stop", cases(kinds.AMENDMENTS))
def test_a_takeover_waits_for_the_end_of_the_signature(stage: Stage, stop: Stop, how: str) -> None:
    with stage.story() as story:
        story.stopped(stop, how)
        assert story.done(34, barrier()).status == (503 if stop.step in IN_DOUBT else 200)
        with stage.later(DEAD):
            story.taken_over(34, *by_restoring(stop.kind.before))
            story.resumed()
            story.check()


def test_nobody_is_acknowledged_before(stage: Stage) -> None:
    """The signature alone being dead is not enough: a request that has arrived may be slow to take effect."""
    with stage.story() as story:
        an_object(story)
        story.stopped_at(33, kinds.tag("zombie"), "objects.amend.before", 1, "stop")
        with stage.later(SIGNATURE_LIFETIME + LATE_AFTER / 2):
            assert [story.done(34, deed).status for deed in (barrier(), put(b"x"), kinds.upsert("x"))] == [
                503,
                503,
                503,
            ]
        story.resumed()
        story.not_overtaken_yet()
        story.taken_over(34, *by_restoring(BEFORE))
        story.check()


@pytest.mark.parametrize("how", first(["stop", "kill", None]))
def test_a_late_amendment_is_refused_by_the_store(stage: Stage, how: str | None) -> None:
    """It comes when the new holder has been acknowledged, with a signature that has ended."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, kinds.tag("zombie"), at="arrival", how=how, **TAGGING)
        assert story.done(34, barrier()).unknown
        with stage.later(DEAD):
            story.taken_over(34, *by_restoring(BEFORE))
            assert story.resumed() == [None], "it was evaluated"
            story.check()


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_lost_request_or_answer_holds_a_takeover_up(stage: Stage, at: str) -> None:
    """Its writer cannot know what became of it, and says so."""
    with stage.story() as story:
        an_object(story)
        stage.double.rule("cut", at=at, key=story.place.key, **TAGGING)
        assert story.done(33, kinds.tag("zombie")).unknown
        assert story.done(34, barrier()).unknown
        with stage.later(DEAD):
            story.taken_over(34, *by_restoring(BEFORE))
            story.check()


@pytest.mark.thorough
def test_a_takeover_waits_for_an_upload_that_is_slow_to_go(stage: Stage) -> None:
    """The store answers an abort before the upload is gone. Until then, a late completion would take effect."""
    with stage.behaving(abort_delay=(0.3, 0.0)), stage.story() as story:
        kinds.an_older_upload(story)
        story.in_flight(33, kinds.complete(ZOMBIE), **kinds.SECOND_COMPLETION)
        story.taken_over(34, *by_restoring(BEFORE))
        assert story.resumed() == [404]
        story.check()
