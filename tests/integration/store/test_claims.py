"""The claim function makes the decision of ``gateway.fencing.rules.decide``, under a lock, whatever runs beside it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.fencing.resource import escape
from gateway.fencing.rules import Decision, Equal, Fence, Presented, decide
from gateway.fencing.token import Token
from gateway.store import fences, intents
from gateway.store.database import Database, Transaction

WRITES = (UUID(int=1), UUID(int=2))
presented = st.builds(
    Presented,
    token=st.builds(Token, epoch=st.integers(0, 1), value=st.integers(0, 3)),
    holder=st.sampled_from([None, "ann", "bob"]),
    write_id=st.sampled_from(WRITES),
)


async def claim(database: Database, resource: str, shown: Presented, equal: Equal = Equal.ACCEPT) -> fences.Claimed:
    async def work(transaction: Transaction) -> fences.Claimed:
        (claimed,) = await fences.claim(transaction, [resource], shown, equal, "tester")
        return claimed

    return await database.run(work)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(presented, max_size=8), equal=st.sampled_from(Equal))
async def test_sql_and_python_decide_alike(database: Database, history: list[Presented], equal: Equal) -> None:
    resource = f"r/{uuid4()}"
    fence: Fence | None = None
    for shown in history:
        expected = decide(fence, shown, equal)
        claimed = await claim(database, resource, shown, equal)
        assert claimed.decision is expected
        if expected is Decision.RAISED:
            fence = Fence(resource, shown.token, shown.holder, "tester", datetime.now(UTC), shown.write_id)
        assert fence is not None
        assert replace(claimed.fence, raised_at=fence.raised_at) == fence


async def test_a_barrier_does_not_use_up_the_token_of_a_strict_resource(database: Database) -> None:
    token = Token(0, 7)
    assert (await intents.raise_fence(database, "r/1", Presented(token), "tester")).decision is Decision.RAISED
    first, second = (Presented(token, write_id=uuid4()) for _ in range(2))
    assert (await claim(database, "r/1", first, Equal.STRICT)).decision is Decision.HELD
    assert (await claim(database, "r/1", first, Equal.STRICT)).decision is Decision.HELD
    assert (await claim(database, "r/1", second, Equal.STRICT)).decision is Decision.USED


async def test_a_raise_waits_for_the_writes_of_the_holder_before(database: Database) -> None:
    """P2 for tables: the old holder's transaction is over before the new holder's claim returns."""
    order: list[str] = []
    claimed = asyncio.Event()

    async def old(transaction: Transaction) -> None:
        await fences.claim(transaction, ["r/1"], Presented(Token(0, 1)), Equal.ACCEPT, "old")
        claimed.set()
        await asyncio.sleep(0.3)
        order.append("old writes")

    async def new() -> None:
        await claimed.wait()
        await claim(database, "r/1", Presented(Token(0, 2)))
        order.append("new has claimed")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.run(old))
        tasks.create_task(new())
    assert order == ["old writes", "new has claimed"]


async def test_writers_of_one_holder_do_not_wait_for_each_other(database: Database) -> None:
    both = asyncio.Barrier(2)

    async def work(transaction: Transaction) -> None:
        await fences.claim(transaction, ["r/1"], Presented(Token(0, 1)), Equal.ACCEPT, "tester")
        async with asyncio.timeout(5):
            await both.wait()

    await claim(database, "r/1", Presented(Token(0, 1)))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.run(work))
        tasks.create_task(database.run(work))


async def test_many_writers_with_growing_tokens_neither_deadlock_nor_go_backwards(database: Database) -> None:
    resources = [f"r/{number}" for number in range(4)]
    accepted: list[int] = []

    async def write(value: int) -> None:
        async def work(transaction: Transaction) -> None:
            order = resources if value % 2 else resources[::-1]
            claims = await fences.claim(transaction, order, Presented(Token(0, value)), Equal.ACCEPT, "tester")
            if all(one.decision.passes for one in claims):
                # Under the locks: once they are free, the news of two commits may arrive in either order.
                accepted.append(value)

        await database.run(work)

    async with asyncio.TaskGroup() as tasks:
        for value in range(60):
            tasks.create_task(write(value))
    assert accepted == sorted(accepted)
    for resource in resources:
        fence = await fences.read(database, resource)
        assert fence is not None
        assert fence.token == Token(0, 59)


async def test_a_rolled_back_claim_leaves_no_trace(database: Database) -> None:
    async def work(transaction: Transaction) -> None:
        await fences.claim(transaction, ["r/1"], Presented(Token(0, 1)), Equal.ACCEPT, "tester")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.run(work)
    assert await fences.read(database, "r/1") is None


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
async def test_sql_and_python_escape_alike(database: Database, value: str) -> None:
    row = await database.fetchrow("SELECT fencing.escape_v1($1) AS escaped", value)
    assert row is not None
    assert (row["escaped"] or "") == escape(value)
