"""The gateway drops partitions that are too old, and puts that on record. No writer waits, and no other data goes."""

import asyncio
import json
from datetime import date, timedelta

import asyncpg
import pytest

from gateway.db import record
from gateway.db.database import Database
from gateway.errors import SqlError
from gateway.fencing.chain_verification import Flaw
from gateway.observe.events import PartitionDropped, SweepFailed
from gateway.record.sealing import Sealing, SealingPauses
from tests.patience import patient
from tests.record.sealed import as_superuser, entries, flaws, lines, on_record, partition_of, written
from tests.running import Events


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


async def sealed_in(database: Database, first: date, last: date, count: int) -> None:
    """Entries that were sealed on the first and the last of these days, in one partition."""
    await on_record(database, count)
    head = await record.read_head(database)
    await as_superuser(
        database,
        f"CREATE TABLE fencing.entry_{first:%Y%m%d}_{last:%Y%m%d} (LIKE fencing.entry INCLUDING ALL)",
        f"ALTER TABLE fencing.entry ATTACH PARTITION fencing.entry_{first:%Y%m%d}_{last:%Y%m%d} "
        f"FOR VALUES FROM ('{first}') TO ('{last + timedelta(days=1)}')",
        f"UPDATE fencing.entry SET day = '{first}' WHERE position > {head.position - count}",
        f"UPDATE fencing.entry SET day = '{last}' WHERE position = {head.position}",
    )


async def sealed_on(database: Database, ago: int, count: int) -> date:
    """Entries that were sealed so many days ago, in a partition of that day; the day."""
    day = (await database.now()).date() - timedelta(days=ago)
    await on_record(database, count)
    head = await record.read_head(database)
    await as_superuser(
        database,
        f"CREATE TABLE fencing.entry_{day:%Y%m%d} (LIKE fencing.entry INCLUDING ALL)",
        f"ALTER TABLE fencing.entry ATTACH PARTITION fencing.entry_{day:%Y%m%d} FOR VALUES FROM ('{day}') "
        f"TO ('{day + timedelta(days=1)}')",
        f"UPDATE fencing.entry SET day = '{day}' WHERE position > {head.position - count}",
    )
    return day


async def test_the_oldest_day_goes_first_and_says_what_it_was(database: Database) -> None:
    older, old = await sealed_on(database, 12, 3), await sealed_on(database, 11, 2)
    await on_record(database, 4)
    before = await lines(database)
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


async def test_a_clock_that_is_wrong_does_not_take_the_whole_record_at_once(database: Database) -> None:
    """One part in each round, the oldest first; nor does it take any fence, however old."""
    older, old = await sealed_on(database, 30, 3), await sealed_on(database, 29, 2)
    await database.fetch_write(
        "INSERT INTO fencing.fence (resource, epoch, value, raised_at) VALUES ('old', 0, 1, '1999-12-31')"
    )
    events = Events()
    sealing = Sealing(database, events, 10)
    await sealing.drop()
    assert list(events) == [PartitionDropped(older)]
    await sealing.drop()
    assert list(events) == [PartitionDropped(older), PartitionDropped(old)]
    await sealing.drop()
    assert len(events) == 2
    assert len(await database.fetch("SELECT FROM fencing.fence")) == 1


async def test_what_is_left_follows_on_what_is_gone(database: Database) -> None:
    await sealed_on(database, 12, 3)
    await on_record(database, 2)
    await record.drop_partition(database, 10)
    await record.seal(database)
    left = await lines(database)
    assert flaws(left, after=3) == []
    await as_superuser(database, "UPDATE fencing.entry SET holder = 'nobody' WHERE position = 4")
    assert flaws(await lines(database), after=3) == [(Flaw.CHANGED, 4)], "the entry about it vouches for the first"


async def test_a_day_is_kept_for_as_long_as_it_is_to_be_kept(database: Database) -> None:
    await sealed_on(database, 7, 1)
    assert await record.drop_partition(database, 7) is None
    await sealed_on(database, 8, 1)
    assert await record.drop_partition(database, 8) is None
    assert await record.drop_partition(database, 7) is not None


async def test_a_week_is_kept_until_the_last_of_its_days_is_too_old(database: Database) -> None:
    today = (await database.now()).date()
    first, last = today - timedelta(days=15), today - timedelta(days=9)
    await sealed_in(database, first, last, 3)
    await on_record(database, 2)
    assert await record.drop_partition(database, 9) is None
    assert await record.drop_partition(database, 8) == last
    (entry,) = await entries(database, "retention")
    details = json.loads(entry["details"])
    assert (details["day"], details["entries"], details["first"], details["last"]) == (str(last), 3, 1, 3)
    assert flaws(await lines(database), after=3) == []
    assert f"{first:%Y%m%d}" not in await days(database)


@pytest.mark.parametrize("keep", [6, 0, -1, -400, None])
async def test_a_week_is_kept_whatever_is_asked_for(database: Database, keep: int | None) -> None:
    await sealed_on(database, 9, 1)
    with pytest.raises(SqlError, match="seven days at least"):
        await record.drop_partition(database, keep)  # type: ignore[arg-type]
    assert len(await lines(database)) == 1


async def test_a_day_without_entries_leaves_no_entry(database: Database) -> None:
    day = await sealed_on(database, 12, 0)
    assert await record.drop_partition(database, 10) == day
    assert await entries(database, "retention") == []


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


async def test_nobody_waits_for_it_while_the_record_is_read(dsn: str, database: Database) -> None:
    """The drop gives way, and is done another time. Neither a writer nor a sealer notices it."""
    day = await sealed_on(database, 12, 3)
    reader = await asyncpg.connect(dsn)
    try:
        reading = reader.transaction()
        await reading.start()
        await reader.fetch("SELECT FROM fencing.entry LIMIT 1")
        with pytest.raises(SqlError, match="in use"):
            await record.drop_partition(database, 10)
        with pytest.raises(SqlError, match="in use"):
            await record.prepare_partitions(database, 40, 40)
        await on_record(database, 2)
        await reading.rollback()
    finally:
        await reader.close()
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

    async def test_they_are_indexed_as_the_others(self, database: Database) -> None:
        assert await record.prepare_partitions(database, 7, 1) == 1
        rows = await database.fetch(
            "SELECT count(*) FROM pg_index WHERE indrelid IN (SELECT relid FROM pg_partition_tree('fencing.entry')) "
            "GROUP BY indrelid"
        )
        assert len(rows) == 4
        assert len({row[0] for row in rows}) == 1

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

    async def test_nobody_who_seals_waits_for_it(self, dsn: str, database: Database) -> None:
        sealer = await asyncpg.connect(dsn)
        try:
            await written(database, 3)
            sealing = sealer.transaction()
            await sealing.start()
            await sealer.execute("SELECT fencing.seal_v1(2)")
            assert await record.prepare_partitions(database, 10, 10) >= 1
            await sealing.commit()
        finally:
            await sealer.close()
        assert await record.seal(database) == 3


class TestInTheBackground:
    async def test_each_gateway_does_it(self, database: Database) -> None:
        events = Events()
        day = await sealed_on(database, 12, 3)
        quick = SealingPauses(prepare=0.01, drop=0.01)
        async with Sealing(database, events, 10, quick).running():
            while PartitionDropped(day) not in events or len(await days(database)) < 32:
                # One of the two may find the other at it, and is done another time.
                assert all("in use" in event.error for event in events if isinstance(event, SweepFailed)), events
                await asyncio.sleep(0.01)
