"""Forbidden and spent ETags end with the last request that waits for them, by the clock of the store."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from gateway.db import intents
from gateway.db.database import Database
from gateway.fencing.decision import Enforcement, Presented
from gateway.fencing.intent import (
    ABSENCE,
    DEAD_AFTER,
    Announcement,
    Intent,
    KnownObject,
    Spent,
)
from gateway.fencing.token import Token

WRITE = Announcement("r", "bucket", "k", UUID(int=1), Presented(Token(0, 1)), "tester")
OTHER_KEY = Announcement("r", "bucket", "other", UUID(int=2), Presented(Token(0, 1)), "tester")
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def waiting_for(etag: str, now: datetime) -> Intent:
    return Intent("r", "bucket", "k", UUID(int=9), Token(0, 0), etag, now)


async def forbidden(database: Database, write: Announcement, store_time: datetime | None) -> frozenset[str]:
    begun = await intents.begin(database, intents.Begin(write, KnownObject("e"), store_time))
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


async def test_a_bump_forbids_for_as_long_as_it_lives_itself(database: Database) -> None:
    """A settler signs it when it sends it, long after the request that it settles."""
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    until = now + 2 * DEAD_AFTER
    await intents.forbid_longer(database, "r", "bucket", "k", "e1", until, entombs=False)
    await intents.forbid(database, waiting_for("e1", now))
    assert await forbidden(database, WRITE, until) == {"e1"}
    assert await forbidden(database, WRITE, until + SECOND) == frozenset()


async def test_a_settler_does_not_count_what_may_be_forgotten(database: Database) -> None:
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert (await intents.forbid(database, waiting_for("e2", now), now)).etags == {"e1", "e2"}
    later = now + DEAD_AFTER + SECOND
    assert (await intents.forbid(database, waiting_for("e3", now), later)).etags == {"e3"}


async def test_other_keys_keep_theirs(database: Database) -> None:
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert await forbidden(database, OTHER_KEY, now) == frozenset()
    assert await forbidden(database, WRITE, now) == {"e1"}


async def written(database: Database, write: Announcement, *spent: str, effective: bool = True) -> datetime:
    """Announce a write and end it; when its requests were signed."""
    begun = await intents.begin(database, intents.Begin(write, KnownObject("e")))
    if effective:
        await intents.finish(database, intents.Finish(write, "f", tombstone=False, spent=spent))
    else:
        await intents.abandon(database, write, spent)
    assert begun.signed_at is not None
    return begun.signed_at


async def spent(
    database: Database, store_time: datetime | None, outcomes: tuple[str, ...] | None = None
) -> tuple[Spent, ...]:
    asked = replace(WRITE, write_id=UUID(int=5), presented=Presented(Token(0, 9)))
    begun = await intents.begin(database, intents.Begin(asked, KnownObject("e"), store_time, outcomes))
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


async def test_the_last_of_several_requests_counts_and_the_lowest_token(database: Database) -> None:
    await written(database, WRITE, "e")
    later = replace(WRITE, write_id=UUID(int=2), presented=Presented(Token(0, 2)))
    signed_at = await written(database, later, "e", "e")
    assert await spent(database, None) == (Spent("e", Token(0, 1), signed_at + DEAD_AFTER),)


async def test_only_possible_outcomes_are_named_the_longest_spent_first(database: Database) -> None:
    await written(database, WRITE, "z")
    await written(database, replace(WRITE, write_id=UUID(int=2)), "a", ABSENCE)
    assert [one.etag for one in await spent(database, None)] == ["z", "", "a"]
    assert [one.etag for one in await spent(database, None, ("a", "z", "other"))] == ["z", "a"]
    assert await spent(database, None, ()) == ()


async def test_what_a_settler_has_taken_over_is_forbidden_and_not_spent(database: Database) -> None:
    begun = await intents.begin(database, intents.Begin(WRITE, KnownObject("e")))
    (intent,) = await intents.list_pending(database, 1)
    assert begun.signed_at is not None
    await intents.forbid(database, intent)
    await intents.settle(database, intent, seen=False)
    await intents.abandon(database, WRITE, ("e",))
    assert await forbidden(database, WRITE, None) == {"e"}
    assert await spent(database, None) == ()


async def test_a_settler_is_told_what_is_spent(database: Database) -> None:
    signed_at = await written(database, WRITE, "x")
    alive = await intents.forbid(database, waiting_for("e", signed_at), signed_at)
    assert alive.etags == {"e"}
    assert alive.spent == {"x"}
    later = await intents.forbid(database, waiting_for("e", signed_at), signed_at + timedelta(hours=1))
    assert later.spent == frozenset()


async def test_dead_conditions_are_cleared_away_in_batches(database: Database) -> None:
    signed_at = await written(database, WRITE, "e1", "e2", "e3")
    assert await intents.forget_spent(database, signed_at + MINUTE, 10) == 0
    dead = signed_at + DEAD_AFTER + MINUTE
    assert await intents.forget_spent(database, dead, 2) == 2
    assert await intents.forget_spent(database, dead, 2) == 1
    assert await database.fetch("SELECT FROM fencing.spent") == []


async def test_a_delete_lists_its_key_where_absence_is_spent(database: Database) -> None:
    removal = replace(WRITE, write_id=UUID(int=3), removes=True)
    await intents.begin(database, intents.Begin(removal, KnownObject("e")))
    await intents.abandon(database, removal)
    assert await database.fetch("SELECT FROM fencing.tombstone") == []
    signed_at = await written(database, WRITE, ABSENCE)
    await intents.begin(database, intents.Begin(removal, KnownObject("e"), signed_at, (ABSENCE,)))
    rows = await database.fetch("SELECT resource, bucket, key FROM fencing.tombstone")
    assert [tuple(row) for row in rows] == [("r", "bucket", "k")]


async def test_a_write_that_settles_another_one_forbids_its_condition(database: Database) -> None:
    """In the transaction that announces it. Only what waits for the object that was seen is settled that way."""
    first = await intents.begin(database, intents.Begin(WRITE, KnownObject("e")))
    assert first.signed_at is not None
    (intent,) = await intents.list_pending(database, 2)
    newer = replace(WRITE, write_id=UUID(int=2), presented=Presented(Token(0, 2)))
    refused = await intents.begin(database, intents.Begin(newer, KnownObject("other"), over=[intent]))
    assert (refused.pending, refused.signed_at, refused.forbidden) == ((intent,), None, frozenset())
    begun = await intents.begin(database, intents.Begin(newer, KnownObject("e"), over=[intent]))
    assert begun.signed_at is not None
    assert begun.until() == {"e": intent.dead_at}
    assert len(await intents.list_pending(database, 3)) == 2, "until the write has taken effect"
    assert not await intents.finish(database, intents.Finish(WRITE, "f", tombstone=False)), "it is being settled"


async def test_no_third_write_comes_between(database: Database) -> None:
    """The newest intent has the place that a further one needs."""
    await intents.begin(database, intents.Begin(WRITE, KnownObject("e")))
    (intent,) = await intents.list_pending(database, 2)
    second = replace(WRITE, write_id=UUID(int=2))
    await intents.begin(database, intents.Begin(second, KnownObject("e"), over=[intent]))
    await intents.abandon(database, WRITE)
    third = await intents.begin(database, intents.Begin(replace(WRITE, write_id=UUID(int=3)), KnownObject("e")))
    assert [one.write_id for one in third.pending] == [UUID(int=2)]
    ranks = await database.fetch("SELECT rank FROM fencing.intent")
    assert [row["rank"] for row in ranks] == [0]


async def test_housekeeping_is_in_the_way_of_its_key_only(database: Database) -> None:
    sweep = replace(WRITE, presented=None, mode=Enforcement.OBSERVE, housekeeping=True)
    await intents.begin(database, intents.Begin(OTHER_KEY, KnownObject("e")))
    assert (await intents.begin(database, intents.Begin(sweep, KnownObject("t", tombstone=True)))).signed_at is not None
    raised = await intents.raise_fence(database, "r", Presented(Token(0, 9)), "tester")
    assert [one.key for one in raised.pending] == ["other"]
    newest = replace(WRITE, write_id=UUID(int=5), presented=Presented(Token(0, 10)))
    begun = await intents.begin(database, intents.Begin(newest, KnownObject("t", tombstone=True)))
    assert {one.key for one in begun.pending} == {"k", "other"}
