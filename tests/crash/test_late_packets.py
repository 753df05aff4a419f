"""The request has left the gateway and is late: on the network, or in the store. Its sender is dead, paused or waiting.

The store gets it at any later time. It must have no effect then, whatever the new holder has written in between.
"""

from typing import Any

import pytest

from tests.crash.deeds import Takeover, barrier, by_barrier, by_removing, by_restoring, by_row, by_writing, delete, put
from tests.crash.kinds import (
    BEFORE,
    OTHERS,
    OVER_COMPLETION,
    SECOND_COMPLETION,
    SETTLERS,
    UPLOADS,
    ZOMBIE,
    Kind,
    a_forbidden_etag,
    an_object,
    forbidden_absence,
    nothing,
)
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.tiers import first

PUT = {"method": "PUT"}
COMPLETE = {"operation": "CompleteMultipartUpload"}
ABORT = {"operation": "AbortMultipartUpload"}

# A kind of write, and which of its requests is the one that counts. The paths are of no interest here.
LATE: list[tuple[Kind, dict[str, Any]]] = [
    (Kind("create", put(ZOMBIE), (), nothing), PUT),
    (Kind("overwrite", put(ZOMBIE), (), an_object, BEFORE), PUT),
    (Kind("same bytes", put(BEFORE), (), an_object, BEFORE), COMPLETE),  # they go in their other form
    (Kind("other form", put(ZOMBIE), (), a_forbidden_etag, BEFORE, 34), COMPLETE),
    (Kind("delete", delete(), (), an_object, BEFORE), {"method": "DELETE"}),
    (Kind("delete by tombstone", delete(), (), forbidden_absence, BEFORE, 34), PUT),
]
LATE_ON_ANOTHER_WAY: list[tuple[Kind, dict[str, Any]]] = [
    *((kind, COMPLETE) for kind in UPLOADS[:3]),
    (UPLOADS[3], SECOND_COMPLETION),
    (OTHERS[0], PUT),
    (OTHERS[1], {"method": "DELETE"}),
]
# A settler's request can be late as well, behind the late request that it settles.
LATE_SETTLEMENT = [
    (SETTLERS[0], COMPLETE),
    (SETTLERS[1], PUT),
    (SETTLERS[2], COMPLETE),
    (OVER_COMPLETION, ABORT),
]
TAKEOVERS = [by_barrier, by_writing, by_restoring, by_removing, by_row]


def parameters(late: list[tuple[Kind, dict[str, Any]]]) -> list[Any]:
    return [pytest.param(kind, match, id=str(kind)) for kind, match in late]


def play(stage: Stage, kind: Kind, how: str | None, takeover: Takeover, *, at: str, match: dict[str, Any]) -> None:
    with stage.story() as story:
        kind.prepare(story)
        story.in_flight(kind.token, kind.deed, at=at, how=how, **match)
        story.taken_over(kind.token + 1, *takeover(kind.before))
        said = story.resumed()
        assert said, "nothing was late"
        # A request that was evaluated in time is late with its answer only. An upload can be given up twice (204).
        harmless = {404, 409, 412} | ({204} if match == ABORT else set())
        assert set(said) <= (harmless if at != "after" else {200, 204, 412})
        Promises(story).check()


@pytest.mark.parametrize("at", ["arrival", "before"])
@pytest.mark.parametrize("takeover", first(TAKEOVERS))
@pytest.mark.parametrize(("kind", "match"), parameters(LATE))
def test_its_sender_waits(stage: Stage, kind: Kind, match: dict[str, Any], takeover: Takeover, at: str) -> None:
    play(stage, kind, None, takeover, at=at, match=match)


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["arrival", "before"])
@pytest.mark.parametrize(("kind", "match"), parameters(LATE_ON_ANOTHER_WAY))
def test_its_sender_waits_on_another_way(stage: Stage, kind: Kind, match: dict[str, Any], at: str) -> None:
    play(stage, kind, None, by_restoring, at=at, match=match)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize(("kind", "match"), parameters([*LATE, *LATE_ON_ANOTHER_WAY]))
def test_its_sender_is_down(stage: Stage, kind: Kind, match: dict[str, Any], how: str) -> None:
    play(stage, kind, how, by_restoring, at="before", match=match)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill", None])
@pytest.mark.parametrize(("kind", "match"), parameters([*LATE, *LATE_ON_ANOTHER_WAY]))
def test_it_took_effect_and_the_answer_is_late(
    stage: Stage, kind: Kind, match: dict[str, Any], how: str | None
) -> None:
    play(stage, kind, how, by_restoring, at="after", match=match)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["stop", "kill", None])
@pytest.mark.parametrize(("kind", "match"), parameters(LATE_SETTLEMENT))
def test_a_settlement_is_late(stage: Stage, kind: Kind, match: dict[str, Any], how: str | None) -> None:
    play(stage, kind, how, by_restoring, at="before", match=match)


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "match"), parameters([*LATE, *LATE_ON_ANOTHER_WAY]))
def test_the_answer_is_lost(stage: Stage, kind: Kind, match: dict[str, Any]) -> None:
    """It took effect and the connection broke. The writer finds its own write, or says that it does not know."""
    with stage.story() as story:
        kind.prepare(story)
        story.stage.double.rule("cut", at="after", key=story.place.key, **match)
        story.unharmed(kind.token, kind.deed)
        story.not_overtaken_yet()
        story.taken_over(kind.token + 1, *by_restoring(kind.before))
        Promises(story).check()


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "match"), parameters([*LATE, *LATE_ON_ANOTHER_WAY]))
def test_the_request_is_lost(stage: Stage, kind: Kind, match: dict[str, Any]) -> None:
    """It never arrived, which the writer cannot know. Its intent does not hold the new holder up."""
    with stage.story() as story:
        kind.prepare(story)
        story.stage.double.rule("cut", at="before", key=story.place.key, **match)
        story.unharmed(kind.token, kind.deed)
        story.not_overtaken_yet()
        story.taken_over(kind.token + 1, *by_restoring(kind.before))
        Promises(story).check()


def test_a_row_written_with_the_new_token_keeps_the_old_holders_object_out(stage: Stage) -> None:
    """One resource on two planes: the new holder never touches the bucket, and its row alone is acknowledged."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", **PUT)
        story.taken_over(34, *by_row(BEFORE))
        assert story.resumed() == [412]
        assert story.content() == BEFORE
        Promises(story).check()


def test_the_same_holders_next_write_waits_for_its_late_one(stage: Stage) -> None:
    """No takeover at all: a later acknowledged write of the same token ends what was unknown before it."""
    with stage.story() as story:
        an_object(story)
        story.in_flight(33, put(ZOMBIE), how="kill", **PUT)
        story.taken_over(33, put(b"later"))
        assert story.resumed() == [412]
        Promises(story).check()


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
        Promises(story).check()
