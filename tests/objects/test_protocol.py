"""Turns of the protocol that the explorer's stores do not take: what a store refuses, mispredicts, or cannot do.

Each test is a script: what the protocol must ask for, and what it is answered. ``tests/model`` covers the rest.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.db import intents
from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.intent import (
    DEAD_AFTER,
    Announcement,
    Begun,
    ForbiddenETag,
    ForbiddenETags,
    Intent,
    KnownObject,
    MutationKind,
    Raised,
)
from gateway.fencing.token import Token
from gateway.objects.key_rules import Resources
from gateway.objects.protocol import mutation
from gateway.objects.protocol.announcements import Announcements
from gateway.objects.protocol.effects import (
    Abandon,
    Amend,
    AwaitTurn,
    Barred,
    Begin,
    Bump,
    Candidate,
    Complete,
    Entomb,
    Finish,
    Forbid,
    GiveUp,
    InParts,
    Look,
    NotDone,
    Pause,
    Put,
    RaiseFence,
    Steps,
    Stored,
    StoreRefused,
    Uncertain,
    Unsettled,
    UploadForm,
)
from gateway.objects.s3.answers import EXPIRED, Applied, Found, NotApplied, NotSent, Unknown

NOW = datetime(2026, 1, 1, tzinfo=UTC)


TOKEN = Token(0, 34)


FENCE = Fence("r", TOKEN, None, "tester", NOW)


WRITE = Announcement("r", "bucket", "k", UUID(int=1), Presented(TOKEN), "tester")


INTENT = Intent("r", "bucket", "k", UUID(int=9), Token(0, 33), "e0", NOW)


FORMS = (Candidate(UploadForm.PLAIN, "plain"), Candidate(UploadForm.MULTIPART, "parts"))


KNOWN = KnownObject("e0", tombstone=False)


LATER = NOW + timedelta(seconds=60)


def begun(*forbidden: str) -> Begun:
    return Begun(Decision.HELD, FENCE, (), NOW, tuple(ForbiddenETag(etag, LATER) for etag in forbidden), KNOWN)


def lost(*forbidden: str) -> Begun:
    """The answer to a write that is announced only at a calm key, at one that is not."""
    return replace(begun(*forbidden), signed_at=None)


def ours(etag: str) -> Found:
    return Found(etag, write_id=str(WRITE.write_id))


def play(steps: Steps[Any], script: Sequence[tuple[type, Any]]) -> tuple[Any, list[Any]]:
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


PUT = [(Begin, begun())]


PUTS: list[tuple[str, list[tuple[type, Any]], type]] = [
    ("the store cannot be reached", [*PUT, (Put, NotSent("down")), (Abandon, None)], NotDone),
    ("412 to our second sending", [*PUT, (Put, NotApplied(412, "")), (Look, ours("plain")), (Finish, True)], Stored),
    ("settled, but there to stay", [*PUT, (Put, Applied("plain")), (Finish, False), (Look, ours("plain"))], Stored),
    ("settled, same ETag as before", [*PUT, (Put, Applied("e0")), (Finish, False), (Look, ours("e0"))], Uncertain),
    ("settled and overwritten", [*PUT, (Put, Applied("plain")), (Finish, False), (Look, Found("other"))], Uncertain),
    ("every form forbidden", [(Begin, begun("plain", "parts")), (Abandon, None)], NotDone),
    (
        "an ETag nobody predicted, and a forbidden one",
        [(Begin, begun("odd")), (Put, Applied("odd")), (Bump, Applied("new")), (Finish, True)],
        Stored,
    ),
    (
        "the same, and it cannot be bumped",
        [(Begin, begun("odd")), (Put, Applied("odd")), (Bump, NotSent("no form"))],
        Uncertain,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("script", "outcome"), [case[1:] for case in PUTS], ids=[case[0] for case in PUTS])
def test_the_outcomes_of_a_put(script: list[tuple[type, Any]], outcome: type) -> None:
    assert isinstance(play(mutation.put(WRITE, FORMS), script)[0], outcome)


def test_an_object_that_keeps_changing_ends_after_some_attempts() -> None:
    missed = [(Put, NotApplied(412, "")), (Look, Found("e")), (Abandon, None)]
    again = [(Look, Found("e")), (Begin, begun()), *missed]
    script = [*PUT, *missed, *again * (mutation.ATTEMPTS - 1), (Pause, True), *again, (Pause, False)]
    outcome, asked = play(mutation.put(WRITE, FORMS), script)
    assert isinstance(outcome, NotDone)
    announced = [effect.write.attempt for effect in asked if isinstance(effect, Begin)]
    assert announced == [*range(1, mutation.ATTEMPTS + 2)], "each attempt is an intent of its own"


LOOK = (Look, Found("e0"))


AT_FIRST = LOOK


FORBIDDEN = (Forbid, ForbiddenETags(frozenset({"e0"})))


LONG_AFTER = NOW + DEAD_AFTER + timedelta(seconds=1)


NOT_LONG_AFTER = NOW + DEAD_AFTER


def test_a_dead_signature_does_not_replace_a_bump() -> None:
    """A store that can be bumped is: what has arrived before its signature died may still be on its way inside."""
    late = Found("e0", date=LONG_AFTER)
    script = [AT_FIRST, FORBIDDEN, (Look, late), (Bump, Applied("e1")), (Look, Found("e1")), (Abandon, None)]
    assert play(mutation.settle(INTENT), script)[0] is None


def test_a_store_that_does_not_tell_the_time_proves_nothing() -> None:
    waits = [(Look, Found("e0")), (Bump, NotSent("no"))] * mutation.ATTEMPTS
    assert play(mutation.settle(INTENT), [AT_FIRST, FORBIDDEN, *waits])[0] == Unsettled(INTENT, NOT_LONG_AFTER)


def test_an_unknown_look_settles_nothing() -> None:
    silence = [(Look, Unknown("timeout"))] * mutation.ATTEMPTS
    assert play(mutation.settle(INTENT), [silence[0], FORBIDDEN, *silence])[0] == Unsettled(INTENT, None)


def test_a_write_that_has_landed_forbids_nothing() -> None:
    """A request is delivered once. Its condition counts as spent, for the case that it is not."""
    landed = Found("e1", write_id=str(INTENT.write_id))
    settled, asked = play(mutation.settle(INTENT), [(Look, landed), (Abandon, None)])
    assert settled is None
    assert asked[-1] == Abandon(INTENT, seen=True, spent=("e0",))


def test_a_write_that_left_the_same_etag_may_be_undone_by_a_bump() -> None:
    landed = (Look, Found("e0", write_id=str(INTENT.write_id)))
    script = [landed, FORBIDDEN, landed, (Bump, Applied("e1")), (Look, Found("e1")), (Abandon, None)]
    assert play(mutation.settle(INTENT), script)[0] is None


def test_a_tombstone_gives_way_to_another_one() -> None:
    """Its bytes are unique, so it has as many ETags as are needed."""
    grave = (Look, Found("e0", tombstone=True))
    script = [grave, FORBIDDEN, grave, (Entomb, Applied("t2")), (Look, Found("t2", tombstone=True)), (Abandon, None)]
    settled, asked = play(mutation.settle(INTENT), script)
    assert settled is None
    assert asked[3] == Entomb(INTENT, "e0")


def test_a_barrier_does_not_stand_before_all_is_settled() -> None:
    other = replace(INTENT, key="other")
    raised = (RaiseFence, Raised(Decision.RAISED, FENCE, (INTENT, other)))
    steps = mutation.barrier("r", Presented(TOKEN), "tester")
    settled = [(Look, Found("e1")), FORBIDDEN, (Look, Found("e1")), (Abandon, None)]
    assert isinstance(play(steps, [raised, *settled, *settled])[0], Barred)
    steps = mutation.barrier("r", Presented(TOKEN), "tester")
    silence = [(Look, Unknown("timeout"))] * mutation.ATTEMPTS
    outcome, _ = play(steps, [raised, silence[0], FORBIDDEN, *silence, *settled])
    assert isinstance(outcome, NotDone)
    assert [blocked.intent for blocked in outcome.blocked_by] == [INTENT], "the other one is settled all the same"


def test_a_write_settles_an_older_one_of_its_key() -> None:
    """It waits for the same ETag, so no bump is needed. The older one goes on record once the write has landed."""
    pending = replace(begun(), pending=(INTENT,), signed_at=None)
    announced = replace(begun("e0"), over=(INTENT,))
    script = [(Begin, pending), (Look, Found("e0")), (Begin, announced), (Put, Applied("plain")), (Finish, True)]
    outcome, asked = play(mutation.put(WRITE, FORMS), [*script, (Abandon, None)])
    assert isinstance(outcome, Stored)
    assert asked[2].over == (INTENT,)
    assert asked[-1] == Abandon(INTENT)


def test_a_write_that_has_no_effect_leaves_the_older_one_pending() -> None:
    pending = replace(begun(), pending=(INTENT,), signed_at=None)
    announced = replace(begun("e0"), over=(INTENT,))
    script = [(Begin, pending), (Look, Found("e0")), (Begin, announced), (Put, NotSent("down")), (Abandon, None)]
    outcome, asked = play(mutation.put(WRITE, FORMS), script)
    assert isinstance(outcome, NotDone)
    assert asked[-1].intent == asked[2].write


def test_a_key_where_a_request_got_lost_is_written_as_an_upload() -> None:
    assert play(mutation.put(WRITE, FORMS), [(Begin, lost("e9"))])[0] == InParts(2)
    assert play(mutation.delete(WRITE), [(Begin, lost("e9"))])[0] == InParts(2)


def test_bytes_that_cannot_be_an_upload_are_put_as_they_are() -> None:
    """Their ETag as an upload is forbidden, or the store does not tell it."""
    for forms, etag in ((FORMS, "parts"), (FORMS[:1], "e9")):
        script = [(Begin, lost(etag)), LOOK, (Begin, begun(etag)), (Put, Applied("plain")), (Finish, True)]
        outcome, asked = play(mutation.put(WRITE, forms), script)
        assert isinstance(outcome, Stored)
        assert [effect.calm for effect in asked if isinstance(effect, Begin)] == [True, False]


def test_a_request_that_came_too_late_is_sent_again() -> None:
    expired = NotApplied(403, EXPIRED)
    again = [(Look, Found("e0")), (Abandon, None), (Look, Found("e0")), *PUT, (Put, Applied("plain")), (Finish, True)]
    assert isinstance(play(mutation.put(WRITE, FORMS), [*PUT, (Put, expired), *again])[0], Stored)
    tags = [(Look, Found("e0")), (Begin, begun()), (Amend, expired), (Abandon, None)]
    again = [(Look, Found("e0")), (Begin, begun()), (Amend, Applied(None)), (Finish, True)]
    assert isinstance(play(mutation.amend(WRITE), [*tags, *again])[0], Stored)


UPLOAD = replace(INTENT, kind=MutationKind.UPLOAD, upload_id="u")


AMENDMENT = replace(INTENT, kind=MutationKind.AMENDMENT)


GONE = NotApplied(404, mutation.NO_SUCH_UPLOAD)


TOO_OLD = NotApplied(409, "ConditionalRequestConflict")


COMPLETIONS: list[tuple[str, list[tuple[type, Any]], type]] = [
    ("its ETag is forbidden", [(Begin, begun("parts")), (Abandon, None)], NotDone),
    ("no such upload", [(Begin, begun()), (Complete, GONE), LOOK, (Abandon, None)], StoreRefused),
    ("sent twice on its way", [(Begin, begun()), (Complete, GONE), (Look, ours("parts")), (Finish, True)], Stored),
    ("no answer, and not there", [(Begin, begun()), (Complete, Unknown("timeout")), LOOK], Uncertain),
    ("the key had changed", [(Begin, begun()), (Complete, NotApplied(412, "")), LOOK, (Abandon, None),
        LOOK, (Begin, begun()), (Complete, Applied("parts")), (Finish, True)], Stored),
]  # fmt: skip


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize(
    ("script", "outcome"), [case[1:] for case in COMPLETIONS], ids=[case[0] for case in COMPLETIONS]
)
def test_the_outcomes_of_a_completion(script: list[tuple[type, Any]], outcome: type, conditional: bool) -> None:  # noqa: FBT001
    result, asked = play(mutation.complete(WRITE, "u", "parts", conditional=conditional), script)
    assert isinstance(result, outcome)
    kinds = {effect.write.kind for effect in asked if isinstance(effect, Begin | Complete)}
    assert kinds == {MutationKind.CONDITIONAL if conditional else MutationKind.UPLOAD}


def test_an_upload_older_than_the_object_is_completed_without_a_condition() -> None:
    refused = [(Begin, begun()), (Complete, TOO_OLD), LOOK, (Abandon, None)]
    script = [*refused, (Begin, begun()), (Complete, Applied("parts")), (Finish, True)]
    result, asked = play(mutation.complete(WRITE, "u", "parts", conditional=True), script)
    assert isinstance(result, Stored)
    begins = [effect.write for effect in asked if isinstance(effect, Begin)]
    assert [(begin.kind, begin.upload_id) for begin in begins] == [
        (MutationKind.CONDITIONAL, None),
        (MutationKind.UPLOAD, "u"),
    ]
    assert begins[0].attempt != begins[1].attempt, "whoever settles the first must not take the second away"


AMENDMENTS: list[tuple[str, list[tuple[type, Any]], dict[str, bool], type]] = [
    ("settled meanwhile", [LOOK, (Begin, begun()), (Amend, Applied(None)), (Finish, False)], {}, Stored),
    ("not sent", [LOOK, (Begin, begun()), (Amend, NotSent("down")), (Abandon, None)], {}, NotDone),
    ("no answer", [LOOK, (Begin, begun()), (Amend, Unknown("timeout"))], {}, Uncertain),
    ("of a version", [LOOK, (Begin, begun()), (Amend, Applied(None)), (Abandon, None)], {"on_version": True}, Stored),
    ("where a bump may be late", [LOOK, (Begin, begun("e0")), (Bump, Applied("e1")), (Amend, Applied(None)),
        (Finish, True)], {}, Stored),
    ("where no bump will do", [LOOK, (Begin, begun("e0")), (Bump, NotSent("no form left")), (Abandon, None)], {},
        NotDone),
    ("where a bump is lost", [LOOK, (Begin, begun("e0")), (Bump, Unknown("timeout")), (Abandon, None)], {}, NotDone),
    ("where others were quicker", [LOOK, (Begin, begun("e0")), (Bump, NotApplied(412, "")), (Abandon, None),
        LOOK, (Begin, begun()), (Amend, Applied(None)), (Finish, True)], {}, Stored),
    ("where nothing is bumped", [LOOK, (Begin, begun("e0")), (Amend, Applied(None)), (Finish, True)],
        {"bumps": False}, Stored),
    ("a version removed", [(Begin, begun()), (Amend, Applied(None)), (Abandon, None)],
        {"on_version": True, "uncovers": True}, Stored),
    ("a version that may uncover", [(Begin, begun("old")), (Abandon, None)], {"on_version": True, "uncovers": True},
        NotDone),
]  # fmt: skip


@pytest.mark.parametrize(
    ("script", "how", "outcome"), [case[1:] for case in AMENDMENTS], ids=[case[0] for case in AMENDMENTS]
)
def test_the_outcomes_of_an_amendment(script: list[tuple[type, Any]], how: dict[str, bool], outcome: type) -> None:
    result, asked = play(mutation.amend(WRITE, **how), script)
    assert isinstance(result, outcome)
    assert all(effect.write.kind is MutationKind.AMENDMENT for effect in asked if isinstance(effect, Begin | Amend))


def dead(intent: Intent, *, by: int) -> tuple[type, Any]:
    return Look, Found("e0", date=NOW + intent.dead_after + timedelta(seconds=by))


SETTLEMENTS: list[tuple[str, Intent, list[tuple[type, Any]], bool]] = [
    ("an upload that stays", UPLOAD, [(GiveUp, False), dead(UPLOAD, by=0)], False),
    ("an upload that stays, and is dead", UPLOAD, [(GiveUp, False), dead(UPLOAD, by=1), (Abandon, None)], True),
    ("an amendment that may be late", AMENDMENT, [(AwaitTurn, False), dead(AMENDMENT, by=0)], False),
    ("an amendment that is dead", AMENDMENT, [(AwaitTurn, False), dead(AMENDMENT, by=1), (Abandon, None)], True),
    ("a store that does not tell the time", AMENDMENT, [(AwaitTurn, False), (Look, Found("e0"))], False),
    ("a store that does not answer", AMENDMENT, [(AwaitTurn, False), (Look, Unknown("timeout"))], False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("intent", "script", "settled"), [case[1:] for case in SETTLEMENTS], ids=[case[0] for case in SETTLEMENTS]
)
def test_a_mutation_without_a_condition_is_settled(
    intent: Intent,
    script: list[tuple[type, Any]],
    settled: bool,  # noqa: FBT001
) -> None:
    assert (play(mutation.settle(intent), script)[0] is None) is settled


ENTOMBED = replace(begun(), key=KnownObject("t", tombstone=True))


LOOK_AT_TOMBSTONE = (Look, Found("t", tombstone=True))


def test_a_sweep_ends_where_the_store_is_gone_at_its_second_look() -> None:
    script = [LOOK_AT_TOMBSTONE, (Begin, ENTOMBED), (Look, Unknown("gone")), (Abandon, None)]
    assert isinstance(play(mutation.sweep(WRITE, conditional_delete=False), script)[0], NotDone)


# Begins and finishes of concurrent object writes share a transaction, and each is as if it were alone.

MANY = 20


def announced(number: int, token: int = 5, resource: str | None = None) -> Announcement:
    presented = Presented(Token(0, token), f"holder {number}")
    return Announcement(resource or f"s3/bucket/{number:03}", "bucket", f"{number:03}", uuid4(), presented, "tester")


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements in each round trip that several share."""
    sizes: list[int] = []
    real = asyncpg.Connection.fetchmany

    async def counted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        if len(arguments) > 1:
            sizes.append(len(arguments))
        return await real(session, sql, arguments)

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", counted)
    return sizes


@pytest.mark.parametrize("resource", [None, "job/42"], ids=["each-its-own", "one-for-all"])
async def test_those_that_come_together_share_a_trip(
    database: Database, trips: list[int], resource: str | None
) -> None:
    shared = Announcements(database, Resources())
    holder = Presented(Token(0, 5), "ann")
    writes = [replace(announced(number, resource=resource), presented=holder) for number in range(MANY)]
    begun = await asyncio.gather(*(shared.begin(Begin(write), proven=False) for write in reversed(writes)))
    assert trips == [MANY]
    assert all(one.signed_at is not None for one in begun)
    raised = sum(one.decision is Decision.RAISED for one in begun)
    assert raised == (MANY if resource is None else 1)
    pending = {(one.resource, one.key, one.write_id) for one in await intents.list_pending(database, 2 * MANY)}
    assert pending == {(write.resource, write.key, write.write_id) for write in writes}
    trips.clear()
    ends = [Finish(write, f"etag {write.key}", tombstone=False) for write in writes]
    assert await asyncio.gather(*map(shared.finish, ends)) == [True] * MANY
    assert trips == [MANY]
    assert await intents.list_pending(database, 1) == []
    remembered = await database.fetch("SELECT key, etag FROM fencing.object ORDER BY key")
    assert [tuple(row) for row in remembered] == [(write.key, f"etag {write.key}") for write in writes]


async def test_each_is_judged_by_its_own_fence(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    for number in range(3):
        write = announced(number, token=6)
        await shared.begin(Begin(write), proven=False)
        await shared.finish(Finish(write, "e", tombstone=False))
    answers = await asyncio.gather(*(shared.begin(Begin(announced(n, token=5 + n)), proven=False) for n in range(3)))
    assert [one.decision for one in answers] == [Decision.STALE, Decision.HELD, Decision.RAISED]
    assert [one.signed_at is None for one in answers] == [True, False, False]
    assert trips == [3]


async def test_two_of_one_key_are_announced_one_after_the_other(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    writes = [announced(1), replace(announced(1), write_id=UUID(int=7))]
    begun = await asyncio.gather(*(shared.begin(Begin(write), proven=False) for write in writes))
    # Their batch fails, so each is sent again on a session of its own. Either may be the first in the database.
    first, second = (0, 1) if begun[0].signed_at is not None else (1, 0)
    assert begun[first].signed_at is not None
    assert begun[second].signed_at is None
    assert [one.write_id for one in begun[second].pending] == [writes[first].write_id]
    assert trips == [2]
