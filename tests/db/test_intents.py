"""Intents, forbidden and spent ETags: the SQL functions do what the model says, and forget at the right time."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import intents
from gateway.db.database import Database
from gateway.fencing.decision import Enforcement, Equal, Fence, Presented
from gateway.fencing.intent import (
    ABSENCE,
    DEAD_AFTER,
    Announcement,
    Begin,
    Begun,
    Finish,
    ForbiddenETag,
    Intent,
    KnownObject,
    MutationKind,
    Raised,
    Spent,
)
from gateway.fencing.token import Token
from tests.model.memory import NOW, TICK, Fences, Key

writes = st.builds(
    Announcement,
    resource=st.sampled_from(["r", "s"]),
    bucket=st.just("bucket"),
    key=st.sampled_from(["a", "b"]),
    write_id=st.sampled_from([UUID(int=1), UUID(int=2)]),
    presented=st.one_of(
        st.none(),
        st.builds(
            Presented,
            token=st.builds(Token, epoch=st.integers(0, 1), value=st.integers(0, 2)),
            holder=st.sampled_from([None, "ann", "bob"]),
        ),
    ),
    caller=st.just("tester"),
    mode=st.sampled_from(Enforcement),
    equal=st.sampled_from(Equal),
    attempt=st.integers(1, 2),
    entombs=st.booleans(),
    housekeeping=st.booleans(),
).filter(lambda write: write.presented is not None or write.mode is Enforcement.OBSERVE)
kinds = st.sampled_from(
    [(MutationKind.CONDITIONAL, None), (MutationKind.UPLOAD, "upload"), (MutationKind.AMENDMENT, None)]
)
announcements = st.builds(lambda write, kind: replace(write, kind=kind[0], upload_id=kind[1]), writes, kinds)

calls = st.lists(
    st.tuples(
        st.sampled_from(
            ["begin", "begin over", "begin calm", "finish", "abandon", "forbid", "longer", "raise", "later"]
        ),
        announcements,
        st.sampled_from([None, "e1", "e2"]),
    ),
    max_size=18,
)


def timeless(answer: Any) -> Any:
    """The answer without readings of the database's clock, and without the order of what has none.

    Times by the store's clock stay: they decide. The database adds to them how long a call has waited.
    """
    match answer:
        case Begun(decision, fence, pending, signed_at, waited, key, _, spent, _, over):
            # The condition of a mutation that must not be sent has no meaning.
            seen = key if signed_at else KnownObject(None)
            refused = decision is not None and not decision.passes and signed_at is None
            forbidden = () if refused else tuple(sorted(map(timeless, waited), key=lambda one: one.etag))
            gone = tuple(sorted(map(timeless, spent), key=lambda one: one.etag))
            before = tuple(map(timeless, over))
            return Begun(
                *(decision, timeless(fence), listed(pending), signed_at and whole(signed_at), forbidden, seen),
                spent=gone,
                over=before,
            )
        case Raised(decision, fence, pending):
            return Raised(decision, timeless(fence), listed(pending))
        case Fence(resource, token, holder, caller, _, write_id):
            return Fence(resource, token, holder, caller, NOW, write_id)
        case Intent():
            return replace(answer, signed_at=whole(answer.signed_at))
        case ForbiddenETag() | Spent():
            return replace(answer, until=whole(answer.until))
        case _:
            return answer


def whole(moment: datetime) -> datetime:
    """Return the time without the call's wait: the model's clock moves by whole ticks, and no call waits for one."""
    return NOW + (moment - NOW) // TICK * TICK


def listed(intents: tuple[Intent, ...]) -> tuple[Intent, ...]:
    return tuple(sorted(map(timeless, intents), key=lambda one: (one.key, one.write_id, one.attempt)))


def looked(etag: str | None) -> KnownObject | None:
    """Return the object that the sender has seen at the key; None if it has not looked."""
    return None if etag == "e2" else KnownObject(etag, tombstone=etag is not None)


def outcomes(etag: str | None) -> tuple[str, ...] | None:
    """Return the ETags that the mutation could leave; with e1 the claim asks for all that are spent."""
    return None if etag == "e1" else ("e1", ABSENCE)


def conditions(etag: str | None) -> tuple[str, ...]:
    """Return the conditions of a write's requests, with one of them twice."""
    return (ABSENCE,) if etag is None else (etag, etag)


def intent_of(write: Announcement, etag: str | None) -> Intent:
    return Intent(
        *(write.resource, write.bucket, write.key, write.write_id, Token(0, 0), etag, NOW, write.attempt),
        dead_after=TICK,
    )


def place_of(write: Announcement) -> Key:
    return (write.resource, write.bucket, write.key)


async def real(
    database: Database, call: str, write: Announcement, etag: str | None, over: tuple[Intent, ...], now: datetime
) -> Any:
    match call:
        case "begin" | "begin over" | "begin calm":
            calm = call == "begin calm"
            stated = (write, looked(etag), outcomes(etag), over)
            asked = Begin(*stated, calm=calm, store_time=now, signed_at=now, dead_after=TICK)
            return (await intents.begin(database, [asked], patient=True))[0]
        case "finish":
            ended = Finish(write, etag, tombstone=False, spent=conditions(etag))
            return (await intents.finish(database, [ended], patient=True))[0]
        case "abandon":
            return await intents.abandon(database, write, conditions(etag))
        case "forbid":
            forbidden = await intents.forbid(database, intent_of(write, etag), now)
            return forbidden.etags, forbidden.spent
        case "longer":
            return await intents.forbid_longer(database, *place_of(write), etag, now + TICK, entombs=False)
        case _:
            presented = write.presented or Presented(Token(0, 1))
            return await intents.raise_fence(database, write.resource, presented, "tester")


def modelled(fences: Fences, call: str, write: Announcement, etag: str | None, over: tuple[Intent, ...]) -> Any:
    match call:
        case "begin" | "begin over" | "begin calm":
            return fences.begin(write, looked(etag), outcomes(etag), over, calm=call == "begin calm")
        case "finish":
            return fences.finish(write, etag, tombstone=False, spent=conditions(etag))
        case "abandon":
            return fences.abandon(write, conditions(etag))
        case "forbid":
            forbidden = fences.forbid(intent_of(write, etag))
            return forbidden.etags, forbidden.spent
        case "longer":
            fences.forbid_until_dead(place_of(write), etag)
            return None
        case _:
            presented = write.presented or Presented(Token(0, 1))
            return fences.raise_fence(write.resource, presented, "tester")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=calls)
async def test_model_and_sql_give_the_same_answers(
    database: Database, history: list[tuple[str, Announcement, str | None]]
) -> None:
    # Of so few rows the quicker way: TRUNCATE makes new files, for each table and each of its indexes.
    for table in ("fence", "intent", "forbidden", "spent", "object"):
        await database.fetch(f"DELETE FROM fencing.{table}")
    fences = Fences()
    for call, write, etag in history:
        if call == "later":
            fences.now += TICK
            continue
        place = place_of(write)
        here = fences.intents.get(place, ())
        over = here if call == "begin over" else ()
        if over and fences.is_pending(write):
            continue  # no write announces one attempt twice
        answer = await real(database, call, write, etag, over, fences.now)
        assert timeless(answer) == timeless(modelled(fences, call, write, etag, over))
        rows = await database.fetch(
            "SELECT etag, tombstone FROM fencing.object WHERE (resource, bucket, key) = ($1, $2, $3)", *place
        )
        known = fences.known.get(place)
        assert [KnownObject(*row) for row in rows] == ([known] if known else [])


# Forbidden and spent ETags end with the last request that waits for them, by the clock of the store. ----------------


WRITE = Announcement("r", "bucket", "k", UUID(int=1), Presented(Token(0, 1)), "tester")
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def waiting_for(etag: str, now: datetime) -> Intent:
    return Intent("r", "bucket", "k", UUID(int=9), Token(0, 0), etag, now)


async def forbidden(database: Database, write: Announcement, store_time: datetime | None) -> frozenset[str]:
    (begun,) = await intents.begin(database, [Begin(write, KnownObject("e"), store_time=store_time)], patient=True)
    await intents.abandon(database, write)
    return begun.forbidden


@pytest.mark.parametrize(
    ("ahead", "kept"),
    [(timedelta(0), True), (-MINUTE, True), (DEAD_AFTER, True), (DEAD_AFTER + SECOND, False), (60 * MINUTE, False)],
)
async def test_an_etag_is_forbidden_as_long_as_its_request_lives(
    database: Database,
    ahead: timedelta,
    kept: bool,  # noqa: FBT001
) -> None:
    """By the store's clock, which signs the request too."""
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert await forbidden(database, WRITE, now + ahead) == (frozenset({"e1"}) if kept else frozenset())
    assert len(await database.fetch("SELECT FROM fencing.forbidden")) == kept


async def test_nothing_is_forgotten_while_the_stores_clock_is_not_known(database: Database) -> None:
    await intents.forbid(database, waiting_for("e1", await database.now() - 10 * DEAD_AFTER))
    assert await forbidden(database, WRITE, None) == {"e1"}


async def written(database: Database, write: Announcement, *spent: str, effective: bool = True) -> datetime:
    """Announce a write and end it; when its requests were signed."""
    (begun,) = await intents.begin(database, [Begin(write, KnownObject("e"))], patient=True)
    if effective:
        await intents.finish(database, [Finish(write, "f", tombstone=False, spent=spent)], patient=True)
    else:
        await intents.abandon(database, write, spent)
    assert begun.signed_at is not None
    return begun.signed_at


async def spent(
    database: Database, store_time: datetime | None, outcomes: tuple[str, ...] | None = None
) -> tuple[Spent, ...]:
    asked = replace(WRITE, write_id=UUID(int=5), presented=Presented(Token(0, 9)))
    (begun,) = await intents.begin(
        database, [Begin(asked, KnownObject("e"), outcomes, store_time=store_time)], patient=True
    )
    await intents.abandon(database, asked)
    return begun.spent


@pytest.mark.parametrize("effective", [True, False])
async def test_a_condition_is_spent_while_its_signature_may_be_alive(
    database: Database,
    effective: bool,  # noqa: FBT001
) -> None:
    signed_at = await written(database, WRITE, "e", effective=effective)
    alive = (Spent("e", Token(0, 1), signed_at + DEAD_AFTER),)
    assert await spent(database, signed_at + DEAD_AFTER) == alive
    assert await spent(database, signed_at + DEAD_AFTER + SECOND) == ()
    assert await spent(database, None) == alive


async def test_only_possible_outcomes_are_named_the_longest_spent_first(database: Database) -> None:
    await written(database, WRITE, "z")
    await written(database, replace(WRITE, write_id=UUID(int=2)), "a", ABSENCE)
    assert [one.etag for one in await spent(database, None)] == ["z", "", "a"]
    assert [one.etag for one in await spent(database, None, ("a", "z", "other"))] == ["z", "a"]
    assert await spent(database, None, ()) == ()


async def test_what_a_settler_has_taken_over_is_forbidden_and_not_spent(database: Database) -> None:
    (begun,) = await intents.begin(database, [Begin(WRITE, KnownObject("e"))], patient=True)
    (intent,) = await intents.list_pending(database, 1)
    assert begun.signed_at is not None
    await intents.forbid(database, intent)
    await intents.settle(database, intent, seen=False)
    await intents.abandon(database, WRITE, ("e",))
    assert await forbidden(database, WRITE, None) == {"e"}
    assert await spent(database, None) == ()


async def test_dead_conditions_are_cleared_away_in_batches(database: Database) -> None:
    signed_at = await written(database, WRITE, "e1", "e2", "e3")
    assert await intents.forget_spent(database, signed_at + MINUTE, 10) == 0
    dead = signed_at + DEAD_AFTER + MINUTE
    assert await intents.forget_spent(database, dead, 2) == 2
    assert await intents.forget_spent(database, dead, 2) == 1
    assert await database.fetch("SELECT FROM fencing.spent") == []


async def test_a_delete_lists_its_key_where_absence_is_spent(database: Database) -> None:
    removal = replace(WRITE, write_id=UUID(int=3), removes=True)
    await intents.begin(database, [Begin(removal, KnownObject("e"))], patient=True)
    await intents.abandon(database, removal)
    assert await database.fetch("SELECT FROM fencing.tombstone") == []
    signed_at = await written(database, WRITE, ABSENCE)
    await intents.begin(database, [Begin(removal, KnownObject("e"), (ABSENCE,), store_time=signed_at)], patient=True)
    rows = await database.fetch("SELECT resource, bucket, key FROM fencing.tombstone")
    assert [tuple(row) for row in rows] == [("r", "bucket", "k")]
