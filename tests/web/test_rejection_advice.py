"""The advice about a refused write contains only steps that apply to it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from gateway.fencing.decision import Fence
from gateway.fencing.record import Entry, Kind
from gateway.fencing.token import Token
from gateway.web.advice import rejection_advice

AT = datetime(2026, 3, 8, 12, tzinfo=UTC)
BACK = "lower now than it was then"


def fence(value: int, epoch: int = 0) -> Fence:
    return Fence("job/1", Token(epoch, value), "b", "worker", AT)


REFUSED = Entry(
    position=1,
    hash="00" * 32,
    id=UUID(int=1),
    at=AT,
    kind=Kind.REJECTION,
    plane="tables",
    rule=None,
    resource="job/1",
    reason="token-stale",
    enforced=True,
    token=Token(0, 33),
    holder="a",
    caller="worker",
    method="PATCH",
    target="/v1/tables/jobs?id=eq.1",
    client=None,
    request_id="r",
    payload_size=None,
    payload_sha256=None,
    fence=fence(34),
    details=None,
)


@pytest.mark.parametrize(
    ("reason", "token", "now", "back"),
    [
        ("token-stale", 33, fence(34), False),
        ("token-stale", 33, fence(90), False),
        ("token-stale", 33, fence(0, epoch=1), False),
        ("token-stale", 33, fence(33), True),
        ("token-duplicate", 34, fence(34), False),
        ("token-used", 34, fence(34), False),
        ("token-implausible", 10**15, fence(34), False),
        ("token-stale", 33, None, False),
    ],
)
def test_a_fence_is_said_to_be_set_back_where_it_was(reason: str, token: int, now: Fence | None, *, back: bool) -> None:
    refused = replace(REFUSED, reason=reason, token=Token(0, token))
    said = rejection_advice(refused, timedelta(seconds=1), now)
    assert any(BACK in one for one in said) is back


def test_a_write_that_met_no_fence_cannot_tell() -> None:
    refused = replace(REFUSED, reason="token-implausible", fence=None)
    assert not any(BACK in one for one in rejection_advice(refused, None, fence(1)))


def test_a_long_zombie_gets_the_advice_to_find_its_cause() -> None:
    def looked_for(lag: timedelta) -> bool:
        return any("Look for the cause" in one for one in rejection_advice(REFUSED, lag, fence(34)))

    assert (looked_for(timedelta(seconds=59)), looked_for(timedelta(minutes=1))) == (False, True)


def test_the_advice_about_a_write_that_passed_says_so() -> None:
    passed, *_ = rejection_advice(replace(REFUSED, enforced=False), None, fence(34))
    assert "took effect" in passed
    nothing, *_ = rejection_advice(REFUSED, None, fence(34))
    assert "Nothing was written" in nothing
