"""Begins and finishes of concurrent object writes share a transaction, and each is as if it were alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.db import intents
from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.errors import Unavailable
from gateway.fencing.decision import Decision, Presented
from gateway.fencing.intent import Announcement, Begun
from gateway.fencing.token import Token
from gateway.objects.resource_rules import Resources
from gateway.objects.run.announcements import Announcements

MANY = 20


def announced(number: int, token: int = 5, resource: str | None = None) -> Announcement:
    presented = Presented(Token(0, token), f"holder {number}")
    return Announcement(resource or f"s3/bucket/{number:03}", "bucket", f"{number:03}", uuid4(), presented, "tester")


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements in each shared round trip."""
    sizes: list[int] = []
    real = asyncpg.Connection.fetchmany

    async def counted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
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
    begun = await asyncio.gather(*(shared.begin(intents.Begin(write), proven=False) for write in reversed(writes)))
    assert trips == [MANY]
    assert all(one.signed_at is not None for one in begun)
    raised = sum(one.decision is Decision.RAISED for one in begun)
    assert raised == (MANY if resource is None else 1)
    pending = {(one.resource, one.key, one.write_id) for one in await intents.list_pending(database, 2 * MANY)}
    assert pending == {(write.resource, write.key, write.write_id) for write in writes}
    trips.clear()
    ends = [intents.Finish(write, f"etag {write.key}", tombstone=False) for write in writes]
    assert await asyncio.gather(*map(shared.finish, ends)) == [True] * MANY
    assert trips == [MANY]
    assert await intents.list_pending(database, 1) == []
    remembered = await database.fetch("SELECT key, etag FROM fencing.object ORDER BY key")
    assert [tuple(row) for row in remembered] == [(write.key, f"etag {write.key}") for write in writes]


async def test_a_lone_one_goes_by_itself(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    write = announced(1)
    assert (await shared.begin(intents.Begin(write), proven=False)).signed_at is not None
    assert await shared.finish(intents.Finish(write, "e", tombstone=False))
    assert trips == []


async def test_each_is_judged_by_its_own_fence(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    for number in range(3):
        write = announced(number, token=6)
        await shared.begin(intents.Begin(write), proven=False)
        await shared.finish(intents.Finish(write, "e", tombstone=False))
    answers = await asyncio.gather(
        *(shared.begin(intents.Begin(announced(n, token=5 + n)), proven=False) for n in range(3))
    )
    assert [one.decision for one in answers] == [Decision.STALE, Decision.HELD, Decision.RAISED]
    assert [one.signed_at is None for one in answers] == [True, False, False]
    assert trips == [3]


async def test_two_of_one_key_are_announced_one_after_the_other(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    writes = [announced(1), replace(announced(1), write_id=UUID(int=7))]
    begun = await asyncio.gather(*(shared.begin(intents.Begin(write), proven=False) for write in writes))
    # Their batch fails, so each is sent again on a session of its own. Either may be the first in the database.
    first, second = (0, 1) if begun[0].signed_at is not None else (1, 0)
    assert begun[first].signed_at is not None
    assert begun[second].signed_at is None
    assert [one.write_id for one in begun[second].pending] == [writes[first].write_id]
    assert trips == [2]


async def test_one_that_fails_fails_alone(database: Database, trips: list[int]) -> None:
    """It proves a naming of the bucket that is not in force."""
    shared = Announcements(database, Resources())
    wrong = intents.Begin(announced(1), naming=UUID(int=9))
    others = [intents.Begin(announced(number)) for number in (0, 2)]
    failed, *begun = await asyncio.gather(
        *(shared.begin(one, proven=False) for one in (wrong, *others)), return_exceptions=True
    )
    assert isinstance(failed, Unavailable)
    assert [isinstance(one, Begun) and one.signed_at is not None for one in begun] == [True, True]
    assert trips[0] == 3
    assert {one.key for one in await intents.list_pending(database, 3)} == {"000", "002"}


async def test_one_that_is_too_large_goes_by_itself(database: Database, trips: list[int]) -> None:
    shared = Announcements(database, Resources())
    large = intents.Begin(announced(0), outcomes=["x" * 40_000])
    begun = await asyncio.gather(*(shared.begin(one, proven=False) for one in (large, intents.Begin(announced(1)))))
    assert [one.signed_at is not None for one in begun] == [True, True]
    assert trips == []
