"""Every committed entry is sealed once, in one order, and kept as long as it is to be kept. No writer waits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import date, timedelta
from typing import Any, cast

import asyncpg
import pytest

from gateway.db import record
from gateway.db.database import Database
from gateway.errors import SqlError
from gateway.observe.events import HeadNoted, PartitionDropped, RecordSealed, SweepFailed
from gateway.record.sealing import Sealing, SealingPauses
from tests.patience import patient
from tests.record.entries import as_superuser, entries, flaws, lines, on_record, partition_of, written
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
    assert (head.position, head.hash) == (25, exported[-1][-66:-2])
    assert (await record.seal_some(database), await record.seal(database)) == (0, 25), "there is nothing to seal"
    assert await record.read_head(database) == head


async def test_a_reader_does_not_wait_for_what_is_written_meanwhile(database: Database) -> None:
    class Storm:
        """A database where something is refused before each of our statements."""

        async def fetch_write(self, sql: str, *arguments: object) -> object:
            await written(database, 1)
            return await database.fetch_write(sql, *arguments)

        async def fetch(self, sql: str, *arguments: object) -> object:
            return await database.fetch(sql, *arguments)

    await written(database, 3)
    async with asyncio.timeout(PATIENCE):
        position = await record.seal(cast(Database, Storm()), 1)
    assert position >= 3
    assert await record.seal(database) > position


async def test_what_is_committed_late_is_sealed_late(database: Database, connections: Callable[[], Any]) -> None:
    """Its number is lower than those that have been sealed meanwhile: that is no reason to miss it."""
    slow = await connections()
    await slow.execute("BEGIN; INSERT INTO fencing.intake (kind, resource) VALUES ('bypass', 'late')")
    await on_record(database, 3)
    assert await entries(database, "bypass") == []
    await slow.execute("COMMIT")
    assert [entry["position"] for entry in await entries(database, "bypass")] == [4]
    assert flaws(await lines(database)) == []


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
    await sealer.execute("BEGIN")
    assert await sealer.fetchval("SELECT sealed FROM fencing.seal_v1(3)") == 3
    assert await record.seal_some(database) is None
    reading = asyncio.ensure_future(record.seal(database))
    await waits(database, "seal_v1")
    assert not reading.done()
    await sealer.execute("COMMIT")
    assert await reading == 5
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


async def test_after_midnight_there_is_another_day_and_it_never_goes_back(database: Database) -> None:
    today = (await database.now()).date()
    await on_record(database, 2)
    await as_superuser(database, f"UPDATE fencing.head SET day = '{today + timedelta(days=1)}'")
    await on_record(database, 2)
    rows = await database.fetch("SELECT position, day FROM fencing.entry ORDER BY position")
    tomorrow = today + timedelta(days=1)
    assert [tuple(row) for row in rows] == [(1, today), (2, today), (3, tomorrow), (4, tomorrow)]
    assert flaws(await lines(database)) == []


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


# Retention ------------------------------------------------------------------------------------------------------------


async def stretches(database: Database) -> list[tuple[date, date]]:
    """The first and the last of the days of each partition."""
    rows = await database.fetch("SELECT first, last FROM fencing.stretches_v1() ORDER BY first")
    return [(row["first"], row["last"]) for row in rows]


async def days(database: Database) -> list[str]:
    """The days that have a partition."""
    return [
        f"{first + timedelta(days=number):%Y%m%d}"
        for first, last in await stretches(database)
        for number in range((last - first).days + 1)
    ]


async def sealed_on(database: Database, ago: int, count: int, days: int = 1) -> date:
    """Entries sealed so many days ago, in a partition that ends with that day; the day.

    The partition is for ``days``. All entries but the last are of the first one.
    """
    last = (await database.now()).date() - timedelta(days=ago)
    first = last - timedelta(days=days - 1)
    name = f"entry_{first:%Y%m%d}" + (f"_{last:%Y%m%d}" if days > 1 else "")
    await on_record(database, count)
    head = await record.read_head(database)
    await as_superuser(
        database,
        f"CREATE TABLE fencing.{name} (LIKE fencing.entry INCLUDING ALL)",
        f"ALTER TABLE fencing.entry ATTACH PARTITION fencing.{name} FOR VALUES FROM ('{first}') "
        f"TO ('{last + timedelta(days=1)}')",
        f"UPDATE fencing.entry SET day = '{first}' WHERE position > {head.position - count}",
        f"UPDATE fencing.entry SET day = '{last}' WHERE position > {head.position - min(count, 1)}",
    )
    return last


async def test_the_oldest_day_goes_first_and_says_what_it_was(database: Database) -> None:
    older, old = await sealed_on(database, 12, 3), await sealed_on(database, 11, 2)
    empty = await sealed_on(database, 13, 0)
    await on_record(database, 4)
    before = await lines(database)
    assert await record.drop_partition(database, 10) == empty
    assert await record.drop_partition(database, 10) == older
    assert await record.drop_partition(database, 10) == old
    assert await record.drop_partition(database, 10) is None
    found = await entries(database, "retention")
    hashes = [json.loads(line)["hash"] for line in before]
    assert [json.loads(entry["details"]) for entry in found] == [
        {"day": str(older), "entries": 3, "first": 1, "last": 3, "hash": hashes[2]},
        {"day": str(old), "entries": 2, "first": 4, "last": 5, "hash": hashes[4]},
    ]
    assert (await lines(database))[:4] == before[5:]
    assert f"{old:%Y%m%d}" not in await days(database)


async def test_a_week_is_kept_until_the_last_of_its_days_is_too_old(database: Database) -> None:
    last = await sealed_on(database, 9, 3, days=7)
    await on_record(database, 2)
    assert await record.drop_partition(database, 9) is None
    assert await record.drop_partition(database, 8) == last
    (entry,) = await entries(database, "retention")
    details = json.loads(entry["details"])
    assert (details["day"], details["entries"], details["first"], details["last"]) == (str(last), 3, 1, 3)
    assert flaws(await lines(database), after=3) == []
    assert f"{last:%Y%m%d}" not in await days(database)


async def test_a_week_is_kept_whatever_is_asked_for(database: Database) -> None:
    await sealed_on(database, 9, 1)
    for keep in (6, 0, -1, -400, None):
        with pytest.raises(SqlError, match="seven days at least"):
            await record.drop_partition(database, keep)  # type: ignore[arg-type]
    assert len(await lines(database)) == 1


async def test_days_that_had_no_partition_go_together_once_the_last_of_them_is_too_old(database: Database) -> None:
    today = (await database.now()).date()
    await on_record(database, 4)
    await as_superuser(
        database,
        f"UPDATE fencing.entry SET day = '{today - timedelta(days=20)}' WHERE position <= 2",
        f"UPDATE fencing.entry SET day = '{today - timedelta(days=9)}' WHERE position = 3",
    )
    assert await record.drop_partition(database, 10) is None
    assert await record.drop_partition(database, 8) == today - timedelta(days=9)
    (entry,) = await entries(database, "retention")
    details = json.loads(entry["details"])
    assert (details["entries"], details["first"], details["last"]) == (3, 1, 3)
    assert flaws(await lines(database), after=3) == []
    await as_superuser(database, "UPDATE fencing.head SET day = '2099-01-01'")
    await on_record(database, 1)
    with pytest.raises(SqlError, match="only ever added to"):
        await database.fetch_write("DELETE FROM fencing.entry_other")


async def test_nobody_waits_for_it_while_the_record_is_read(database: Database, connections: Callable[[], Any]) -> None:
    """The drop gives way, and is done another time. Neither a writer nor a sealer notices it."""
    day = await sealed_on(database, 12, 3)
    reader = await connections()
    await reader.execute("BEGIN; SELECT FROM fencing.entry LIMIT 1")
    with pytest.raises(SqlError, match="in use"):
        await record.drop_partition(database, 10)
    with pytest.raises(SqlError, match="in use"):
        await record.prepare_partitions(database, 40, 40)
    await on_record(database, 2)
    await reader.execute("ROLLBACK")
    assert await record.drop_partition(database, 10) == day


class TestDaysToCome:
    async def test_there_is_a_partition_for_each_week_of_them(self, database: Database) -> None:
        """The first one for what is left of a week, and none that begins more than so many days ahead."""
        today = (await database.now()).date()
        assert await stretches(database) == [(today, today + timedelta(days=7 - today.isoweekday()))]
        assert await record.prepare_partitions(database, 31, 2) == 2
        assert 2 <= await record.prepare_partitions(database, 31, 100) <= 3
        assert await record.prepare_partitions(database, 31, 100) == 0
        found = await days(database)
        assert found == [f"{today + timedelta(days=n):%Y%m%d}" for n in range(len(found))]
        assert 32 <= len(found) < 32 + 7
        ahead = (await stretches(database))[1:]
        assert {first.isoweekday() for first, _ in ahead} == {1}
        assert {last.isoweekday() for _, last in ahead} == {7}

    async def test_a_week_ends_where_a_day_has_a_partition_or_entries_without_one(self, database: Database) -> None:
        today = (await database.now()).date()
        monday = today + timedelta(days=15 - today.isoweekday())
        wednesday, friday = monday + timedelta(days=2), monday + timedelta(days=4)
        await on_record(database, 1)
        await as_superuser(
            database,
            f"CREATE TABLE fencing.entry_{wednesday:%Y%m%d} PARTITION OF fencing.entry "
            f"FOR VALUES FROM ('{wednesday}') TO ('{wednesday + timedelta(days=1)}')",
            f"UPDATE fencing.entry SET day = '{friday}'",
        )
        await record.prepare_partitions(database, 31, 100)
        week = [(first - monday, last - monday) for first, last in await stretches(database)]
        assert [(first.days, last.days) for first, last in week if 0 <= first.days < 7] == [
            (0, 1),
            (2, 2),
            (3, 3),
            (5, 6),
        ]

    async def test_any_number_of_gateways_prepare_them_at_once(self, dsn: str, database: Database) -> None:
        others = [patient(dsn, pool_size=1) for _ in range(4)]
        try:
            made = await asyncio.gather(
                *(record.prepare_partitions(one, 20, 100) for one in others), return_exceptions=True
            )
        finally:
            for one in others:
                await one.close()
        assert {type(one) for one in made} <= {int, SqlError}
        found = await stretches(database)
        assert sum(one for one in made if isinstance(one, int)) == len(found) - 1 >= 2
        assert 21 <= len(await days(database)) < 21 + 7

    async def test_a_day_that_has_begun_without_one_stays_where_it_is(self, database: Database) -> None:
        today = (await database.now()).date()
        await as_superuser(database, f"DROP TABLE fencing.{await partition_of(database, today)}")
        await on_record(database, 3)
        assert await record.prepare_partitions(database, 2, 10) >= 1
        assert (await days(database))[0] == f"{today + timedelta(days=1):%Y%m%d}"
        assert flaws(await on_record(database, 2)) == []


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
        # How often it fails until the function is back is a matter of time.
        assert {event.what for event in events if isinstance(event, SweepFailed)} == {"entries that are to be sealed"}

    async def test_every_gateway_drops_and_prepares_partitions(self, database: Database) -> None:
        events = Events()
        day = await sealed_on(database, 12, 3)
        quick = SealingPauses(prepare=0.01, drop=0.01)
        async with Sealing(database, events, 10, quick).running():
            while PartitionDropped(day) not in events or len(await days(database)) < 32:
                # One of the two may find the other at it, and is done another time.
                assert all("in use" in event.error for event in events if isinstance(event, SweepFailed)), events
                await asyncio.sleep(0.01)
