"""The lease service over two gateways: one holder at a time, sharing, tokens that only grow, and leases that lapse."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from gateway.db.database import Database
from gateway.errors import ExpectedMismatch, GatewayError, LeaseLost, LockHeld, TokensExhausted
from gateway.fencing.lease import Lease, LockMode, Renewal
from gateway.fencing.token import MAX_VALUE, Token
from tests.leases.stage import DEAF_TO_TIME, Gateway, Pair, gateway, gone, pass_time, recorded, rows
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("wait", [0.0, 60.0], ids=["by trying", "by waiting"])
async def test_one_holder_at_a_time_with_growing_tokens(pair: Pair, job: str, wait: float) -> None:
    inside: list[int] = []
    tokens: list[Token] = []

    async def work(one: Gateway, number: int) -> None:
        rounds = 0
        while rounds < 4:
            try:
                lease = await one.acquire(job, f"h{number}", wait=wait)
            except LockHeld:
                await asyncio.sleep(0.002)
                continue
            inside.append(number)
            tokens.append(lease.token)
            await asyncio.sleep(0)
            assert inside == [number]
            inside.remove(number)
            rounds += 1
            await one.release(lease)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for number in range(16):
            tasks.create_task(work(pair[number % 2], number))
    assert tokens == [Token(0, value) for value in range(1, 65)]


async def test_a_holder_of_another_caller_is_somebody_else(pair: Pair, job: str) -> None:
    held = await pair[0].acquire(job, "ann")
    with pytest.raises(LockHeld) as refused:
        await pair[1].acquire(job, "ann", caller="other")
    assert (refused.value.facts["position"], refused.value.facts["delayed"]) == (1, False)
    waiting = await pair[1].waits(job, "ann", caller="other")
    await pair[0].release(held)
    assert (await waiting).token == Token(0, 2), "it has waited for its turn"


async def test_sharing_with_the_same_name_of_another_caller_is_another_lease(pair: Pair, job: str) -> None:
    one = await pair[0].acquire(job, "ann", mode="shared")
    other = await pair[1].acquire(job, "ann", mode="shared", caller="other")
    assert (one.token, other.caller) == (other.token, "other")
    await pair[0].release(one)
    assert [hold.caller for hold in (await pair[0].service.inspect(job)).holders] == ["other"]


async def test_a_lock_that_is_stuck_holds_up_nobody_else(pair: Pair, job: str) -> None:
    one = pair[0]
    await one.release(await one.acquire(f"{job}/stuck", "ann"))
    stuck = await asyncpg.connect(one.dsn)
    try:
        async with asyncio.timeout(PATIENCE), stuck.transaction():
            await stuck.execute("SELECT FROM fencing.lock WHERE resource = $1 FOR UPDATE", f"{job}/stuck")
            held_up = asyncio.create_task(one.acquire(f"{job}/stuck", "bob"))
            await asyncio.gather(*(one.acquire(f"{job}/{number}", "bob") for number in range(20)))
            assert not held_up.done()
        assert (await held_up).token == Token(0, 2)
    finally:
        await stuck.close()


@pytest.mark.parametrize("deed", ["acquire_free", "acquire", "renew", "renew_many", "release_free", "withdraw"])
async def test_an_answer_of_the_database_that_got_lost(dsn_of_module: str, job: str, deed: str) -> None:
    """The database executes the call, but its answer is lost. The gateway retries, and the call takes effect once."""
    async with gateway(dsn_of_module) as one:
        held = await one.acquire(job, "ann", request="r", ttl=20.0) if deed != "acquire_free" else None
        lost = lose_an_answer(one.database, f"fencing.{deed.removesuffix('_many')}_v1")
        if held is None or deed == "acquire":
            assert (await one.acquire(job, "ann", request="r")).token == Token(0, 1)
        elif deed == "renew":
            assert (await one.renew(held)).id == held.id
        elif deed == "renew_many":
            (kept,) = await one.service.renew_many([Renewal(job, held.id, "writer")])
            assert kept is not None
        elif deed == "release_free":
            await one.release(held)
        else:
            await one.service.withdraw(job, "ann", "writer", "r")
        assert len(lost) == 1
        view = await one.service.inspect(job)
        assert [hold.holder for hold in view.holders] == ([] if deed in ("release_free", "withdraw") else ["ann"])
        assert view.token == Token(0, 1)


def lose_an_answer(database: Database, function: str) -> list[str]:
    """The next call of the function is carried out, and its connection is lost then; what was lost so far."""
    alone: Callable[..., Awaitable[Any]] = database._alone
    statements: list[str] = []

    async def unheard(fetch: Any, lost: type[GatewayError], sql: str, *others: Any) -> Any:
        answer = await alone(fetch, lost, sql, *others)
        if function in sql and not statements:
            statements.append(sql)
            raise lost("The connection was lost.")
        return answer

    database._alone = unheard  # type: ignore[method-assign, assignment]
    return statements


async def test_concurrent_renewals_share_trips(pair: Pair, job: str) -> None:
    one = pair[0]
    leases = [await one.acquire(f"{job}/{number}", "ann") for number in range(40)]
    one.statements.clear()
    renewed = await asyncio.gather(*(one.renew(lease) for lease in reversed(leases)))
    assert [lease.resource for lease in renewed] == [lease.resource for lease in reversed(leases)]
    assert sum("renew_v1" in sql for sql in one.statements) <= 3


async def test_a_lock_is_broken_only_with_the_token_it_has(pair: Pair, job: str) -> None:
    first, second = pair
    lease = await first.acquire(job, "ann", delay=500.0)
    for expected in (Token(0, 2), Token(1, 1)):
        with pytest.raises(ExpectedMismatch) as refused:
            await second.service.break_lock(job, expected, "operator", "wrong")
        assert refused.value.facts == {"resource": job, "token": "1"}
    await first.renew(lease)
    view = await second.service.break_lock(job, Token(0, 1), "operator", "it hangs")
    assert (view.holders, view.token) == ((), Token(0, 1))
    assert view.delayed_for is not None
    assert 400 < view.delayed_for <= 500
    with pytest.raises(LeaseLost):
        await first.renew(lease)
    (event,) = await recorded(first, "lease-broken", job)
    assert (event["caller"], event["holder"], event["epoch"], event["value"]) == ("operator", "ann", 0, 1)
    assert '"it hangs"' in event["details"]
    with pytest.raises(ExpectedMismatch):
        await second.service.break_lock(job, Token(0, 1), "operator", "twice")


# Sharing holders have one token, and the next exclusive holder has a higher one. No waiter starves.


async def test_those_who_share_have_one_token_and_the_next_a_higher_one(pair: Pair, job: str) -> None:
    first, second = pair
    shared = [await one.acquire(job, f"h{number}", mode="shared") for number, one in enumerate((first, second, first))]
    assert {lease.token for lease in shared} == {Token(0, 1)}
    assert len({lease.id for lease in shared}) == 3
    with pytest.raises(LockHeld) as refused:
        await second.acquire(job, "writer")
    assert refused.value.facts["mode"] == "shared"
    waiting = await second.waits(job, "writer")
    for lease in shared:
        assert not waiting.done()
        await first.release(lease)
    alone = await waiting
    assert (alone.mode, alone.token) == (LockMode.EXCLUSIVE, Token(0, 2))
    await second.release(alone)
    assert (await first.acquire(job, "h0", mode="shared")).token == Token(0, 3)


# Tokens of a lock only ever grow: past other issuers, up to the end of numbers, and over the loss of the database.


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


# Leases end by the database's clock alone; what has lapsed never comes back; and what it leaves behind.


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def timely(dsn_of_module: str) -> AsyncIterator[Pair]:
    async with gateway(dsn_of_module, DEAF_TO_TIME) as first, gateway(dsn_of_module, DEAF_TO_TIME) as second:
        yield first, second


async def test_a_lapse_is_on_record_once(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "ann")
    await pass_time(pair[0], job, 31)
    assert (await pair[0].service.inspect(job)).holders == ()
    await asyncio.gather(*(one.service._heartbeat.sweep() for one in pair))
    (event,) = await recorded(pair[0], "lease-expired", job)
    assert (event["caller"], event["holder"], event["epoch"], event["value"]) == ("writer", "ann", 0, 1)
    assert await rows(pair[0], "SELECT FROM fencing.lease WHERE resource = $1", job) == []


async def test_the_next_is_served_when_the_lease_is_over(timely: Pair, job: str) -> None:
    lease = await timely[0].acquire(job, "ann", ttl=600.0)
    waiting = await timely[1].waits(job, "bob")
    behind = await timely[1].waits(job, "cid")
    begun = time.monotonic()
    await timely[0].renew(lease, 1.2)
    # A look that comes too early, as where a lease was renewed meanwhile, is followed by another.
    await rows(timely[0], "SELECT pg_notify('fencing_lease', concat_ws(' ', 0, 0.2, $1::text))", job)
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).token == Token(0, 2)
    assert time.monotonic() - begun > 1.19
    await gone([behind])


async def test_a_lease_that_ends_earlier_than_the_one_waited_for(timely: Pair, job: str) -> None:
    """The holder whose end was waited for gives way to one with a short lease, which is then let lapse."""
    lease = await timely[0].acquire(job, "ann", ttl=600.0)
    first, second = await timely[0].waits(job, "bob", ttl=0.2), await timely[1].waits(job, "cid")
    await timely[0].release(lease)
    # It may take the gateway too long to collect a lease of 0.2 s. Then bob has had it without a word, and waits again.
    async with asyncio.timeout(PATIENCE):
        assert (await second).token == Token(0, 3), "after bob's"
    await gone([first])


async def renewing(one: Gateway, lease: Lease, pause: float) -> None:
    """Renew a lease for as long as it is there, each time at the last moment, and later and later."""
    while True:
        await one.renew(lease, 0.012)
        await asyncio.sleep(pause)
        pause += 0.00001


async def test_no_renewal_slips_in_while_others_wait_for_the_end(pair: Pair, job: str) -> None:
    """Renewals race with the looks of the waiters. The loser of a race learns that it has lost."""
    for number in range(5):
        name = f"{job}/{number}"
        lease = await pair[0].acquire(name, "ann", ttl=0.05)
        taking = asyncio.create_task(pair[1].acquire(name, "bob", wait=PATIENCE))
        with pytest.raises(LeaseLost):
            await renewing(pair[0], lease, 0.01 + number / 1000)
        assert (await taking).token == Token(0, 2)
        with pytest.raises(LeaseLost):
            await pair[0].renew(lease)
