"""The page of an entry: the summary of an alarm, advice that applies to a refused write, and its payload."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.fencing.decision import Fence
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.web.advice import rejection_advice
from gateway.web.entry_page import alarm_summary, payload_lines
from tests.web.test_live_page import ENTRY

AT = datetime(2026, 3, 8, 12, tzinfo=UTC)
BACK = "lower now than it was then"


def fence(value: int, epoch: int = 0) -> Fence:
    return Fence("job/1", Token(epoch, value), "b", "worker", AT)


REFUSED = replace(
    ENTRY,
    at=AT,
    plane="tables",
    resource="job/1",
    reason="token-stale",
    enforced=True,
    token=Token(0, 33),
    holder="a",
    caller="worker",
    method="PATCH",
    target="/v1/tables/jobs?id=eq.1",
    fence=fence(34),
)


@pytest.mark.parametrize(
    ("reason", "token", "now", "back"),
    [
        ("token-stale", 33, fence(34), False),
        ("token-stale", 33, fence(0, epoch=1), False),
        ("token-stale", 33, fence(33), True),
        ("token-duplicate", 34, fence(34), False),
        ("token-implausible", 10**15, fence(34), False),
        ("token-stale", 33, None, False),
    ],
)
def test_a_fence_is_said_to_be_set_back_where_it_was(reason: str, token: int, now: Fence | None, *, back: bool) -> None:
    refused = replace(REFUSED, reason=reason, token=Token(0, token))
    said = rejection_advice(refused, timedelta(seconds=1), now)
    assert any(BACK in one for one in said) is back


ABOUT = {"alarm": "many", "prefix": "job/", "more_than": 5, "minutes": 10, "count": 6}
ALARM: dict[str, Any] = {
    **ABOUT,
    "reached": "2026-03-08T12:00:00.400000Z",
    "resources": [{"name": "job/1", "count": 6}],
    "holders": [{"name": None, "count": 4}, {"name": "a", "count": 2}],
    "callers": [],
    "rejections": [str(UUID(int=7))],
}
ALARM_OVER: dict[str, Any] = {
    **ABOUT,
    "since": "2026-03-08T12:00:00.4Z",
    "until": "2026-03-08T13:00:00Z",
    "raised": str(UUID(int=8)),
}


def moment(hour: int, minute: int, second: int) -> datetime:
    return datetime(2026, 3, 8, hour, minute, second, tzinfo=UTC)


def test_the_summary_of_an_alarm_that_begins_and_of_one_that_is_over() -> None:
    """The span has all that was counted in it, and what began it."""
    alarm = alarm_summary(replace(REFUSED, kind=Kind.ALARM_RAISED, details=ALARM))
    assert alarm is not None
    assert (alarm.name, alarm.prefix, alarm.more_than, alarm.minutes, alarm.count) == ("many", "job/", 5, 10, 6)
    assert (alarm.since, alarm.until) == (moment(11, 50, 0), moment(12, 0, 1))
    assert alarm.groups == {"resource": [("job/1", 6)], "holder": [(None, 4), ("a", 2)], "caller": []}
    assert (alarm.rejections, alarm.raised) == ([UUID(int=7)], None)
    alarm = alarm_summary(replace(REFUSED, kind=Kind.ALARM_CLEARED, details=ALARM_OVER))
    assert alarm is not None
    assert (alarm.since, alarm.until) == (moment(11, 50, 0), moment(13, 0, 1))
    assert (alarm.rejections, alarm.raised) == ([], UUID(int=8))


@pytest.mark.parametrize(
    "details",
    [
        *(None, {}, {**ALARM, "minutes": "<script>"}, {**ALARM, "minutes": 10**30}, {**ALARM, "reached": 5}),
        *({**ALARM, "reached": "0001-01-01T00:00:00Z"}, {**ALARM, "reached": "9999-12-31T23:59:59Z"}),
        *({**ALARM, "holders": "nobody"}, {**ALARM, "holders": {"name": "a"}}, {**ALARM, "rejections": ["../../"]}),
        {**ALARM, "rejections": 5},
    ],
)
def test_unreadable_details_are_no_alarm_and_neither_is_another_entry(details: Any) -> None:
    assert alarm_summary(replace(REFUSED, kind=Kind.ALARM_RAISED, details=details)) is None
    assert alarm_summary(replace(REFUSED, kind=Kind.BYPASS, details=ALARM)) is None


def test_text_is_shown_line_by_line() -> None:
    assert payload_lines(b'{"a": 1}\n{"b": 2}\r\n').lines == ['{"a": 1}', '{"b": 2}']
    assert payload_lines(b"").lines == []


def test_a_character_that_was_cut_in_two_is_left_out() -> None:
    for cut in (b"\xc3", b"\xe2\x80", b"\xf0\x9f\x98"):
        payload = payload_lines(b"abc" + cut)
        assert (payload.lines, payload.binary) == (["abc"], False)


def test_bytes_are_shown_in_hex_and_not_all_of_them() -> None:
    payload = payload_lines(b"\xff\x00PK<" + b"\x00" * 5000)
    assert payload.binary
    assert payload.lines[0] == "000000  ff 00 50 4b 3c 00 00 00 00 00 00 00 00 00 00 00  ..PK<..........."
    assert len(payload.lines) == 64
    assert payload_lines(b"a\xffb").binary
    assert payload_lines(b"\x80").binary
