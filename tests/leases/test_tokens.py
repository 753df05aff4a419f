"""Tokens of a lock only ever grow: past other issuers, up to the end of numbers, and over the loss of the database."""

import asyncio

import asyncpg
import pytest

from gateway.errors import LockHeld, TokensExhausted
from gateway.fencing.lease import Lease
from gateway.fencing.token import MAX_VALUE, Token
from tests.leases.stage import Gateway, gateway, recorded, rows

pytestmark = pytest.mark.asyncio(loop_scope="module")

Pair = tuple[Gateway, Gateway]


async def all_at_once(dsn: str, gateways: list[Gateway], resource: str) -> list[Lease]:
    """Return leases of as many locks.

    All gateways ask while another session has found the new life of the database but has not committed yet.
    """
    somebody = await asyncpg.connect(dsn)
    try:
        async with asyncio.TaskGroup() as tasks, somebody.transaction():
            await somebody.execute("SELECT fencing.issuer_epoch_v1()")
            asked = [
                tasks.create_task(one.acquire(f"{resource}/{number}", "ann")) for number, one in enumerate(gateways)
            ]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in asked)
        return [task.result() for task in asked]
    finally:
        await somebody.close()


async def raise_fence(one: Gateway, resource: str, token: Token) -> None:
    await rows(
        one,
        "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, $2, $3) "
        "ON CONFLICT (resource) DO UPDATE SET epoch = excluded.epoch, value = excluded.value",
        resource,
        token.epoch,
        token.value,
    )


@pytest.mark.parametrize(
    ("fence", "issued"),
    [
        (Token(0, 0), Token(0, 2)),
        (Token(0, 1), Token(0, 2)),
        (Token(0, 700), Token(0, 701)),
        (Token(3, 0), Token(3, 1)),
        (Token(3, 5), Token(3, 6)),
        (Token(1, MAX_VALUE - 1), Token(1, MAX_VALUE)),
    ],
    ids=str,
)
async def test_no_token_is_one_that_the_fence_refuses(pair: Pair, job: str, fence: Token, issued: Token) -> None:
    await pair[0].release(await pair[0].acquire(job, "ann"))
    await raise_fence(pair[0], job, fence)
    lease = await pair[1].acquire(job, "bob")
    assert lease.token == issued
    assert (await pair[0].service.inspect(job)).token == issued


async def test_tokens_end_and_go_on_in_the_next_epoch(pair: Pair, job: str) -> None:
    await raise_fence(pair[0], job, Token(0, MAX_VALUE - 1))
    lease = await pair[0].acquire(job, "ann")
    assert lease.token == Token(0, MAX_VALUE)
    with pytest.raises(LockHeld):
        await pair[0].acquire(job, "bob")
    waiting = await pair[1].waits(job, "bob")
    assert (await pair[1].acquire(job, "ann")).token == lease.token, "who has it keeps it"
    await pair[0].release(lease)
    for _ in range(2):
        with pytest.raises(TokensExhausted):
            await pair[0].acquire(job, "cid")
    assert not waiting.done()
    await raise_fence(pair[0], job, Token(1, 0))
    assert (await waiting).token == Token(1, 1)


@pytest.mark.thorough
async def test_a_waiter_learns_that_tokens_have_ended(pair: Pair, job: str) -> None:
    lease = await pair[0].acquire(job, "ann")
    waiting = await pair[1].waits(job, "bob", wait=3.0)
    await raise_fence(pair[0], job, Token(0, MAX_VALUE))
    await pair[0].release(lease)
    with pytest.raises(TokensExhausted):
        await waiting


@pytest.mark.parametrize("column", ["system_identifier", "timeline"])
async def test_another_life_of_the_database_is_a_new_epoch_once(dsn: str, job: str, column: str) -> None:
    async with gateway(dsn) as first, gateway(dsn) as second:
        held = await first.acquire(f"{job}/held", "ann")
        old = await first.acquire(f"{job}/0", "ann")
        await first.release(old)
        await rows(first, f"UPDATE fencing.issuer SET {column} = 'another'")
        leases = await all_at_once(dsn, [(first, second)[number % 2] for number in range(24)], job)
        assert {lease.token for lease in leases} == {Token(1, 1)}
        (event,) = await recorded(first, "epoch", None)
        assert event["epoch"] == 1
        assert '"another"' in event["details"]
        assert (await first.renew(held)).token == Token(0, 1)
        await first.release(leases[0])
        assert (await first.acquire(f"{job}/0", "ann")).token == Token(1, 2)


async def test_who_joins_after_a_new_epoch_gets_a_token_of_it(dsn: str, job: str) -> None:
    async with gateway(dsn) as one:
        await one.acquire(job, "r1", mode="shared")
        await rows(one, "UPDATE fencing.issuer SET timeline = 'another'")
        assert (await one.acquire(job, "r2", mode="shared")).token == Token(1, 1)
        assert (await one.acquire(job, "r3", mode="shared")).token == Token(1, 1)


async def test_nothing_a_holder_can_do_takes_tokens_back(pair: Pair, job: str) -> None:
    seen = []
    for number in range(5):
        lease = await pair[number % 2].acquire(job, "ann", request="r")
        seen.append(lease.token)
        if number % 2:
            await pair[0].service.withdraw(job, "ann", "writer", "r")
        else:
            await pair[0].service.break_lock(job, lease.token, "operator", "a test")
    assert seen == [Token(0, value) for value in range(1, 6)]
