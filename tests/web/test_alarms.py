"""The summary of an alarm is read from its entry, and from no other entry."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from gateway.fencing.record import Kind
from gateway.web.entry_page import alarm_summary
from tests.web.test_rejection_advice import REFUSED

ABOUT = {"alarm": "many", "prefix": "job/", "more_than": 5, "minutes": 10, "count": 6}
RAISED: dict[str, Any] = {
    **ABOUT,
    "reached": "2026-03-08T12:00:00.400000Z",
    "resources": [{"name": "job/1", "count": 6}],
    "holders": [{"name": None, "count": 4}, {"name": "a", "count": 2}],
    "callers": [],
    "rejections": [str(UUID(int=7))],
}
CLEARED: dict[str, Any] = {
    **ABOUT,
    "since": "2026-03-08T12:00:00.4Z",
    "until": "2026-03-08T13:00:00Z",
    "raised": str(UUID(int=8)),
}


def at(hour: int, minute: int, second: int) -> datetime:
    return datetime(2026, 3, 8, hour, minute, second, tzinfo=UTC)


def test_the_summary_of_an_alarm_that_begins() -> None:
    """The span has all that was counted in it, and what began it."""
    alarm = alarm_summary(replace(REFUSED, kind=Kind.ALARM_RAISED, details=RAISED))
    assert alarm is not None
    assert (alarm.name, alarm.prefix, alarm.more_than, alarm.minutes, alarm.count) == ("many", "job/", 5, 10, 6)
    assert (alarm.since, alarm.until) == (at(11, 50, 0), at(12, 0, 1))
    assert alarm.groups == {"resource": [("job/1", 6)], "holder": [(None, 4), ("a", 2)], "caller": []}
    assert (alarm.rejections, alarm.raised) == ([UUID(int=7)], None)


def test_the_summary_of_an_alarm_that_is_over() -> None:
    alarm = alarm_summary(replace(REFUSED, kind=Kind.ALARM_CLEARED, details=CLEARED))
    assert alarm is not None
    assert (alarm.since, alarm.until) == (at(11, 50, 0), at(13, 0, 1))
    assert (alarm.rejections, alarm.raised) == ([], UUID(int=8))


@pytest.mark.parametrize(
    "details",
    [
        None,
        {},
        {**RAISED, "minutes": "<script>"},
        {**RAISED, "minutes": 10**30},
        {**RAISED, "reached": 5},
        {**RAISED, "reached": "0001-01-01T00:00:00Z"},
        {**RAISED, "reached": "9999-12-31T23:59:59Z"},
        {**RAISED, "holders": "nobody"},
        {**RAISED, "holders": {"name": "a"}},
        {**RAISED, "rejections": ["../../"]},
        {**RAISED, "rejections": 5},
    ],
)
def test_unreadable_details_are_no_alarm(details: Any) -> None:
    assert alarm_summary(replace(REFUSED, kind=Kind.ALARM_RAISED, details=details)) is None


def test_no_other_entry_is_an_alarm() -> None:
    assert alarm_summary(replace(REFUSED, kind=Kind.BYPASS, details=RAISED)) is None
