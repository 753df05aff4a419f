"""Every committed entry is sealed once, in one order, whichever session seals, dies or comes late."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import date, timedelta
from typing import Any, cast

import asyncpg
import pytest

from gateway.db import record
from gateway.db.database import Database
from gateway.errors import SqlError
from gateway.observe.events import HeadNoted, RecordSealed, SweepFailed
from gateway.record.sealing import Sealing, SealingPauses
from tests.patience import patient
from tests.record.sealed import as_superuser, entries, flaws, lines, on_record, written
from tests.running import Events
from tests.waiting import PATIENCE

QUICK = SealingPauses(seal=0.01)


@pytest.fixture
async def connections(dsn: str) -> AsyncIterator[Callable[[], Any]]:
    """Sessions of others."""
    opened: list[Any] = []

    async def connect() -> Any:
        opened.append(await asyncpg.connect(dsn))
        return opened[-1]

    yield connect
    for connection in opened:
        await connection.close()


async def waits(database: Database, what: str) -> None:
    """Return once a session waits for a lock with such a statement."""
    sql = (
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1 AND datname = current_database()"
    )
    while not await database.fetch(sql, f"%{what}%"):
        await asyncio.sleep(0.01)


async def test_entries_are_sealed_in_the_order_in_which_they_came(database: Database) -> None:
    exported = await on_record(database, 25)
    assert flaws(exported) == []
    rows = await database.fetch("SELECT position, resource FROM fencing.entry ORDER BY position")
    assert [tuple(row) for row in rows] == [(n, f"orders/{n}") for n in range(1, 26)]
    assert await database.fetch("SELECT FROM fencing.intake") == []
    head = await record.read_head(database)
    assert (head.position, head.hash) == (25, rows and exported[-1][-66:-2])


async def test_in_batches_or_at_once_it_is_the_same_record(database: Database) -> None:
    await written(database, 25)
    assert await record.seal_some(database, 10) == 10
    assert await record.seal(database, 4) == 25
    assert flaws(await lines(database)) == []


async def test_a_reader_does_not_wait_for_what_is_written_meanwhile(database: Database) -> None:
    class Storm:
        """A database where something is refused before each of our statements."""

        async def fetchrow_write(self, sql: str, *arguments: object) -> object:
            await written(database, 1)
            return await database.fetchrow_write(sql, *arguments)

        async def fetchrow(self, sql: str, *arguments: object) -> object:
            return await database.fetchrow(sql, *arguments)

    await written(database, 3)
    async with asyncio.timeout(PATIENCE):
        position = await record.seal(cast(Database, Storm()), 1)
    assert position >= 3
    assert await record.seal(database) > position


async def test_nothing_to_seal_changes_nothing(database: Database) -> None:
    await on_record(database, 3)
    before = await record.read_head(database)
    assert (await record.seal_some(database), await record.seal(database)) == (0, 3)
    assert await record.read_head(database) == before


async def test_what_is_committed_late_is_sealed_late(database: Database, connections: Callable[[], Any]) -> None:
    """Its number is lower than those that have been sealed meanwhile: that is no reason to miss it."""
    slow = await connections()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("INSERT INTO fencing.intake (kind, resource) VALUES ('bypass', 'late')")
    await on_record(database, 3)
    assert [entry["resource"] for entry in await entries(database, "bypass")] == []
    await transaction.commit()
    assert [entry["position"] for entry in await entries(database, "bypass")] == [4]
    assert flaws(await lines(database)) == []


async def test_what_is_rolled_back_leaves_nothing(database: Database, connections: Callable[[], Any]) -> None:
    slow = await connections()
    transaction = slow.transaction()
    await transaction.start()
    await slow.execute("INSERT INTO fencing.intake (kind) VALUES ('bypass')")
    await transaction.rollback()
    assert await entries(database, "bypass") == []
    assert flaws(await on_record(database, 2)) == []


async def test_any_number_of_sealers_make_one_chain(dsn: str, database: Database) -> None:
    """While others write; each entry once."""
    others = [patient(dsn, pool_size=2) for _ in range(3)]
    try:
        writing = asyncio.gather(*(written(one, 20, first=100 * n) for n, one in enumerate(others) for _ in range(5)))
        while not writing.done():
            await asyncio.gather(
                *(record.seal(one, 7) for one in others), *(record.seal_some(one, 7) for one in others)
            )
        await writing
        await record.seal(database)
    finally:
        for one in others:
            await one.close()
    assert flaws(await lines(database)) == []
    rows = await database.fetch("SELECT count(*), count(DISTINCT id), max(position) FROM fencing.entry")
    assert tuple(rows[0]) == (300, 300, 300)


async def test_who_reads_waits_for_who_seals_and_who_works_in_the_background_does_not(
    database: Database, connections: Callable[[], Any]
) -> None:
    await written(database, 5)
    sealer = await connections()
    transaction = sealer.transaction()
    await transaction.start()
    assert await sealer.fetchval("SELECT sealed FROM fencing.seal_v1(3)") == 3
    assert await record.seal_some(database) is None
    reading = asyncio.ensure_future(record.seal(database))
    await waits(database, "seal_v1")
    assert not reading.done()
    await transaction.commit()
    assert await reading == 5
    assert flaws(await lines(database)) == []


async def test_a_sealer_that_dies_in_the_middle_has_done_nothing(
    database: Database, connections: Callable[[], Any]
) -> None:
    await written(database, 5)
    sealer = await connections()
    await sealer.execute("BEGIN; SELECT fencing.seal_v1(3)")
    await database.fetch("SELECT pg_terminate_backend($1)", sealer.get_server_pid())
    # Its server is gone, so the fixture could not close it in good order.
    sealer.terminate()
    assert await record.seal(database) == 5
    assert flaws(await lines(database)) == []


async def test_writers_wait_for_nobody(database: Database, connections: Callable[[], Any]) -> None:
    """Not for who seals, not for who has the whole record locked."""
    await written(database, 5)
    sealer = await connections()
    await sealer.execute("BEGIN; LOCK TABLE fencing.entry, fencing.head IN ACCESS EXCLUSIVE MODE")
    await written(database, 5)
    await sealer.execute("ROLLBACK; BEGIN; SELECT fencing.seal_v1(3)")
    await written(database, 5)
    await sealer.execute("COMMIT")
    assert await record.seal(database) == 15


async def test_it_is_announced_once(database: Database, connections: Callable[[], Any]) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await connections()
    await listener.add_listener("fencing_record", lambda *said: heard.put_nowait(said[3]))
    await on_record(database, 12)
    assert await heard.get() == "12"
    await record.seal(database)
    await on_record(database, 1)
    assert await heard.get() == "13"
    assert heard.empty()


async def test_after_midnight_there_is_another_day_and_it_never_goes_back(database: Database) -> None:
    today = (await database.now()).date()
    await on_record(database, 2)
    await as_superuser(database, f"UPDATE fencing.head SET day = '{today + timedelta(days=1)}'")
    await on_record(database, 2)
    rows = await database.fetch("SELECT position, day FROM fencing.entry ORDER BY position")
    tomorrow = today + timedelta(days=1)
    assert [tuple(row) for row in rows] == [(1, today), (2, today), (3, tomorrow), (4, tomorrow)]
    assert flaws(await lines(database)) == []


async def test_a_day_nobody_has_prepared_loses_nothing(database: Database) -> None:
    far = date(2099, 12, 31)
    await as_superuser(database, f"UPDATE fencing.head SET day = '{far}'")
    exported = await on_record(database, 3)
    rows = await database.fetch("SELECT DISTINCT day, tableoid::regclass::text AS name FROM fencing.entry")
    assert [tuple(row) for row in rows] == [(far, "fencing.entry_other")]
    assert flaws(exported) == []


async def test_what_could_never_be_sealed_is_refused_at_once(database: Database) -> None:
    """Were it taken in, nothing behind it would be sealed either."""
    for column in ("plane", "rule", "resource", "reason", "holder", "caller"):
        await database.fetch_write(f"INSERT INTO fencing.intake (kind, {column}) VALUES ('x', repeat('é', 1024))")
        with pytest.raises(SqlError, match="violates check constraint"):
            await database.fetch_write(f"INSERT INTO fencing.intake (kind, {column}) VALUES ('x', repeat('é', 1025))")
    await database.fetch_write(
        "INSERT INTO fencing.intake (kind, target, client, details) SELECT 'x', t, t, to_json(t)::jsonb "
        "FROM (SELECT string_agg(gen_random_uuid()::text, '') AS t FROM generate_series(1, 3000)) AS long"
    )
    await record.seal(database)
    assert flaws(await lines(database)) == []


class TestInTheBackground:
    async def test_every_gateway_seals_and_says_so(self, dsn: str, database: Database) -> None:
        events = Events()
        async with Sealing(database, events, 400, QUICK).running(), Sealing(database, events, 400, QUICK).running():
            await written(database, 30)
            async with asyncio.timeout(PATIENCE):
                # A gateway says so after its commit. One that is stopped in between says nothing.
                while sum(event.sealed for event in events if isinstance(event, RecordSealed)) < 30:
                    await asyncio.sleep(0.01)
        assert sum(event.sealed for event in events if isinstance(event, RecordSealed)) == 30
        assert (await record.read_head(database)).position == 30
        assert flaws(await lines(database)) == []

    async def test_its_end_is_noted_outside_the_database(self, database: Database) -> None:
        events = Events()
        await Sealing(database, events, 400).note()
        assert list(events) == [], "there is nothing to be a witness of"
        await on_record(database, 3)
        await Sealing(database, events, 400).note()
        head = await record.read_head(database)
        assert list(events) == [HeadNoted(3, head.hash)]
        assert flaws(await lines(database), {3: head.hash}) == []

    async def test_it_goes_on_after_whatever_goes_wrong(self, database: Database) -> None:
        events = Events()
        await as_superuser(database, "ALTER FUNCTION fencing.seal_v1 RENAME TO seal_v0")
        async with Sealing(database, events, 400, QUICK).running():
            while not [event for event in events if isinstance(event, SweepFailed)]:
                await asyncio.sleep(0.01)
            await as_superuser(database, "ALTER FUNCTION fencing.seal_v0 RENAME TO seal_v1")
            await written(database, 3)
            while (await record.read_head(database)).position < 3:
                await asyncio.sleep(0.01)
        assert len([event for event in events if isinstance(event, SweepFailed)]) == 1, "it is said once"
