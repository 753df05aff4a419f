"""Uploads that a gateway staged and abandoned do not stay in the store for ever."""

import re
from datetime import timedelta
from urllib.parse import quote

import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.objects.background.sweeper import LEFT_BEHIND
from tests.crash.clients import BUCKET
from tests.crash.deeds import by_restoring, put_in_two_parts
from tests.crash.kinds import BEFORE, LARGE, an_object
from tests.crash.promises import Promises
from tests.crash.stage import Stage
from tests.crash.story import Story
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY
from tests.waiting import PATIENCE

pytestmark = pytest.mark.thorough

# Everything is in the store, and nothing of it is to be seen.
STAGED = ["objects.begin.before", "objects.complete.before"]


def uploads(story: Story) -> list[str]:
    """The ids of the uploads that the store has at the key."""
    url = f"{story.stage.double.endpoint}/{BUCKET}?prefix={quote(story.place.key, safe='')}&uploads="
    request = AWSRequest(method="GET", url=url)
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
    listed = httpx.get(url, headers=dict(request.headers.items()), trust_env=False, timeout=PATIENCE)
    assert listed.status_code == 200, listed.text
    return re.findall("<UploadId>([^<]+)</UploadId>", listed.text)


def untouched(story: Story, passed: timedelta) -> None:
    """Let so much time pass, by the database's clock, since the last touch of the staged uploads."""
    sql = "UPDATE fencing.upload SET touched_at = touched_at - $2::interval WHERE resource = $1"
    story.stage.postgres.rows(sql, story.place.resource, passed)


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("step", STAGED)
def test_what_is_staged_is_swept(stage: Stage, step: str, how: str, *, overtaken: bool) -> None:
    """One that was only paused finds its upload gone, and says that it has not written."""
    stage.sweep()  # uploads that earlier stories have left behind may be old by now
    with stage.story() as story:
        an_object(story)
        zombie = story.stopped_at(33, put_in_two_parts(LARGE), step, 1, how)
        if overtaken:
            story.taken_over(34, *by_restoring(BEFORE))
        assert stage.sweep().uploads == 0, "it may still be wanted"
        assert len(uploads(story)) == 1
        untouched(story, LEFT_BEHIND)
        assert stage.sweep().uploads == 1
        assert uploads(story) == []
        if not overtaken:
            story.resumed()
            assert zombie.killed or zombie.answer is not None
            assert zombie.answer is None or not zombie.answer.succeeded
            assert story.content() == BEFORE
            story.taken_over(34, *by_restoring(BEFORE))
        else:
            story.resumed()
        Promises(story).check()
