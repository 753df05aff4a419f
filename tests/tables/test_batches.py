"""Batching changes how often the database is asked, and nothing that a caller sees."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import asyncpg
import httpx
import pytest

from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.tables.execute import batches
from tests.tables.asking import Send, answered, row, rows
from tests.waiting import PATIENCE, waiting

ACCOUNTS = 40


@pytest.fixture
async def held(tables: Database, write: Send) -> Database:
    """Accounts 100… whose fences carry token 5 already, so that writes with it take the fast path."""
    await tables.run(
        lambda transaction: transaction.execute(
            f"INSERT INTO accounts (id, balance) SELECT id, 0 FROM generate_series(100, {100 + ACCOUNTS - 1}) AS id"
        )
    )
    await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"note": "x"}, token=5) for n in range(ACCOUNTS))
    )
    return tables


class Trips:
    """Counts the batches, and how many writes went in them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        real = asyncpg.Connection.fetchmany

        async def counted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
            self.sizes.append(len(arguments))
            return await real(session, sql, arguments)

        monkeypatch.setattr(asyncpg.Connection, "fetchmany", counted)


@pytest.fixture
def trips(held: Database, monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


async def test_writes_that_arrive_together_share_trips(write: Send, held: Database, trips: Trips) -> None:
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": n}, token=5) for n in range(ACCOUNTS))
    )
    for number, response in enumerate(answers):
        answered(response, 204)
        assert response.headers["fencing-resource"] == f"public.accounts/{100 + number}"
    assert sum(trips.sizes) >= ACCOUNTS - 5, "the first goes alone, the rest in batches"
    assert len(trips.sizes) <= 5
    assert await rows(held, "SELECT id - 100, balance FROM accounts WHERE id >= 100 ORDER BY id") == [
        (n, n) for n in range(ACCOUNTS)
    ]


async def test_a_lone_write_goes_at_once_by_itself(write: Send, held: Database, trips: Trips) -> None:
    for number in range(3):
        answered(await write("PATCH", f"/accounts?id=eq.{100 + number}", {"balance": 1}, token=5), 204)
    assert trips.sizes == []


@pytest.mark.thorough
async def test_each_gets_its_own_rows_back(write: Send, held: Database, trips: Trips) -> None:
    answers = await asyncio.gather(
        *(
            write(
                "PATCH",
                f"/accounts?id=eq.{100 + n}&select=id,balance",
                {"balance": n},
                token=5,
                prefer="return=representation",
            )
            for n in range(ACCOUNTS)
        )
    )
    assert [response.json() for response in answers] == [[{"id": 100 + n, "balance": n}] for n in range(ACCOUNTS)]
    assert trips.sizes


async def test_one_that_fails_fails_alone(write: Send, held: Database, trips: Trips) -> None:
    bodies = [{"balance": None if n % 7 == 3 else n} for n in range(ACCOUNTS)]
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", body, token=5) for n, body in enumerate(bodies))
    )
    for number, response in enumerate(answers):
        if number % 7 == 3:
            answered(response, 400, "23502")
        else:
            answered(response, 204)
    assert trips.sizes
    assert await rows(held, "SELECT id - 100, balance FROM accounts WHERE id >= 100 ORDER BY id") == [
        (n, 0 if n % 7 == 3 else n) for n in range(ACCOUNTS)
    ]


async def test_zombies_among_them_are_refused_and_on_record(write: Send, held: Database, trips: Trips) -> None:
    tokens = [4 if n % 3 == 0 else 5 for n in range(ACCOUNTS)]
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 7}, token=token) for n, token in enumerate(tokens))
    )
    for token, response in zip(tokens, answers, strict=True):
        if token == 4:
            answered(response, 412, "token-stale")
        else:
            answered(response, 204)
    assert trips.sizes
    written = await rows(held, "SELECT id - 100 FROM accounts WHERE balance = 7 ORDER BY id")
    assert [number for (number,) in written] == [n for n, token in enumerate(tokens) if token == 5]
    recorded = await rows(held, "SELECT resource FROM fencing.rejection")
    assert Counter(name for (name,) in recorded) == Counter(
        f"public.accounts/{100 + n}" for n, token in enumerate(tokens) if token == 4
    )


async def test_many_writes_to_one_row_all_count(write: Send, held: Database, trips: Trips) -> None:
    answers = await asyncio.gather(
        *(write("PATCH", "/accounts?id=eq.100", {"balance": n}, token=5) for n in range(ACCOUNTS))
    )
    assert {response.status_code for response in answers} == {204}
    assert (await row(held, "SELECT balance FROM accounts WHERE id = 100"))["balance"] in range(ACCOUNTS)


async def test_a_caller_that_goes_away_takes_nobody_with_it(write: Send, held: Database, trips: Trips) -> None:
    calls = [
        asyncio.create_task(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 9}, token=5))
        for n in range(ACCOUNTS)
    ]
    await asyncio.sleep(0)
    for call in calls[::5]:
        call.cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    for number, outcome in enumerate(done):
        if number % 5:
            assert isinstance(outcome, httpx.Response)
            answered(outcome, 204)


async def test_a_locked_row_does_not_hold_up_the_others(write: Send, held: Database, dsn: str) -> None:
    """The row's own batch waits with it. Later writes do not."""
    locker = await asyncpg.connect(dsn)
    async with locker.transaction():
        await locker.execute("SELECT FROM accounts WHERE id = 100 FOR UPDATE")
        blocked = asyncio.create_task(write("PATCH", "/accounts?id=eq.100", {"balance": 1}, token=5))
        await waiting(held)
        async with asyncio.timeout(PATIENCE):  # less than the lock_timeout
            answers = await asyncio.gather(
                *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 2}, token=5) for n in range(1, ACCOUNTS))
            )
        assert {response.status_code for response in answers} == {204}
        assert not blocked.done()
    answered(await blocked, 204)
    await locker.close()


@pytest.mark.thorough
class TestLockTimeout:
    @pytest.fixture
    async def database(self, dsn: str) -> AsyncIterator[Database]:
        opened = Database(dsn, lock_timeout=0.5, connect_timeout=PATIENCE)
        yield opened
        await opened.close()

    async def test_who_waits_for_a_lock_in_vain_fails_alone(
        self, write: Send, held: Database, trips: Trips, dsn: str
    ) -> None:
        locker = await asyncpg.connect(dsn)
        async with locker.transaction():
            await locker.execute("SELECT FROM accounts WHERE id = 105 FOR UPDATE")
            answers = await asyncio.gather(
                *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 3}, token=5) for n in range(ACCOUNTS))
            )
        await locker.close()
        assert [n for n, response in enumerate(answers) if response.status_code != 204] == [5]
        answered(answers[5], 503, "unavailable")
        assert trips.sizes


async def test_a_fence_being_raised_does_not_hold_up_the_others(write: Send, held: Database, dsn: str) -> None:
    raiser = await asyncpg.connect(dsn)
    async with raiser.transaction():
        await raiser.execute("UPDATE fencing.fence SET value = 6 WHERE resource = 'public.accounts/100'")
        calls = [
            asyncio.create_task(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 2}, token=5))
            for n in range(ACCOUNTS)
        ]
        async with asyncio.timeout(PATIENCE):  # less than the lock_timeout
            answers = await asyncio.gather(*calls[1:])
        assert {response.status_code for response in answers} == {204}
        assert not calls[0].done(), "its fence is being raised: it must wait for the outcome"
    answered(await calls[0], 412, "token-stale")
    await raiser.close()


async def test_a_lost_connection_leaves_everybody_in_doubt(
    write: Send, held: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", lose)
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"balance": 1}, token=5) for n in range(ACCOUNTS))
    )
    codes = Counter(response.status_code for response in answers)
    assert codes[503] >= ACCOUNTS - 5
    assert set(codes) <= {503, 204}


async def test_a_batch_fits_into_the_buffer_of_a_socket(write: Send, held: Database, trips: Trips) -> None:
    note = "x" * (batches.LARGEST * 3 // 4)
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n % ACCOUNTS}", {"note": note}, token=5) for n in range(3 * ACCOUNTS))
    )
    assert {response.status_code for response in answers} == {204}
    assert trips.sizes
    assert max(trips.sizes) * len(note) <= batches.ROOM


async def test_a_locked_row_does_not_hold_up_writes_of_another_shape(
    write: Send, held: Database, stranger: asyncpg.Connection
) -> None:
    async with asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute("UPDATE accounts SET note = 'locked' WHERE id BETWEEN 100 AND 109")
        stuck = [
            tasks.create_task(write("PATCH", f"/accounts?id=eq.{100 + n}", {"note": "x"}, token=5)) for n in range(10)
        ]
        await waiting(held, 1)
        for number in range(20, 30):
            answered(await write("PATCH", f"/accounts?id=eq.{100 + number}", {"balance": 1}, token=5), 204)
        assert not any(call.done() for call in stuck)
    for call in stuck:
        answered(call.result(), 204)


async def test_large_writes_go_by_themselves(write: Send, held: Database, trips: Trips) -> None:
    note = "x" * batches.LARGEST
    answers = await asyncio.gather(
        *(write("PATCH", f"/accounts?id=eq.{100 + n}", {"note": note}, token=5) for n in range(ACCOUNTS))
    )
    assert {response.status_code for response in answers} == {204}
    assert trips.sizes == []


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
async def test_random_histories_end_alike_with_and_without_batches(
    write: Send, held: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each account gets its own sequence of writes; what is answered and what is left must not depend on batching."""

    async def play(offset: int) -> tuple[list[list[int]], list[tuple[int, str | None]]]:
        chance = random.Random(seed)
        plans = [[(chance.choice([4, 5, 5, 6]), chance.choice([1, 2, None])) for _ in range(6)] for _ in range(15)]

        async def account(number: int) -> list[int]:
            statuses = []
            for token, balance in plans[number]:
                response = await write("PATCH", f"/accounts?id=eq.{offset + number}", {"balance": balance}, token=token)
                statuses.append(response.status_code)
            return statuses

        answers = await asyncio.gather(*(account(number) for number in range(len(plans))))
        left = await rows(
            held, f"SELECT balance, note FROM accounts WHERE id >= {offset} AND id < {offset + 15} ORDER BY id"
        )
        return list(answers), [(balance, note) for balance, note in left]

    batched = await play(100)
    monkeypatch.setattr(batches, "LARGEST", -1)
    assert await play(120) == batched
