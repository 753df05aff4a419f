"""The path of the benchmarks counts each round trip and each statement that a session sends."""

import asyncpg

from bench.wire import counting


async def test_a_batch_is_one_round_trip_of_several_statements(dsn: str) -> None:
    with counting(dsn) as (relayed, sent):
        session = await asyncpg.connect(relayed)
        await session.execute("CREATE TEMPORARY TABLE counted (number integer)")
        insert = await session.prepare("INSERT INTO counted VALUES ($1)")
        trips, statements = sent.trips, sent.statements
        await insert.executemany([(1,), (2,), (3,)])
        assert (sent.trips - trips, sent.statements - statements) == (1, 3)
        trips, statements = sent.trips, sent.statements
        await insert.fetch(4)
        await session.execute("DELETE FROM counted")
        assert (sent.trips - trips, sent.statements - statements) == (2, 2)
        await session.close()
