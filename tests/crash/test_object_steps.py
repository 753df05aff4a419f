"""A gateway is paused or killed at each step of an object write, and a new holder takes over: P1–P5."""

import re
from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest
from botocore.credentials import Credentials

from gateway.objects.background.sweeper import LEFT_BEHIND
from tests.crash import kinds
from tests.crash.clients import BUCKET, signed
from tests.crash.kinds import BEFORE, ZOMBIE, Deed, Stop, Takeover, by_restoring, cases, complete, put
from tests.crash.stage import Stage, Story
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY
from tests.tiers import first
from tests.waiting import PATIENCE

TAKEOVERS = [kinds.by_barrier, kinds.by_writing, by_restoring, kinds.by_removing]


@pytest.mark.parametrize("takeover", first(TAKEOVERS))
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


class TestCompletedBefore:
    """The next holder sends a completion again: it writes nothing, and is acknowledged as everything else is."""

    @pytest.mark.parametrize("late", [put(b"late"), kinds.upsert("late")], ids=["object", "row"])
    def test_an_older_holder_is_refused_from_then_on(self, stage: Stage, late: Deed) -> None:
        self.play(stage, complete(ZOMBIE), late)

    def test_an_overtaken_holder_is_refused(self, stage: Stage) -> None:
        self.play(stage, put(b"the new holder's"), complete(ZOMBIE))

    def play(self, stage: Stage, takeover: Deed, late: Deed) -> None:
        with stage.story() as story:
            kinds.an_upload(story)
            assert story.done(33, complete(ZOMBIE)).succeeded
            story.taken_over(34, takeover)
            answer = story.done(33, late)
            assert (answer.status, answer.refused_by_fence) == (412, True)
            story.check()

    @pytest.mark.parametrize("how", ["stop", "kill", None])
    def test_an_older_holders_write_that_is_under_way_is_settled(self, stage: Stage, how: str | None) -> None:
        with stage.story() as story:
            kinds.a_row(story)
            kinds.an_upload(story)
            assert story.done(33, complete(ZOMBIE)).succeeded
            story.in_flight(33, put(b"late"), how=how, method="PUT")
            story.taken_over(34, complete(ZOMBIE))
            assert story.resumed() == [412]
            story.check()


def uploads(story: Story) -> list[str]:
    """The ids of the uploads that the store has at the key."""
    url = f"{story.stage.double.endpoint}/{BUCKET}?prefix={quote(story.place.key, safe='')}&uploads="
    headers = signed("GET", url, b"", {}, Credentials(ACCESS_KEY, SECRET_KEY))
    listed = httpx.get(url, headers=headers, trust_env=False, timeout=PATIENCE)
    assert listed.status_code == 200, listed.text
    return re.findall("<UploadId>([^<]+)</UploadId>", listed.text)


def untouched(story: Story, passed: timedelta) -> None:
    """Let so much time pass, by the database's clock, since the last touch of the staged uploads."""
    sql = "UPDATE fencing.upload SET touched_at = touched_at - $2::interval WHERE resource = $1"
    story.stage.postgres.rows(sql, story.place.resource, passed)


@pytest.mark.thorough
@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("step", ["objects.begin.before", "objects.complete.before"])
def test_what_is_staged_is_swept(stage: Stage, step: str, how: str, *, overtaken: bool) -> None:
    """At these steps everything is in the store, and nothing of it is to be seen.

    A writer that was only paused finds its upload gone, and says that it has not written.
    """
    stage.sweep()  # uploads that earlier stories have left behind may be old by now
    with stage.story() as story:
        kinds.an_object(story)
        zombie = story.stopped_at(33, kinds.put_in_two_parts(kinds.LARGE), step, 1, how)
        if overtaken:
            story.taken_over(34, *by_restoring(BEFORE))
        assert stage.sweep().uploads == 0, "it may still be wanted"
        assert len(uploads(story)) == 1
        untouched(story, LEFT_BEHIND)
        assert stage.sweep().uploads == 1
        assert uploads(story) == []
        story.resumed()
        if not overtaken:
            assert zombie.killed or zombie.answer is not None
            assert zombie.answer is None or not zombie.answer.succeeded
            assert story.content() == BEFORE
            story.taken_over(34, *by_restoring(BEFORE))
        story.check()
