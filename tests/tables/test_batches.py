"""Writes that arrive together share trips, and raises of several holders a transaction.

That changes how often the database is asked, and nothing that a caller sees.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import repeat

import asyncpg
import httpx
import pytest

from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.observe.events import BatchBegun, Event, StepReached, WriteAccepted
from gateway.tables.dialect.body import Payload
from gateway.tables.execute import batches
from gateway.tables.execute.recipes import WriteRecipe
from tests.tables.asking import Send, answered, change, row, rows
from tests.waiting import PATIENCE, waiting

ACCOUNTS = 40

RETURNED = "return=representation"
BALANCES = "SELECT id - 100, balance FROM accounts WHERE id >= 100 ORDER BY id"

TAKEN_OVER = """
    SELECT resource, value, holder, caller, fence_value, fence_holder FROM fencing.intake WHERE kind = 'raised'
    UNION ALL
    SELECT resource, value, holder, caller, fence_value, fence_holder FROM fencing.entry WHERE kind = 'raised'
    ORDER BY resource, value
"""

FENCES = "SELECT resource, value, holder, caller FROM fencing.fence ORDER BY resource"


def name(number: int) -> str:
    return f"public.accounts/{number}"


def target(number: int) -> str:
    return f"/accounts?id=eq.{number}"


@pytest.fixture
async def held(tables: Database, write: Send) -> Database:
    """Accounts 100… with fences at token 5. The gateway has seen a fence rise, and so claims at once from now on."""
    await change(
        tables, f"INSERT INTO accounts (id, balance) SELECT id, 0 FROM generate_series(100, {100 + ACCOUNTS - 1}) AS id"
    )
    numbers = range(100, 100 + ACCOUNTS)
    await asyncio.gather(*(write("PATCH", target(n), {"balance": 5}, token=5, holder="old") for n in numbers))
    return tables


async def at_once(write: Send, bodies: Iterable[object], tokens: Iterable[int] = repeat(5)) -> list[httpx.Response]:
    """Write these bodies to the accounts 100…, all at one time."""
    return await asyncio.gather(
        *(
            write("PATCH", target(number), body, token=token)
            for number, (body, token) in enumerate(zip(bodies, tokens, strict=False), 100)
        )
    )


def patched(write: Send, number: int, balance: int, token: int = 5) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(write("PATCH", target(number), {"balance": balance}, token=token))


def counting(monkeypatch: pytest.MonkeyPatch, size: Callable[[Sequence[Sequence[object]]], int]) -> list[int]:
    """The sizes of shared round trips so far."""
    sizes: list[int] = []
    real = asyncpg.Connection.fetchmany

    async def counted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        sizes.append(size(arguments))
        return await real(session, sql, arguments)

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", counted)
    return sizes


def writes_of(values: Sequence[object]) -> int:
    return max([len(value) for value in values if isinstance(value, list)], default=1)


@pytest.fixture
def trips(held: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of writes in each shared round trip. A claim counts as one."""
    return counting(monkeypatch, lambda arguments: sum(map(writes_of, arguments)))


@pytest.fixture
def statements(held: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements in each shared round trip."""
    return counting(monkeypatch, len)


async def test_writes_that_arrive_together_share_trips(write: Send, held: Database, trips: list[int]) -> None:
    """Each gets its own row back."""
    answers = await asyncio.gather(
        *(
            write("PATCH", f"{target(100 + n)}&select=id,balance", {"balance": n}, token=5, prefer=RETURNED)
            for n in range(ACCOUNTS)
        )
    )
    for number, response in enumerate(answers):
        answered(response, 200)
        assert response.json() == [{"id": 100 + number, "balance": number}]
        assert response.headers["fencing-resource"] == name(100 + number)
    assert sum(trips) >= ACCOUNTS - 5, "the first goes alone, the rest in batches"
    assert len(trips) <= 5
    assert await rows(held, BALANCES) == [(n, n) for n in range(ACCOUNTS)]


async def test_the_next_writes_are_on_their_way_before_the_last_ones_are_answered(
    write: Send, held: Database, events: list[Event]
) -> None:
    events.clear()
    most = batches.MOST + batches.MOST // 2
    for answer in await asyncio.gather(*(patched(write, 100 + n % ACCOUNTS, n) for n in range(most))):
        answered(answer, 204)
    kinds = [type(event) for event in events if isinstance(event, BatchBegun | WriteAccepted)]
    assert kinds[:3] == [BatchBegun, BatchBegun, WriteAccepted]


async def test_writes_of_different_rows_are_one_statement(
    write: Send, held: Database, trips: list[int], statements: list[int]
) -> None:
    for response in await at_once(write, [{"balance": n, "note": None} for n in range(ACCOUNTS)]):
        answered(response, 204)
    for response in await at_once(write, [{"balance": 2 * n, "note": "two"} for n in range(ACCOUNTS)]):
        answered(response, 204)
    assert await rows(held, BALANCES) == [(n, 2 * n) for n in range(ACCOUNTS)]
    assert (trips[-1], statements[-1]) == (ACCOUNTS, 1)


async def test_takeovers_of_different_rows_are_one_statement_behind_their_claims(
    write: Send, held: Database, trips: list[int], statements: list[int]
) -> None:
    for answer in await take_over(write):
        answered(answer, 204)
    assert (trips, statements) == ([ACCOUNTS + 1], [2])


async def test_small_batches_are_not_planned_each_time(
    write: Send, held: Database, statements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: set[Session] = set()
    real = asyncpg.Connection.fetchmany

    async def noted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        sessions.add(session)
        return await real(session, sql, arguments)

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", noted)
    for balance in range(20):
        await at_once(write, [{"balance": balance}] * 2)
    planned = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE 'WITH gw_asked%'"
    found = [tuple(row) for session in sessions for row in await session.fetch(planned)]
    assert sum(map(sum, found)) >= 10, "they were sent together"
    assert all(custom <= 5 for custom, _ in found), found


async def test_writes_of_one_row_are_a_statement_each(
    write: Send, held: Database, trips: list[int], statements: list[int]
) -> None:
    """One statement would change a row once, and by any of them."""
    await at_once(write, [{"balance": 1}] * 2)
    del trips[:], statements[:]
    writes = [write("PATCH", target(100 + n % 5), {"balance": n}, token=5) for n in range(ACCOUNTS)]
    for answer in await asyncio.gather(*writes):
        answered(answer, 204)
    assert trips == statements == [ACCOUNTS]
    assert (await rows(held, BALANCES))[:5] == [(n, ACCOUNTS - 5 + n) for n in range(5)], "the last one wins"


async def test_a_row_that_is_not_there_is_touched_by_none(write: Send, held: Database, statements: list[int]) -> None:
    await change(held, "DELETE FROM accounts WHERE id = 101")
    writes = [write("PATCH", target(100 + n), {"balance": n}, token=5, prefer="count=exact") for n in range(ACCOUNTS)]
    await asyncio.gather(*(write("PATCH", target(100), {"balance": 5}, token=5, prefer="count=exact") for _ in "12"))
    del statements[:]
    answers = await asyncio.gather(*writes)
    assert [answer.headers["content-range"] for answer in answers] == ["0-0/1", "*/0", *["0-0/1"] * (ACCOUNTS - 2)]
    assert statements == [1]


async def test_lone_and_large_writes_go_by_themselves(write: Send, trips: list[int]) -> None:
    for number in range(3):
        answered(await write("PATCH", target(100 + number), {"balance": 1}, token=5), 204)
    answers = await at_once(write, [{"note": "x" * batches.LARGEST}] * ACCOUNTS)
    assert {response.status_code for response in answers} == {204}
    assert trips == []


async def test_one_that_fails_fails_alone(write: Send, held: Database, trips: list[int]) -> None:
    for number, response in enumerate(
        await at_once(write, [{"balance": None if n % 7 == 3 else n} for n in range(ACCOUNTS)])
    ):
        answered(response, 400, "23502") if number % 7 == 3 else answered(response, 204)
    assert trips
    assert await rows(held, BALANCES) == [(n, 5 if n % 7 == 3 else n) for n in range(ACCOUNTS)]


async def test_a_caller_that_goes_away_takes_nobody_with_it(write: Send, trips: list[int]) -> None:
    calls = [patched(write, 100 + n, 9) for n in range(ACCOUNTS)]
    await asyncio.sleep(0)
    for call in calls[::5]:
        call.cancel()
    for number, outcome in enumerate(await asyncio.gather(*calls, return_exceptions=True)):
        if number % 5:
            assert isinstance(outcome, httpx.Response)
            answered(outcome, 204)


async def test_a_locked_row_does_not_hold_up_the_others(
    write: Send, held: Database, stranger: asyncpg.Connection
) -> None:
    """The row's own batch waits with it. Later writes do not."""
    async with stranger.transaction():
        await stranger.execute("SELECT FROM accounts WHERE id = 100 FOR UPDATE")
        blocked = patched(write, 100, 1)
        await waiting(held)
        async with asyncio.timeout(PATIENCE):  # less than the lock_timeout
            answers = await asyncio.gather(*(patched(write, 100 + n, 2) for n in range(1, ACCOUNTS)))
        assert {response.status_code for response in answers} == {204}
        assert not blocked.done()
    answered(await blocked, 204)


@pytest.mark.thorough
class TestLockTimeout:
    @pytest.fixture
    async def database(self, dsn: str) -> AsyncIterator[Database]:
        async with Database(dsn, lock_timeout=0.5, connect_timeout=PATIENCE) as opened:
            yield opened

    async def test_who_waits_for_a_lock_in_vain_fails_alone(
        self, write: Send, trips: list[int], stranger: asyncpg.Connection
    ) -> None:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM accounts WHERE id = 105 FOR UPDATE")
            answers = await at_once(write, [{"balance": 3}] * ACCOUNTS)
        assert [n for n, response in enumerate(answers) if response.status_code != 204] == [5]
        answered(answers[5], 503, "unavailable")
        assert trips


async def test_a_fence_being_raised_does_not_hold_up_the_others(
    write: Send, held: Database, stranger: asyncpg.Connection
) -> None:
    async with stranger.transaction():
        await stranger.execute(f"UPDATE fencing.fence SET value = 6 WHERE resource = '{name(100)}'")
        calls = [patched(write, 100 + n, 2) for n in range(ACCOUNTS)]
        async with asyncio.timeout(PATIENCE):  # less than the lock_timeout
            answers = await asyncio.gather(*calls[1:])
        assert {response.status_code for response in answers} == {204}
        assert not calls[0].done(), "its fence is being raised: it must wait for the outcome"
    answered(await calls[0], 412, "token-stale")


async def test_a_lost_connection_leaves_everybody_in_doubt(
    write: Send, held: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lose(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", lose)
    codes = Counter(response.status_code for response in await at_once(write, [{"balance": 1}] * ACCOUNTS))
    assert codes[503] >= ACCOUNTS - 5
    assert set(codes) <= {503, 204}


async def test_a_batch_fits_into_the_buffer_of_a_socket(write: Send, trips: list[int]) -> None:
    note = "x" * (batches.LARGEST * 3 // 4)
    answers = await asyncio.gather(
        *(write("PATCH", target(100 + n % ACCOUNTS), {"note": note}, token=5) for n in range(3 * ACCOUNTS))
    )
    assert {response.status_code for response in answers} == {204}
    assert trips
    assert max(trips) * len(note) <= batches.ROOM


async def test_a_locked_row_does_not_hold_up_writes_of_another_shape(
    write: Send, held: Database, stranger: asyncpg.Connection
) -> None:
    async with asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute("UPDATE accounts SET note = 'locked' WHERE id BETWEEN 100 AND 109")
        stuck = [tasks.create_task(write("PATCH", target(100 + n), {"note": "x"}, token=5)) for n in range(10)]
        await waiting(held, 1)
        # Together: one after the other they take longer than the others may wait, on a very busy machine.
        for response in await asyncio.gather(*(patched(write, number, 1) for number in range(120, 130))):
            answered(response, 204)
        assert not any(call.done() for call in stuck)
    for call in stuck:
        answered(call.result(), 204)


async def take_over(
    write: Send, token: int = 6, balances: Sequence[int | None] = range(ACCOUNTS)
) -> list[httpx.Response]:
    return await asyncio.gather(
        *(
            write("PATCH", target(100 + number), {"balance": balance}, token=token, holder=f"new {number}")
            for number, balance in enumerate(balances)
        )
    )


async def test_takeovers_that_arrive_together_share_a_round_trip(
    write: Send, held: Database, trips: list[int], events: list[Event]
) -> None:
    events.clear()
    for answer in await take_over(write):
        answered(answer, 204)
    assert trips == [ACCOUNTS + 1], "one claim for all"
    assert not [one for one in events if isinstance(one, StepReached) and one.name == "tables.claim.after"]
    numbers = range(ACCOUNTS)
    assert await rows(held, BALANCES) == [(n, n) for n in numbers]
    assert await rows(held, FENCES) == [(name(100 + n), 6, f"new {n}", "tester") for n in numbers]
    assert await rows(held, TAKEN_OVER) == [(name(100 + n), 6, f"new {n}", "tester", 5, "old") for n in numbers]


async def test_writes_of_one_new_holder_raise_its_fence_once(write: Send, held: Database, trips: list[int]) -> None:
    writes = [write("PATCH", target(100), {"balance": balance}, token=6, holder="new") for balance in (6, 7, 8)]
    for answer in await asyncio.gather(*writes):
        answered(answer, 204)
    assert trips[0] == len(writes) + 1
    assert await rows(held, TAKEN_OVER) == [(name(100), 6, "new", "tester", 5, "old")]


async def test_new_resources_share_a_round_trip(
    write: Send, held: Database, trips: list[int], statements: list[int]
) -> None:
    for numbers in (range(200, 201), range(300, 300 + ACCOUNTS), range(400, 400 + ACCOUNTS)):
        bodies = [{"id": number, "balance": number} for number in numbers]
        for answer in await asyncio.gather(*(write("POST", "/accounts", body, token=1) for body in bodies)):
            answered(answer, 201)
    # The first is tried without a claim, and the second batch finds out what the first one has learnt.
    assert (trips[-1], statements[-1]) == (ACCOUNTS + 1, 2)
    found = await rows(held, "SELECT resource, value FROM fencing.fence WHERE value = 1 ORDER BY resource")
    assert len(found) == 2 * ACCOUNTS + 1
    assert await rows(held, TAKEN_OVER) == [], "nobody is overtaken"


async def test_new_rows_with_the_names_of_each_other_are_refused_alone(
    write: Send, held: Database, statements: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, the gateway takes two bodies for those of the other resource. Both fences carry the token."""
    numbers = range(200, 210)

    async def inserted() -> list[httpx.Response]:
        await change(held, "DELETE FROM accounts WHERE id >= 200")
        return await asyncio.gather(*(write("POST", "/accounts", {"id": n, "balance": n}, token=1) for n in numbers))

    for _ in range(2):
        for answer in await inserted():
            answered(answer, 201)
    real, swapped = WriteRecipe.resource, {name(203): name(206), name(206): name(203)}

    def misread(recipe: WriteRecipe, values: Sequence[str], payload: Payload | None) -> str | None:
        found = real(recipe, values, payload)
        return swapped.get(found or "", found)

    monkeypatch.setattr(WriteRecipe, "resource", misread)
    del statements[:]
    for number, answer in zip(numbers, await inserted(), strict=True):
        answered(answer, 422, "resource-mismatch") if number in (203, 206) else answered(answer, 201)
    assert statements == [1]
    found = await rows(held, "SELECT id FROM accounts WHERE id >= 200 ORDER BY id")
    assert found == [(number,) for number in numbers if number not in (203, 206)]


async def test_a_new_row_whose_name_is_stored_in_another_way_is_refused_alone(
    write: Send, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Before the catalog is read for the first time. It is not read twice in a second.
    await change(tables, "CREATE TABLE codes (code varchar(3), place int, PRIMARY KEY (code, place))")
    statements = counting(monkeypatch, len)
    for first in (10, 20, 30):
        codes = [("abc", first), ("abc ", first + 1), ("def", first + 2)]
        answers = await asyncio.gather(
            *(write("POST", "/codes", {"code": code, "place": place}, token=1) for code, place in codes)
        )
        answered(answers[0], 201)
        answered(answers[1], 422, "resource-mismatch")
        answered(answers[2], 201)
    assert statements[-1] == 2, "a claim, and one statement for all"
    found = await rows(tables, "SELECT code, place FROM codes ORDER BY place")
    assert found == [(code, first + place) for first in (10, 20, 30) for code, place in (("abc", 0), ("def", 2))]


async def test_one_that_fails_undoes_its_own_raise_only(write: Send, held: Database, trips: list[int]) -> None:
    wanted = [None if number % 7 == 3 else number for number in range(ACCOUNTS)]
    for balance, answer in zip(wanted, await take_over(write, balances=wanted), strict=True):
        answered(answer, 400, "23502") if balance is None else answered(answer, 204)
    assert trips == [ACCOUNTS + 1]
    raised = [(name(100 + number), 5 if balance is None else 6) for number, balance in enumerate(wanted)]
    assert await rows(held, "SELECT resource, value FROM fencing.fence ORDER BY resource") == raised
    taken_over = [(one[0], one[1]) for one in await rows(held, TAKEN_OVER)]
    assert taken_over == [(resource, 6) for resource, value in raised if value == 6]


async def test_stale_and_duplicate_tokens_among_them_are_refused_and_on_record(
    write: Send, held: Database, trips: list[int]
) -> None:
    shown = [(4, "zombie"), (5, "twin"), (6, "new")]
    answers = await asyncio.gather(
        *(
            write("PATCH", target(100 + number), {"balance": 7}, token=token, holder=holder)
            for number, (token, holder) in enumerate(shown)
        )
    )
    answered(answers[0], 412, "token-stale")
    answered(answers[1], 412, "token-duplicate")
    answered(answers[2], 204)
    # The twin's fence is known to carry its token. So it is sent without a claim first.
    assert trips == [3, 2]
    assert await rows(held, "SELECT id FROM accounts WHERE balance = 7") == [(102,)]
    refused = "SELECT resource, reason, holder FROM fencing.rejection ORDER BY resource"
    assert await rows(held, refused) == [
        (name(100), "token-stale", "zombie"),
        (name(101), "token-duplicate", "twin"),
    ]


async def test_the_successor_sees_the_row_that_its_predecessor_has_just_written(
    write: Send, held: Database, stranger: asyncpg.Connection, trips: list[int]
) -> None:
    """With the raise and the write in one statement, the successor's snapshot would be older than that row."""
    async with stranger.transaction():
        await stranger.execute("SELECT FROM fencing.fence WHERE resource = $1 FOR SHARE", name(100))
        await stranger.execute("DELETE FROM accounts WHERE id = 100")
        await stranger.execute("INSERT INTO accounts (id, balance, note) VALUES (100, 5, 'just written')")
        new = asyncio.create_task(write("PATCH", target(100), {"balance": 6}, token=6, prefer=RETURNED))
        # A statement with the column list of the answer is new. Its first try finds the fence lower.
        await waiting(held, 1)
    answered(await new, 200)
    assert [(one["balance"], one["note"]) for one in new.result().json()] == [(6, "just written")]


async def test_one_whose_predecessor_is_writing_goes_on_alone(
    write: Send, held: Database, stranger: asyncpg.Connection, trips: list[int], events: list[Event]
) -> None:
    events.clear()
    async with stranger.transaction():
        await stranger.execute("SELECT FROM fencing.fence WHERE resource = $1 FOR SHARE", name(100))
        writes = [
            asyncio.create_task(write("PATCH", target(number), {"balance": 6}, token=6)) for number in (100, 101, 102)
        ]
        await asyncio.gather(*writes[1:])
        await waiting(held, 1)
        assert not writes[0].done()
    for one in writes:
        answered(await one, 204)
    assert trips == [4]
    assert [one.name for one in events if isinstance(one, StepReached)].count("tables.claim.after") == 1


async def test_no_raise_is_acknowledged_while_an_older_object_write_is_pending(
    write: Send, held: Database, trips: list[int]
) -> None:
    await change(
        held,
        "INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt) "
        f"VALUES ('{name(100)}', 'b', 'k', gen_random_uuid(), 0, 5, 1)",
    )
    pending, other = await asyncio.gather(
        *(write("PATCH", target(number), {"balance": 6}, token=6) for number in (100, 101))
    )
    answered(pending, 503)
    answered(other, 204)
    assert trips == [3]
    assert (await row(held, "SELECT balance FROM accounts WHERE id = 100"))["balance"] == 5


async def test_a_token_of_a_jump_too_far_raises_nothing(write: Send, held: Database, trips: list[int]) -> None:
    far, near = await asyncio.gather(
        *(write("PATCH", target(number), {"balance": 6}, token=token) for number, token in ((100, 2**60), (101, 6)))
    )
    answered(far, 403, "token-implausible")
    answered(near, 204)
    assert await rows(held, f"SELECT value FROM fencing.fence WHERE resource = '{name(100)}'") == [(5,)]


async def test_writes_of_one_holder_share_trips_without_claims_again(
    write: Send, trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in await take_over(write):
        answered(answer, 204)
    claimed: list[int] = []
    real = batches.Batches.send

    def counted(sender: batches.Batches, asked: batches.Asked) -> object:
        if asked.claimed:
            claimed.append(1)
        return real(sender, asked)

    monkeypatch.setattr(batches.Batches, "send", counted)
    for _ in range(2):
        for answer in await take_over(write):
            answered(answer, 204)
    assert not claimed
