"""Forbidden ETags are forgotten by the store's clock, a day later, and not a moment before they may be. Spent ones are
forgotten when the signature of the last request that waited for them is dead.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from gateway.db import intents
from gateway.db.database import Database
from gateway.fencing.decision import Presented
from gateway.fencing.intent import (
    ABSENCE,
    DEAD_AFTER_HEADER_SIGNED,
    DEAD_AFTER_QUERY_SIGNED,
    Announcement,
    Intent,
    KnownObject,
    Spent,
)
from gateway.fencing.token import Token

WRITE = Announcement("r", "bucket", "k", UUID(int=1), Presented(Token(0, 1)), "tester")
OTHER_KEY = Announcement("r", "bucket", "other", UUID(int=2), Presented(Token(0, 1)), "tester")
DAY = timedelta(hours=24)
MINUTE = timedelta(minutes=1)


def waiting_for(etag: str, now: datetime) -> Intent:
    return Intent("r", "bucket", "k", UUID(int=9), Token(0, 0), etag, now)


async def forbidden(database: Database, write: Announcement, store_time: datetime | None) -> frozenset[str]:
    begun = await intents.begin(database, write, KnownObject("e"), store_time)
    await intents.abandon(database, write)
    return begun.forbidden


@pytest.mark.parametrize(
    ("ahead", "kept"),
    [(timedelta(0), True), (-DAY, True), (DAY - MINUTE, True), (DAY + MINUTE, False), (7 * DAY, False)],
)
async def test_a_day_later_by_the_stores_clock(database: Database, ahead: timedelta, kept: bool) -> None:  # noqa: FBT001
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert await forbidden(database, WRITE, now + ahead) == (frozenset({"e1"}) if kept else frozenset())
    assert len(await database.fetch("SELECT FROM fencing.forbidden")) == kept


async def test_nothing_is_forgotten_while_the_stores_clock_is_not_known(database: Database) -> None:
    await intents.forbid(database, waiting_for("e1", await database.now()))
    await database.run(
        lambda transaction: transaction.execute("UPDATE fencing.forbidden SET forbidden_at = now() - interval '1 year'")
    )
    assert await forbidden(database, WRITE, None) == {"e1"}


async def test_forbidding_again_counts_from_then_on(database: Database) -> None:
    """A settler signs its own bump when it forbids; that request has a life of its own."""
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    await database.run(
        lambda transaction: transaction.execute("UPDATE fencing.forbidden SET forbidden_at = now() - interval '2 days'")
    )
    again = await intents.forbid(database, waiting_for("e1", now), now)
    assert again.etags == {"e1"}
    assert await forbidden(database, WRITE, now) == {"e1"}


async def test_a_settler_does_not_count_what_may_be_forgotten(database: Database) -> None:
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert (await intents.forbid(database, waiting_for("e2", now), now)).etags == {"e1", "e2"}
    assert (await intents.forbid(database, waiting_for("e3", now), now + DAY + MINUTE)).etags == {"e3"}


async def test_other_keys_keep_theirs(database: Database) -> None:
    now = await database.now()
    await intents.forbid(database, waiting_for("e1", now))
    assert await forbidden(database, OTHER_KEY, now + DAY + MINUTE) == frozenset()
    assert await forbidden(database, WRITE, now) == {"e1"}


async def written(database: Database, write: Announcement, *spent: str, effective: bool = True) -> datetime:
    """Announce a write and end it; when its requests were signed."""
    begun = await intents.begin(database, write, KnownObject("e"))
    if effective:
        await intents.finish(database, write, "f", tombstone=False, spent=spent)
    else:
        await intents.abandon(database, write, spent)
    assert begun.signed_at is not None
    return begun.signed_at


async def spent(
    database: Database, store_time: datetime | None, outcomes: tuple[str, ...] | None = None
) -> tuple[Spent, ...]:
    asked = replace(WRITE, write_id=UUID(int=5), presented=Presented(Token(0, 9)))
    begun = await intents.begin(database, asked, KnownObject("e"), store_time, outcomes)
    await intents.abandon(database, asked)
    return begun.spent


@pytest.mark.parametrize("effective", [True, False])
@pytest.mark.parametrize("dead_after", [DEAD_AFTER_QUERY_SIGNED, DEAD_AFTER_HEADER_SIGNED])
async def test_a_condition_is_spent_while_its_signature_may_be_alive(
    database: Database,
    dead_after: timedelta,
    effective: bool,  # noqa: FBT001
) -> None:
    signed_at = await written(database, replace(WRITE, dead_after=dead_after), "e", effective=effective)
    assert await spent(database, signed_at + dead_after - MINUTE) == (Spent("e", Token(0, 1)),)
    assert await spent(database, signed_at + dead_after + MINUTE) == ()
    assert await spent(database, None) == (Spent("e", Token(0, 1)),)


async def test_the_last_of_several_requests_counts_and_the_lowest_token(database: Database) -> None:
    await written(database, WRITE, "e")
    short = replace(WRITE, write_id=UUID(int=2), presented=Presented(Token(0, 2)), dead_after=DEAD_AFTER_QUERY_SIGNED)
    signed_at = await written(database, short, "e", "e")
    assert await spent(database, signed_at + DEAD_AFTER_QUERY_SIGNED + MINUTE) == (Spent("e", Token(0, 1)),)


async def test_only_possible_outcomes_are_named_the_longest_spent_first(database: Database) -> None:
    await written(database, WRITE, "z")
    await written(database, replace(WRITE, write_id=UUID(int=2)), "a", ABSENCE)
    assert [one.etag for one in await spent(database, None)] == ["z", "", "a"]
    assert [one.etag for one in await spent(database, None, ("a", "z", "other"))] == ["z", "a"]
    assert await spent(database, None, ()) == ()


async def test_what_a_settler_has_taken_over_is_forbidden_and_not_spent(database: Database) -> None:
    begun = await intents.begin(database, WRITE, KnownObject("e"))
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
    dead = signed_at + DEAD_AFTER_HEADER_SIGNED + MINUTE
    assert await intents.forget_spent(database, dead, 2) == 2
    assert await intents.forget_spent(database, dead, 2) == 1
    assert await database.fetch("SELECT FROM fencing.spent") == []


async def test_a_delete_lists_its_key_where_absence_is_spent(database: Database) -> None:
    removal = replace(WRITE, write_id=UUID(int=3), removes=True)
    await intents.begin(database, removal, KnownObject("e"))
    await intents.abandon(database, removal)
    assert await database.fetch("SELECT FROM fencing.tombstone") == []
    signed_at = await written(database, WRITE, ABSENCE)
    await intents.begin(database, removal, KnownObject("e"), signed_at, (ABSENCE,))
    rows = await database.fetch("SELECT resource, bucket, key FROM fencing.tombstone")
    assert [tuple(row) for row in rows] == [("r", "bucket", "k")]
