"""Free locks are granted in a batch, without a wait. All others are left to the function that has all answers."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from gateway.db import leases
from gateway.fencing.lease import LockMode, LockRequest, WaitingPlace
from gateway.fencing.token import MAX_VALUE, Token
from tests.leases.stage import Gateway, Pair, pass_time, rows
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


def wish(resource: str, holder: str = "ann", **more: Any) -> LockRequest:
    return LockRequest(resource, holder, "writer", 60.0, **more)


async def granted(one: Gateway, *wishes: LockRequest) -> list[Token | None]:
    found = await leases.acquire_free(one.database, wishes)
    return [None if answer is None or answer.lease is None else answer.lease.token for answer in found]


async def test_one_holder_of_each_lock_whoever_asks_in_one_batch(pair: Pair, job: str) -> None:
    """The first question has the lock. The others are not answered: even the same holder would get a second lease."""
    one = pair[0]
    batch = [wish(job, "bob"), wish(job, "ann"), wish(job, "bob"), wish(f"{job}/2")]
    found = await leases.acquire_free(one.database, batch)
    assert [None if answer is None or answer.lease is None else answer.lease.holder for answer in found] == [
        *("bob", None, None, "ann")
    ]
    (lease,) = await rows(one, "SELECT id FROM fencing.lease WHERE resource = $1", job)
    asked = [(job, lease["id"], "other"), *[(job, lease["id"], "writer")] * 2, (f"{job}/2", lease["id"], "writer")]
    answers = await leases.release_free(one.database, asked)
    assert [answer is not None for answer in answers] == [False, True, False, False]
    assert await granted(one, wish(job)) == [Token(0, 2)]


async def test_both_functions_grant_the_same_lease_and_put_it_on_record_alike(pair: Pair, job: str) -> None:
    one, wanted = pair[0], wish(job, mode=LockMode.SHARED, request="r", delay=3.0)
    seen = []
    for ask, end in ((leases.acquire_free, leases.release_free), (leases.acquire, leases.release)):
        (answer,) = await ask(one.database, [wanted])
        assert answer is not None
        assert answer.lease is not None
        row = dict((await rows(one, "SELECT * FROM fencing.lease WHERE resource = $1", job))[0])
        await end(one.database, [(job, row.pop("id"), "writer")])
        lasts = row.pop("expires_at") - row["acquired_at"]
        entries = await rows(
            one,
            "SELECT kind, epoch, holder, caller, details - 'acquired_at' AS details, "
            "(details ->> 'acquired_at')::timestamptz = $3 AS exact FROM fencing.intake "
            "WHERE resource = $1 AND value = $2 ORDER BY number",
            *(job, row.pop("value"), row.pop("acquired_at")),
        )
        shown = (answer.outcome, answer.fresh, answer.lease.expires_in, answer.turn, answer.lease.mode)
        seen.append((shown, row, lasts, [dict(entry) for entry in entries]))
    assert seen[0] == seen[1]
    assert len(seen[0][3]) == 2


@pytest.mark.parametrize("why", ["held", "lapsed", "delayed", "waited for", "locked", "exhausted"])
async def test_a_lock_that_is_not_simply_free_is_left_alone_at_once(pair: Pair, job: str, why: str) -> None:
    one, other = pair[0], f"{job}/2"
    (answer,) = await leases.acquire_free(one.database, [wish(job, delay=60.0)])
    assert answer is not None
    assert answer.lease is not None
    lease = answer.lease
    if why == "lapsed":
        await pass_time(one, job, 90.0)
    elif why != "held":
        await leases.release_free(one.database, [(job, lease.id, "writer")])
    if why == "delayed":
        await rows(one, "UPDATE fencing.lock SET delayed_until = now() + interval '1 hour' WHERE resource = $1", job)
    elif why == "waited for":
        await _wait(one, job)
    elif why == "exhausted":
        await rows(one, "UPDATE fencing.lock SET value = $2 WHERE resource = $1", job, MAX_VALUE)
    before = await _state(one, job)
    session = await asyncpg.connect(one.dsn)
    try:
        async with session.transaction(), asyncio.timeout(PATIENCE):
            if why == "locked":
                await session.execute("SELECT FROM fencing.lock WHERE resource = $1 FOR UPDATE", job)
            assert await granted(one, wish(job, "bob"), wish(other)) == [None, Token(0, 1)]
    finally:
        await session.close()
    assert await _state(one, job) == before


@pytest.mark.parametrize("why", ["foreign", "lapsed", "waited for", "locked", "unknown"])
async def test_a_lease_that_does_not_simply_end_is_left_alone_at_once(pair: Pair, job: str, why: str) -> None:
    one = pair[0]
    found = await leases.acquire_free(one.database, [wish(job), wish(f"{job}/2")])
    first, second = [answer.lease.id for answer in found if answer is not None and answer.lease is not None]
    if why == "lapsed":
        await pass_time(one, job, 90.0)
    elif why == "waited for":
        await _wait(one, job)
    before = await _state(one, job)
    ended = (job, uuid4() if why == "unknown" else first, "other" if why == "foreign" else "writer")
    session = await asyncpg.connect(one.dsn)
    try:
        async with session.transaction(), asyncio.timeout(PATIENCE):
            if why == "locked":
                await session.execute("SELECT FROM fencing.lock WHERE resource = $1 FOR UPDATE", job)
            answers = await leases.release_free(one.database, [ended, (f"{job}/2", second, "writer")])
            assert [answer is not None for answer in answers] == [False, True]
    finally:
        await session.close()
    assert await _state(one, job) == before


async def test_a_lock_that_is_held_costs_no_commit(pair: Pair, job: str) -> None:
    one = pair[0]
    assert await granted(one, wish(job)) == [Token(0, 1)]
    session = await asyncpg.connect(one.dsn)
    try:
        async with session.transaction():
            sql = "SELECT FROM fencing.acquire_free_v1($1, '{bob}', '{writer}', '{exclusive}', '{NULL}', '{60}', '{0}')"
            assert await session.fetch(sql, [job]) == []
            assert await session.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    finally:
        await session.close()


async def test_a_batch_of_locks_is_one_statement_in_one_trip(pair: Pair, job: str) -> None:
    one = pair[0]
    held = await asyncio.gather(*(one.acquire(f"{job}/{number}", "ann") for number in range(32)))
    one.statements.clear()
    await asyncio.gather(*(one.release(lease) for lease in held))
    await asyncio.gather(*(one.acquire(f"{job}/{number}", "ann") for number in range(32)))
    assert ["free_v1" in sql for sql in one.statements] == [True] * len(one.statements)
    assert len(one.statements) <= 4


async def _wait(one: Gateway, job: str) -> None:
    """Let another holder wait in the queue, at a gateway that is not heard of any more."""
    place = WaitingPlace(UUID(int=1), 60.0, 60.0)
    await rows(one, "INSERT INTO fencing.attendant VALUES ($1, now()) ON CONFLICT DO NOTHING", place.attendant)
    await rows(
        one,
        "INSERT INTO fencing.waiter (resource, holder, caller, mode, ttl, delay, collect, attendant) "
        "VALUES ($1, 'eve', 'writer', 'exclusive', 60, 0, 60, $2)",
        *(job, place.attendant),
    )


async def _state(one: Gateway, job: str) -> list[Any]:
    tables = ("lock", "lease", "waiter", "intake")
    return [await rows(one, f"SELECT * FROM fencing.{name} WHERE resource = $1 ORDER BY 1, 2", job) for name in tables]
