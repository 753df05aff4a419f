"""Raises of several holders share a transaction. Each is claimed, written and recorded as if it were alone."""

import asyncio
from collections.abc import Sequence

import asyncpg
import httpx
import pytest

from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.observe.events import Event, StepReached
from gateway.tables.execute import batches
from tests.tables.asking import Send, answered, row, rows
from tests.waiting import waiting

ACCOUNTS = 20
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
async def accounts(tables: Database, write: Send) -> Database:
    """Accounts 100… with fences at token 5. The gateway has seen a fence rise, and so claims at once from now on."""
    await tables.run(
        lambda transaction: transaction.execute(
            f"INSERT INTO accounts (id, balance) SELECT id, 0 FROM generate_series(100, {100 + ACCOUNTS - 1}) AS id"
        )
    )
    for number in range(100, 100 + ACCOUNTS):
        answered(await write("PATCH", target(number), {"balance": 5}, token=5, holder="old"), 204)
    return tables


@pytest.fixture
def trips(accounts: Database, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of statements in each shared round trip."""
    sizes: list[int] = []
    real = asyncpg.Connection.fetchmany

    async def counted(session: Session, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        sizes.append(len(arguments))
        return await real(session, sql, arguments)

    monkeypatch.setattr(asyncpg.Connection, "fetchmany", counted)
    return sizes


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
    write: Send, accounts: Database, trips: list[int], events: list[Event]
) -> None:
    events.clear()
    for answer in await take_over(write):
        answered(answer, 204)
    assert trips == [ACCOUNTS + 1], "one claim for all"
    assert not [one for one in events if isinstance(one, StepReached) and one.name == "tables.claim.after"]
    numbers = range(ACCOUNTS)
    assert await rows(accounts, "SELECT balance FROM accounts WHERE id >= 100 ORDER BY id") == [(n,) for n in numbers]
    assert await rows(accounts, FENCES) == [(name(100 + n), 6, f"new {n}", "tester") for n in numbers]
    assert await rows(accounts, TAKEN_OVER) == [(name(100 + n), 6, f"new {n}", "tester", 5, "old") for n in numbers]


async def test_writes_of_one_new_holder_raise_its_fence_once(write: Send, accounts: Database, trips: list[int]) -> None:
    writes = [write("PATCH", target(100), {"balance": balance}, token=6, holder="new") for balance in (6, 7, 8)]
    for answer in await asyncio.gather(*writes):
        answered(answer, 204)
    assert trips[0] == len(writes) + 1
    assert await rows(accounts, TAKEN_OVER) == [(name(100), 6, "new", "tester", 5, "old")]


async def test_new_resources_share_a_round_trip(write: Send, accounts: Database, trips: list[int]) -> None:
    for numbers in (range(200, 201), range(300, 300 + ACCOUNTS), range(400, 400 + ACCOUNTS)):
        bodies = [{"id": number, "balance": number} for number in numbers]
        for answer in await asyncio.gather(*(write("POST", "/accounts", body, token=1) for body in bodies)):
            answered(answer, 201)
    # The first is tried without a claim, and the second batch finds out what the first one has learnt.
    assert trips[-1] == ACCOUNTS + 1
    found = await rows(accounts, "SELECT resource, value FROM fencing.fence WHERE value = 1 ORDER BY resource")
    assert len(found) == 2 * ACCOUNTS + 1
    assert await rows(accounts, TAKEN_OVER) == [], "nobody is overtaken"


async def test_one_that_fails_undoes_its_own_raise_only(write: Send, accounts: Database, trips: list[int]) -> None:
    wanted = [None if number % 7 == 3 else number for number in range(ACCOUNTS)]
    for balance, answer in zip(wanted, await take_over(write, balances=wanted), strict=True):
        answered(answer, 400, "23502") if balance is None else answered(answer, 204)
    assert trips == [ACCOUNTS + 1]
    raised = [(name(100 + number), 5 if balance is None else 6) for number, balance in enumerate(wanted)]
    assert await rows(accounts, "SELECT resource, value FROM fencing.fence ORDER BY resource") == raised
    taken_over = [(one[0], one[1]) for one in await rows(accounts, TAKEN_OVER)]
    assert taken_over == [(resource, 6) for resource, value in raised if value == 6]


async def test_stale_and_duplicate_tokens_among_them_are_refused_and_on_record(
    write: Send, accounts: Database, trips: list[int]
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
    assert await rows(accounts, "SELECT id FROM accounts WHERE balance = 7") == [(102,)]
    refused = "SELECT resource, reason, holder FROM fencing.rejection ORDER BY resource"
    assert await rows(accounts, refused) == [
        (name(100), "token-stale", "zombie"),
        (name(101), "token-duplicate", "twin"),
    ]


async def test_the_successor_sees_what_its_predecessor_has_just_written(
    write: Send, accounts: Database, stranger: asyncpg.Connection, trips: list[int]
) -> None:
    """With the raise and the write in one statement, the successor's snapshot would be older than that row."""
    async with stranger.transaction():
        await stranger.execute("SELECT FROM fencing.fence WHERE resource = $1 FOR SHARE", name(100))
        await stranger.execute("DELETE FROM accounts WHERE id = 100")
        await stranger.execute("INSERT INTO accounts (id, balance, note) VALUES (100, 5, 'just written')")
        new = asyncio.create_task(write("PATCH", target(100), {"balance": 6}, token=6, prefer="return=representation"))
        # A statement with the column list of the answer is new. Its first try finds the fence lower.
        await waiting(accounts, 1)
    answered(await new, 200)
    assert [(one["balance"], one["note"]) for one in new.result().json()] == [(6, "just written")]


async def test_one_whose_predecessor_is_writing_goes_on_alone(
    write: Send, accounts: Database, stranger: asyncpg.Connection, trips: list[int], events: list[Event]
) -> None:
    events.clear()
    async with stranger.transaction():
        await stranger.execute("SELECT FROM fencing.fence WHERE resource = $1 FOR SHARE", name(100))
        writes = [
            asyncio.create_task(write("PATCH", target(number), {"balance": 6}, token=6)) for number in (100, 101, 102)
        ]
        await asyncio.gather(*writes[1:])
        await waiting(accounts, 1)
        assert not writes[0].done()
    for one in writes:
        answered(await one, 204)
    assert trips == [4]
    assert [one.name for one in events if isinstance(one, StepReached)].count("tables.claim.after") == 1


async def test_no_raise_is_acknowledged_while_an_older_object_write_is_pending(
    write: Send, accounts: Database, trips: list[int]
) -> None:
    await accounts.run(
        lambda transaction: transaction.execute(
            "INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt) "
            f"VALUES ('{name(100)}', 'b', 'k', gen_random_uuid(), 0, 5, 1)"
        )
    )
    pending, other = await asyncio.gather(
        *(write("PATCH", target(number), {"balance": 6}, token=6) for number in (100, 101))
    )
    answered(pending, 503)
    answered(other, 204)
    assert trips == [3]
    assert (await row(accounts, "SELECT balance FROM accounts WHERE id = 100"))["balance"] == 5


async def test_a_token_of_a_jump_too_far_raises_nothing(write: Send, accounts: Database, trips: list[int]) -> None:
    far, near = await asyncio.gather(
        *(write("PATCH", target(number), {"balance": 6}, token=token) for number, token in ((100, 2**60), (101, 6)))
    )
    answered(far, 403, "token-implausible")
    answered(near, 204)
    assert await rows(accounts, f"SELECT value FROM fencing.fence WHERE resource = '{name(100)}'") == [(5,)]


async def test_writes_of_one_holder_share_trips_without_claims_again(
    write: Send, accounts: Database, trips: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in await take_over(write):
        answered(answer, 204)
    claimed: list[int] = []
    real = batches.Raises.send

    def counted(*arguments: object) -> object:
        claimed.append(1)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(batches.Raises, "send", counted)
    for _ in range(2):
        for answer in await take_over(write):
            answered(answer, 204)
    assert not claimed
