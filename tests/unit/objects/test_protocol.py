"""Turns of the protocol that the explorer's stores do not take: what a store refuses, mispredicts, or cannot do.

Each test is a script: what the protocol must ask for, and what it is answered. ``tests/model`` covers the rest.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.fencing.intent import Announcement, Begun, Forbidden, Intent, KnownObject, Raised
from gateway.fencing.rules import Decision, Fence, Presented
from gateway.fencing.token import Token
from gateway.objects import protocol
from gateway.objects.answers import Applied, Found, Missing, NotApplied, NotSent, Rejected, Unknown
from gateway.objects.conditions import Condition, Expect
from gateway.objects.effects import (
    Abandon,
    Barred,
    Begin,
    Bump,
    Candidate,
    ConditionFailed,
    Delete,
    Deleted,
    Entomb,
    Finish,
    Forbid,
    Form,
    Head,
    NotDone,
    Put,
    RaiseFence,
    Recall,
    Refused,
    Stored,
    StoreRefused,
    Uncertain,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = Token(0, 34)
FENCE = Fence("r", TOKEN, None, "tester", NOW)
WRITE = Announcement("r", "bucket", "k", UUID(int=1), Presented(TOKEN), "tester")
INTENT = Intent("r", "bucket", "k", UUID(int=9), Token(0, 33), "e0", NOW)
FORMS = (Candidate(Form.PLAIN, "plain"), Candidate(Form.MULTIPART, "parts"))
KNOWN = KnownObject("e0", tombstone=False)
REFUSED = Rejected(403, "AccessDenied", "no")


def begun(*forbidden: str) -> Begun:
    return Begun(Decision.HELD, FENCE, (), NOW, frozenset(forbidden))


def ours(etag: str) -> Found:
    return Found(etag, write_id=str(WRITE.write_id))


def play(steps: protocol.Steps[Any], script: Sequence[tuple[type, Any]]) -> tuple[Any, list[Any]]:
    """Play a script of (what must be asked for, the answer). Returns what it came to, and everything asked for."""
    asked: list[Any] = []
    answer: Any = None
    try:
        for expected, following in script:
            asked.append(steps.send(answer))
            assert isinstance(asked[-1], expected), f"asked for {asked[-1]}"
            answer = following
        steps.send(answer)
    except StopIteration as end:
        return end.value, asked
    raise AssertionError("the script ended before the protocol did")


PUT = [(Recall, KNOWN), (Begin, begun())]

PUTS: list[tuple[str, list[tuple[type, Any]], type]] = [
    ("accepted", [*PUT, (Put, Applied("plain")), (Finish, True)], Stored),
    ("the store cannot be reached", [*PUT, (Put, NotSent("down")), (Abandon, None)], NotDone),
    ("the store refuses", [*PUT, (Put, REFUSED), (Abandon, None)], StoreRefused),
    ("no answer, and not there", [*PUT, (Put, Unknown("timeout")), (Head, Found("e0"))], Uncertain),
    ("no answer, but there", [*PUT, (Put, Unknown("timeout")), (Head, ours("plain")), (Finish, True)], Stored),
    ("no answer to the look either", [*PUT, (Put, Unknown("timeout")), (Head, Unknown("timeout"))], Uncertain),
    ("412 to our second sending", [*PUT, (Put, NotApplied(412, "")), (Head, ours("plain")), (Finish, True)], Stored),
    ("settled, but there to stay", [*PUT, (Put, Applied("plain")), (Finish, False), (Head, ours("plain"))], Stored),
    ("settled, same ETag as before", [*PUT, (Put, Applied("e0")), (Finish, False), (Head, ours("e0"))], Uncertain),
    ("settled and overwritten", [*PUT, (Put, Applied("plain")), (Finish, False), (Head, Found("other"))], Uncertain),
    ("every form forbidden", [(Recall, KNOWN), (Begin, begun("plain", "parts")), (Abandon, None)], NotDone),
    ("refused by the fence", [(Recall, KNOWN), (Begin, Begun(Decision.STALE, FENCE))], Refused),
    ("nothing known, no answer", [(Recall, None), (Head, Unknown("timeout"))], NotDone),
    (
        "an ETag nobody predicted, and a forbidden one",
        [(Recall, KNOWN), (Begin, begun("odd")), (Put, Applied("odd")), (Bump, Applied("new")), (Finish, True)],
        Stored,
    ),
    (
        "the same, and it cannot be bumped",
        [(Recall, KNOWN), (Begin, begun("odd")), (Put, Applied("odd")), (Bump, NotSent("no form"))],
        Uncertain,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("script", "outcome"), [case[1:] for case in PUTS], ids=[case[0] for case in PUTS])
def test_a_put_comes_to(script: list[tuple[type, Any]], outcome: type) -> None:
    assert isinstance(play(protocol.put(WRITE, FORMS), script)[0], outcome)


def test_a_forbidden_form_is_avoided() -> None:
    script = [(Recall, KNOWN), (Begin, begun("plain")), (Put, Applied("parts")), (Finish, True)]
    _, asked = play(protocol.put(WRITE, FORMS), script)
    assert asked[2].form is Form.MULTIPART


def test_each_attempt_is_an_intent_of_its_own() -> None:
    again = [(Put, NotApplied(412, "")), (Head, Found("e1")), (Abandon, None), (Head, Found("e1")), (Begin, begun())]
    _, asked = play(protocol.put(WRITE, FORMS), [*PUT, *again, (Put, Applied("plain")), (Finish, True)])
    assert [effect.write.attempt for effect in asked if isinstance(effect, Begin)] == [1, 2]
    assert [effect.expected for effect in asked if isinstance(effect, Put)] == ["e0", "e1"]


def test_an_object_that_keeps_changing_ends_after_some_attempts() -> None:
    missed = [(Put, NotApplied(412, "")), (Head, Found("e")), (Abandon, None)]
    again = [(Head, Found("e")), (Begin, begun()), *missed]
    outcome, _ = play(protocol.put(WRITE, FORMS), [*PUT, *missed, *again * (protocol.ATTEMPTS - 1)])
    assert isinstance(outcome, NotDone)


def test_the_callers_condition_is_judged_on_a_fresh_look_and_under_an_intent() -> None:
    script = [(Head, Found("e0")), (Begin, begun()), (Abandon, None)]
    outcome, _ = play(protocol.put(WRITE, FORMS, Condition(Expect.ABSENT)), script)
    assert isinstance(outcome, ConditionFailed)
    assert outcome.error.status == 412


@pytest.mark.parametrize(
    ("script", "conditional"),
    [
        ([(Recall, KNOWN), (Begin, begun()), (Delete, Applied(None)), (Finish, True)], True),
        ([(Recall, KNOWN), (Begin, begun("")), (Entomb, Applied("t")), (Finish, True)], True),
        ([(Recall, KNOWN), (Begin, begun()), (Entomb, Applied("t")), (Finish, True)], False),
        ([(Recall, KnownObject(None, tombstone=False)), (Begin, begun()), (Head, Missing()), (Abandon, None)], True),
    ],
    ids=["plainly", "where absence is forbidden", "where the store deletes unconditionally", "what is not there"],
)
def test_a_delete_deletes(script: list[tuple[type, Any]], conditional: bool) -> None:  # noqa: FBT001
    outcome, _ = play(protocol.delete(WRITE, conditional_delete=conditional), script)
    assert isinstance(outcome, Deleted)


FORBIDDEN = (Forbid, Forbidden(NOW, frozenset({"e0"})))
LONG_AFTER = NOW + protocol.SIGNATURE_LIFETIME + protocol.MARGIN + timedelta(seconds=1)
NOT_LONG_AFTER = NOW + protocol.SIGNATURE_LIFETIME + protocol.MARGIN


def test_what_cannot_be_bumped_is_settled_once_its_signature_is_dead() -> None:
    """By the store's clock. Until then nothing is settled, however often it is tried."""
    bump = (Bump, NotSent("the store ignores conditions on completed uploads"))
    waits = [(Head, Found("e0", date=NOT_LONG_AFTER)), bump]
    assert play(protocol.settle(INTENT), [FORBIDDEN, *waits * protocol.ATTEMPTS])[0] is False
    settled, asked = play(
        protocol.settle(INTENT), [FORBIDDEN, (Head, Found("e0", date=LONG_AFTER)), bump, (Abandon, None)]
    )
    assert settled is True
    assert asked[-1] == Abandon(INTENT)


def test_a_dead_signature_does_not_replace_a_bump() -> None:
    """A store that can be bumped is: what has arrived before its signature died may still be on its way inside."""
    late = Found("e0", date=LONG_AFTER)
    script = [FORBIDDEN, (Head, late), (Bump, Applied("e1")), (Head, Found("e1")), (Abandon, None)]
    assert play(protocol.settle(INTENT), script)[0] is True


def test_a_store_that_does_not_tell_the_time_proves_nothing() -> None:
    waits = [(Head, Found("e0")), (Bump, NotSent("no"))] * protocol.ATTEMPTS
    assert play(protocol.settle(INTENT), [FORBIDDEN, *waits])[0] is False


def test_an_unknown_look_settles_nothing() -> None:
    assert play(protocol.settle(INTENT), [FORBIDDEN, *[(Head, Unknown("timeout"))] * protocol.ATTEMPTS])[0] is False


def test_a_barrier_does_not_stand_before_all_is_settled() -> None:
    raised = (RaiseFence, Raised(Decision.RAISED, FENCE, (INTENT,)))
    steps = protocol.barrier("r", Presented(TOKEN), "tester")
    settled = [FORBIDDEN, (Head, Found("e1")), (Abandon, None)]
    assert isinstance(play(steps, [raised, *settled])[0], Barred)
    steps = protocol.barrier("r", Presented(TOKEN), "tester")
    silent = [FORBIDDEN, *[(Head, Unknown("timeout"))] * protocol.ATTEMPTS]
    assert isinstance(play(steps, [raised, *silent])[0], NotDone)
