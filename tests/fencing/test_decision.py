"""The decision, as a table."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from gateway.fencing.decision import Decision, Equal, Fence, Presented, decide
from gateway.fencing.token import Token

MINE, OTHER = UUID(int=1), UUID(int=2)


def fence(epoch: int, value: int, holder: str | None = None, write_id: UUID | None = OTHER) -> Fence:
    return Fence("r", Token(epoch, value), holder, None, datetime(2026, 1, 1, tzinfo=UTC), write_id)


@pytest.mark.parametrize(
    ("stands", "shown", "equal", "decision"),
    [
        (None, Presented(Token(0, 0)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 34)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 33)), Equal.ACCEPT, Decision.HELD),
        (fence(0, 34), Presented(Token(0, 33)), Equal.ACCEPT, Decision.STALE),
        (fence(1, 1), Presented(Token(0, 99)), Equal.ACCEPT, Decision.STALE),
        (fence(0, 99), Presented(Token(1, 0)), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "ann"), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "bob"), Equal.ACCEPT, Decision.DUPLICATE),
        (fence(0, 33, "ann"), Presented(Token(0, 33)), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33), Presented(Token(0, 33), "bob"), Equal.ACCEPT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 32), "bob"), Equal.ACCEPT, Decision.STALE),
        (fence(0, 33, "ann"), Presented(Token(0, 34), "bob"), Equal.ACCEPT, Decision.RAISED),
        (fence(0, 33), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.USED),
        (fence(0, 33, None, MINE), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.HELD),
        (fence(0, 33, None, None), Presented(Token(0, 33), None, MINE), Equal.STRICT, Decision.HELD),
        (fence(0, 33, "ann"), Presented(Token(0, 33), "bob", MINE), Equal.STRICT, Decision.DUPLICATE),
        (fence(0, 33), Presented(Token(0, 34), None, MINE), Equal.STRICT, Decision.RAISED),
    ],
)
def test_decisions(stands: Fence | None, shown: Presented, equal: Equal, decision: Decision) -> None:
    assert decide(stands, shown, equal) is decision


def test_only_raised_and_held_pass() -> None:
    assert {decision for decision in Decision if decision.passes} == {Decision.RAISED, Decision.HELD}
