"""The texts of a timeline: its headline, and a sentence for each shape."""

from collections.abc import Callable

import pytest

from gateway.fencing.record import Kind
from gateway.timeline.picture import draw
from tests.web.test_timeline_lanes import A, B, C, overtaken_once
from tests.web.timeline_samples import Story, party


def said(story: Story, until: float = 1000) -> str:
    return draw(story.history(0, until)).summary


def test_an_incident_in_two_sentences() -> None:
    story = Story()
    story.raises(0, A)
    story.raises(7, B)
    for seconds in (20, 400, 849):
        story.refuses(seconds, A)
    assert said(story) == (
        "writer-a (token 33) was overtaken by writer-b (token 34) at 12:00:07 and tried 3 more writes during the next "
        "14 minutes 2 seconds. All were refused. writer-b (token 34) holds the newest token, since 12:00:07."
    )


def one_write() -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(100, B)
    story.refuses(112, A)
    return story


def observed() -> Story:
    story = one_write()
    story.refuses(200, A, noted=True)
    return story


def all_observed() -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(100, B)
    story.refuses(112, A, noted=True)
    return story


def two_zombies() -> Story:
    story = overtaken_once()
    story.raises(200, C)
    story.refuses(300, B)
    return story


def new_epoch() -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(100, party("1.0", None, "operator"), Kind.EPOCH)
    story.refuses(130, A)
    return story


def twin() -> Story:
    story = Story()
    story.raises(0, A)
    story.refuses(30, party(33, "a-twin"), "token-duplicate")
    return story


def not_on_record() -> Story:
    story = one_write()
    story.takeovers.clear()
    return story


@pytest.mark.parametrize(
    ("tell", "words"),
    [
        (one_write, "at 12:01:40 and tried 1 more write 12 seconds later. It was refused."),
        (observed, "tried 2 more writes during the next 1 minute 40 seconds. 1 was refused, 1 passed because its rule"),
        (all_observed, "It passed, because the rule only observes."),
        (
            two_zombies,
            "One other writer tried 1 more write. It was refused. writer-c (token 35) holds the newest token, since",
        ),
        (new_epoch, "writer-a (token 33) was ruled out by a new epoch (token 1.0) at 12:01:40 and tried 1 more write"),
        (new_epoch, "No holder has taken it over since the new epoch began at 12:01:40."),
        (
            twin,
            "tried 1 write with a token that it had not taken over with, at 12:00:30. It was refused.",
        ),
        (not_on_record, "was overtaken by writer-b (token 34) no later than 12:01:40"),
    ],
)
def test_what_happened_in_plain_words(tell: Callable[[], Story], words: str) -> None:
    assert words in said(tell())


def test_nothing_happened() -> None:
    story = Story()
    story.raises(0, A)
    assert (
        said(story)
        == "No write was refused here in this time. writer-a (token 33) holds the newest token, since 12:00:00."
    )
    assert said(Story()) == "No write was refused here in this time."


def test_milliseconds_are_said_where_they_matter_and_days_where_they_differ() -> None:
    assert "12:00:07.250" in said(_raised(7.25), until=9)
    assert "at 12:01:40 on 1 Mar 2026 and tried" in said(one_write(), until=24 * 3600)


def _raised(seconds: float) -> Story:
    story = Story()
    story.raises(0, A)
    story.raises(seconds, B)
    story.refuses(seconds + 1, A)
    return story


def test_every_thing_in_the_picture_says_what_it_is() -> None:
    story = one_write()
    story.lease(1, Kind.LEASE_GRANTED, A)
    story.lease(90, Kind.LEASE_EXPIRED, A)
    picture = draw(story.history(0, 1000))
    (mark,) = picture.rows[0].marks
    assert mark.label == (
        "Refused: a write of writer-a (token 33) at 12:01:52, 12 seconds after it was overtaken (token-stale)."
    )
    (arrow,) = picture.arrows
    assert arrow.label == (
        "12:01:40: writer-b (token 34) took over from writer-a (token 33), whose token had been the newest for "
        "1 minute 40 seconds."
    )
    assert picture.rows[0].label == (
        "writer-a (token 33). Took over at 12:00:00. Overtaken by writer-b (token 34) at 12:01:40. 1 write refused."
    )
    assert picture.rows[0].leases == ("Lease of writer-a (token 33), granted at 12:00:01, expired at 12:01:30.",)
    assert (picture.rows[0].note, picture.rows[1].note) == ("1 refused", "newest token")
    assert draw(observed().history(0, 1000)).rows[0].note == "1 refused, 1 passed"


def test_names_beside_lanes_are_short_and_hide_nothing() -> None:
    story = Story()
    story.raises(0, party(1, "x" * 200))
    story.raises(1, party(2, "turned\u202eround"))
    names = [row.name for row in draw(story.history(0, 10)).rows]
    assert names == ["x" * 23 + "…", "turned\\u202eround"]
