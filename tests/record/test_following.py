"""Following: what is new is read once, for however many; who falls behind, or the database away, misses nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from gateway.db import record, search
from gateway.db.database import Database
from gateway.db.notifications import RECORD, listening
from gateway.db.servers import Servers
from gateway.errors import GatewayError, RequestMalformed
from gateway.fencing.record import Entry, Filters, Kind
from gateway.observe.events import ServiceUnreachable
from gateway.record.following import Follower, Subscription
from tests.record.varied import everything, sealed
from tests.running import Events
from tests.waiting import PATIENCE, end_sessions

SHORTEST = 0.001
"""Seconds of the shortest timeout."""


@asynccontextmanager
async def following(database: Database, dsn: str | None = None, kept: int = 2000) -> AsyncIterator[Follower]:
    """With a ``dsn`` it hears of what is new."""
    listen = None if dsn is None else partial(listening, Servers(dsn, PATIENCE), RECORD)
    follower = Follower(database, Events(), listen, kept=kept)
    async with follower.running():
        yield follower


async def taken(subscription: Subscription, count: int) -> list[Entry]:
    found: list[Entry] = []
    while len(found) < count:
        found += await subscription.next()
    return found


@pytest.mark.parametrize("kept", [1, 7, 2000])
async def test_everybody_gets_everything_once_and_in_order(database: Database, dsn: str, kept: int) -> None:
    await sealed(database, 150)
    asked = [Filters(), Filters(kinds=(Kind.REJECTION,)), Filters(prefix="job/1", caller="caller-1")]
    async with following(database, dsn, kept) as follower, asyncio.TaskGroup() as group:

        async def follow(filters: Filters, after: int | None) -> None:
            async with follower.subscribed(filters, after) as subscription:
                begun.release()
                begin = subscription.position
                await written.wait()
                wanted = [e for e in await everything(database) if e.position > begin and filters.admit(e)]
                assert await taken(subscription, len(wanted)) == wanted

        begun, written = asyncio.Semaphore(0), asyncio.Event()
        for filters in asked:
            for after in (None, 0, 99, 150):
                group.create_task(follow(filters, after))
        for _ in range(12):
            await begun.acquire()
        for _ in range(10):
            await sealed(database, 30)
        written.set()


async def test_however_many_follow_it_is_read_once(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, read = search.read_after, []

    async def counted(*arguments: Any) -> Sequence[Any]:
        found = await real(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(search, "read_after", counted)
    monkeypatch.setattr(search, "find_page", None)
    async with following(database, dsn) as follower:
        subscriptions = [follower.subscribed(Filters()) for _ in range(50)]
        opened = [await one.__aenter__() for one in subscriptions]
        first = [asyncio.ensure_future(one.next()) for one in opened]
        # Until it knows where it begins, it has nothing to hand over.
        while not read:
            await asyncio.sleep(0.01)
        await sealed(database, 100)
        await asyncio.gather(*first)
        assert sum(read) == 100
        for one in subscriptions:
            await one.__aexit__(None, None, None)


async def test_nothing_is_read_while_nobody_follows(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(database, dsn) as follower:
        async with follower.subscribed(Filters()) as subscription:
            await sealed(database, 10)
            await taken(subscription, 10)
        await sealed(database, 5000)
        async with follower.subscribed(Filters(), after=0) as late:
            found = await taken(late, 5010)
        assert [one.position for one in found] == list(range(1, 5011))


async def test_it_may_be_cancelled_at_any_time(database: Database, dsn: str) -> None:
    found: list[Entry] = []
    async with following(database, dsn, kept=20) as follower, follower.subscribed(Filters(), 0) as subscription:
        writing = asyncio.ensure_future(_write(database, 20))
        patience = SHORTEST
        while len(found) < 200:
            try:
                async with asyncio.timeout(patience):
                    found += await subscription.next()
                patience = SHORTEST
            except TimeoutError:
                # Not for ever too short: each that is cancelled takes a session along, and needs a new one.
                patience *= 1.5
        await writing
    assert [one.position for one in found] == list(range(1, 201))


async def _write(database: Database, times: int) -> None:
    for _ in range(times):
        await sealed(database, 10)


async def test_it_looks_by_itself_where_nothing_can_be_heard(database: Database) -> None:
    async with following(database) as follower, follower.subscribed(Filters()) as subscription:
        await sealed(database, 3)
        assert [one.position for one in await taken(subscription, 3)] == [1, 2, 3]


_LISTENING = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' AND state = 'idle'
"""


async def test_it_goes_on_when_its_sessions_were_lost(database: Database, dsn: str) -> None:
    events = Events()
    follower = Follower(database, events, partial(listening, Servers(dsn, PATIENCE), RECORD))
    async with follower.running(), follower.subscribed(Filters()) as subscription:
        await sealed(database, 3)
        found = await taken(subscription, 3)
        async with asyncio.timeout(PATIENCE):
            # Entries arrive without it, too. A session that is not open yet cannot be lost.
            while not await database.fetch(_LISTENING):
                await asyncio.sleep(0.01)
            await end_sessions(dsn)
            while not any(isinstance(event, ServiceUnreachable) for event in events):
                await asyncio.sleep(0.01)
        await _sealed_somehow(database, 4)
        found += await taken(subscription, 4)
    assert all(one.position + 1 == other.position for one, other in pairwise(found))


async def _sealed_somehow(database: Database, count: int) -> None:
    """The first statement of a lost session says so."""
    while True:
        try:
            await sealed(database, count)
        except GatewayError:
            continue
        return


async def test_a_position_that_is_not_there_yet(database: Database) -> None:
    await sealed(database, 3)
    async with following(database) as follower:
        with pytest.raises(RequestMalformed):
            async with follower.subscribed(Filters(), after=4):
                pass
        assert await record.seal(database) == 3
