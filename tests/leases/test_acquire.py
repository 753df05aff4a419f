"""The lease service over two gateways: one holder at a time, sharing, and tokens that only grow."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from gateway.db.database import Database
from gateway.errors import ExpectedMismatch, Forbidden, GatewayError, LeaseLost, LockHeld, TokensExhausted
from gateway.fencing.lease import Granted, Lease, LockMode, Renewal
from gateway.fencing.token import MAX_VALUE, Token
from tests.leases.stage import Gateway, Pair, gateway, gone, pass_time, recorded, rows, wanted
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


async def test_the_same_holder_has_the_same_lease(pair: Pair, job: str) -> None:
    first, second = pair
    granted = await first.service.acquire(wanted(job, "ann", ttl=10.0))
    again = await second.service.acquire(wanted(job, "ann", ttl=30.0, request="r2"))
    assert (granted.fresh, again.fresh) == (True, False)
    assert (again.lease.id, again.lease.token) == (granted.lease.id, granted.lease.token)
    assert again.lease.expires_in > 29
    shorter = await first.acquire(job, "ann", ttl=1.0)
    assert shorter.expires_in > 1, "asking again must not shorten a lease"


async def test_a_holder_of_another_caller_is_somebody_else(pair: Pair, job: str) -> None:
    held = await pair[0].acquire(job, "ann")
    with pytest.raises(LockHeld) as refused:
        await pair[1].acquire(job, "ann", caller="other")
    facts = refused.value.facts
    assert facts.pop("expires_in") == pytest.approx(15, abs=15)
    assert facts == {
        "resource": job, "mode": "exclusive", "holder": "ann", "token": "1", "position": 1, "delayed": False
    }  # fmt: skip
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


@pytest.mark.parametrize("wait", [0.0, 20.0])
async def test_a_lost_answer_leads_to_the_same_token(pair: Pair, job: str, wait: float) -> None:
    asking = asyncio.create_task(pair[0].acquire(job, "ann", request="r1", wait=wait))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await gone([asking])
    await pair[0].until(job, lambda view: bool(view.holders))
    lease = await pair[1].acquire(job, "ann", request="r1", wait=wait)
    assert lease.token == Token(0, 1)


@pytest.mark.parametrize("deed", ["acquire", "renew", "renew_many", "release", "withdraw"])
async def test_an_answer_of_the_database_that_got_lost(dsn_of_module: str, job: str, deed: str) -> None:
    """The database executes the call, but its answer is lost. The gateway retries, and the call takes effect once."""
    async with gateway(dsn_of_module) as one:
        held = await one.acquire(job, "ann", request="r", ttl=20.0) if deed != "acquire" else None
        lost = lose_an_answer(one.database, f"fencing.{deed.removesuffix('_many')}_v1")
        if held is None:
            assert (await one.acquire(job, "ann", request="r")).token == Token(0, 1)
        elif deed == "renew":
            assert (await one.renew(held)).id == held.id
        elif deed == "renew_many":
            (kept,) = await one.service.renew_many([Renewal(job, held.id, "writer")])
            assert kept is not None
        elif deed == "release":
            await one.release(held)
        else:
            await one.service.withdraw(job, "ann", "writer", "r")
        assert len(lost) == 1
        view = await one.service.inspect(job)
        assert [hold.holder for hold in view.holders] == ([] if deed in ("release", "withdraw") else ["ann"])
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


async def test_only_the_holder_ends_or_renews_a_lease(pair: Pair, job: str) -> None:
    first, second = pair
    lease = await first.acquire(job, "ann")
    with pytest.raises(Forbidden):
        await second.service.release(job, lease.id, "other")
    with pytest.raises(Forbidden):
        await second.service.renew(job, lease.id, "other")
    for act in (second.service.release, second.service.renew):
        with pytest.raises(LeaseLost):
            await act(job, uuid4(), "writer")
    assert (await second.renew(lease, 60.0)).expires_in == pytest.approx(60, abs=1)
    assert (await first.renew(lease)).expires_in == pytest.approx(60, abs=1), "as long as it lasted last time"
    await second.release(lease)
    for again in (first.release, first.renew):
        with pytest.raises(LeaseLost):
            await again(lease)


async def test_many_are_renewed_in_one_statement(pair: Pair, job: str) -> None:
    one = pair[0]
    leases = [await one.acquire(f"{job}/{number}", "ann") for number in range(5)]
    await one.release(leases[1])
    await pass_time(one, f"{job}/2", 31)
    renewals = [Renewal(lease.resource, lease.id, lease.caller, 50.0) for lease in reversed(leases)]
    renewals.append(Renewal(leases[0].resource, leases[0].id, "other", 50.0))
    one.statements.clear()
    renewed = await one.service.renew_many([*renewals, renewals[0]])
    assert sum("renew_v1" in sql for sql in one.statements) == 1
    names = [lease and lease.resource for lease in renewed]
    assert names == [f"{job}/4", f"{job}/3", None, None, f"{job}/0", None, f"{job}/4"]
    assert renewed[0] is not None
    assert renewed[0].expires_in == pytest.approx(50, abs=1)


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


async def test_a_wish_is_withdrawn_wherever_it_has_got_to(pair: Pair, job: str) -> None:
    first, second = pair
    await first.acquire(job, "ann", request="r1")
    waiting = await second.waits(job, "bob", request="r2")
    third = await first.waits(job, "cid")
    await first.service.withdraw(job, "ann", "writer", "r0")
    await first.service.withdraw(job, "ann", "other", "r1")
    await first.service.withdraw(job, "bob", "writer", "r2")
    await gone([waiting])
    assert [hold.holder for hold in (await first.service.inspect(job)).holders] == ["ann"]
    await second.service.withdraw(job, "ann", "writer", "r1")
    assert (await third).token == Token(0, 2)
    await second.service.withdraw(f"{job}/none", "ann", "writer", "r1")


async def test_how_locks_stand(pair: Pair, job: str) -> None:
    first, second = pair
    view = await first.service.inspect(job)
    assert (view.mode, view.token, view.holders, view.waiters, view.queue, view.delayed_for) == (
        None, None, (), 0, (), None,
    )  # fmt: skip
    lease = await first.acquire(f"{job}/a", "ann", mode="shared")
    await second.acquire(f"{job}/a", "bob", mode="shared", caller="other")
    await second.acquire(f"{job}/b", "ann")
    await first.release(await first.acquire(f"{job}/c", "ann"))
    waiting = await second.waits(f"{job}/a", "cid")
    listed = await first.service.listed(f"{job}/", "", 10)
    assert [(one.resource, one.mode, one.waiters) for one in listed] == [
        (f"{job}/a", LockMode.SHARED, 1),
        (f"{job}/b", LockMode.EXCLUSIVE, 0),
    ]
    holders = [(hold.holder, hold.caller, hold.token) for hold in listed[0].holders]
    assert holders == [("ann", "writer", lease.token), ("bob", "other", lease.token)]
    assert [(one.holder, one.mode) for one in listed[0].queue] == [("cid", LockMode.EXCLUSIVE)]
    assert [one.resource for one in await first.service.listed(f"{job}/", f"{job}/a", 10)] == [f"{job}/b"]
    assert [one.resource for one in await first.service.listed(f"{job}/", "", 1)] == [f"{job}/a"]
    await gone([waiting])


async def test_a_lease_that_is_granted_says_how_long_it_lasts(pair: Pair, job: str) -> None:
    granted: Granted = await pair[0].service.acquire(wanted(job, "ann", ttl=0.1))
    lease = granted.lease
    assert lease.expires_in == pytest.approx(0.1, abs=0.01)
    assert (lease.expires_at - lease.acquired_at).total_seconds() == pytest.approx(0.1)


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


async def test_who_wants_to_share_queues_behind_who_wants_it_alone(pair: Pair, job: str) -> None:
    first, second = pair
    reader = await first.acquire(job, "r1", mode="shared")
    writer = await second.waits(job, "w")
    with pytest.raises(LockHeld) as refused:
        await first.acquire(job, "r2", mode="shared")
    assert refused.value.facts["position"] == 2
    late = [await one.waits(job, f"r{number}", mode="shared") for number, one in enumerate((first, second, first), 2)]
    last = await second.waits(job, "w2")
    await first.release(reader)
    alone = await writer
    assert not any(task.done() for task in late)
    await second.release(alone)
    together = await asyncio.gather(*late)
    assert {lease.token for lease in together} == {Token(0, 3)}
    assert not last.done()
    for lease in together:
        await first.release(lease)
    assert (await last).token == Token(0, 4)


async def test_when_who_wants_it_alone_leaves_those_behind_may_share(pair: Pair, job: str) -> None:
    reader = await pair[0].acquire(job, "r1", mode="shared")
    writer = await pair[1].waits(job, "w")
    late = await pair[0].waits(job, "r2", mode="shared")
    await gone([writer])
    assert (await late).token == reader.token


async def test_many_share_at_once(pair: Pair, job: str) -> None:
    alone = await pair[0].acquire(job, "w", ttl=600.0)
    tasks = [
        asyncio.create_task(pair[number % 2].acquire(job, f"r{number}", mode="shared", wait=4 * PATIENCE))
        for number in range(300)
    ]
    await pair[0].until(job, lambda view: view.waiters == 300)
    await pair[0].release(alone)
    assert {lease.token for lease in await asyncio.gather(*tasks)} == {Token(0, 2)}


async def test_a_holder_that_shares_cannot_have_it_alone(pair: Pair, job: str) -> None:
    shared = await pair[0].acquire(job, "ann", mode="shared")
    for wait in (0.0, 5.0):
        with pytest.raises(LockHeld, match="itself") as refused:
            await pair[1].acquire(job, "ann", wait=wait)
        assert refused.value.facts["holder"] == "ann"
    await pair[0].release(shared)
    alone = await pair[0].acquire(job, "ann")
    # The other way round there is nothing to wait for: what it has is more than it asks for.
    again = await pair[0].acquire(job, "ann", mode="shared")
    assert (again.id, again.mode) == (alone.id, LockMode.EXCLUSIVE)


async def test_who_joins_never_gets_a_token_that_the_fence_refuses(pair: Pair, job: str) -> None:
    await pair[0].acquire(job, "r1", mode="shared")
    await rows(pair[0], "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, 1)", job)
    assert (await pair[0].acquire(job, "r2", mode="shared")).token == Token(0, 1)
    await rows(pair[0], "UPDATE fencing.fence SET value = 7 WHERE resource = $1", job)
    assert (await pair[0].acquire(job, "r3", mode="shared")).token == Token(0, 8)
    assert (await pair[1].acquire(job, "r4", mode="shared")).token == Token(0, 8)


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
