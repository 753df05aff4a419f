"""Forbidden ETags are forgotten by the store's clock, a day later, and not a moment before they may be."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from gateway.fencing.intent import Announcement, Intent, KnownObject
from gateway.fencing.rules import Presented
from gateway.fencing.token import Token
from gateway.store import intents
from gateway.store.database import Database

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
