"""Each event of a lock is on record: grant, release, loss by the clock and loss to an administrator."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.db import fences, leases
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from tests.leases.stage import Gateway, gateway, gone, pass_time
from tests.record.sealed import entries, flaws, lines

KINDS = [kind for kind in Kind if kind.startswith("lease-")]


@pytest.fixture
async def one(dsn: str) -> AsyncIterator[Gateway]:
    async with gateway(dsn) as opened:
        yield opened


async def told(one: Gateway, resource: str = "job/1") -> list[tuple[Any, ...]]:
    """Kind, token, holder and caller of each."""
    found = [entry for entry in await entries(one.database, *KINDS) if entry["resource"] == resource]
    return [(entry["kind"], entry["value"], entry["holder"], entry["caller"]) for entry in found]


async def details(one: Gateway, kind: Kind) -> dict[str, Any]:
    (entry,) = await entries(one.database, kind)
    found: dict[str, Any] = json.loads(entry["details"])
    return found


async def test_from_one_holder_to_the_next(one: Gateway) -> None:
    """A lock that a client waited for is granted when the client collects it, and not before."""
    first = await one.acquire("job/1", "ann")
    waiting = await one.waits("job/1", "bob", caller="other")
    await one.release(first)
    second = await waiting
    await one.renew(second)
    await one.release(second)
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-released", 1, "ann", "writer"),
        ("lease-granted", 2, "bob", "other"),
        ("lease-released", 2, "bob", "other"),
    ]
    assert flaws(await lines(one.database)) == []


async def test_to_ask_twice_is_to_get_it_once(one: Gateway) -> None:
    await one.acquire("job/1", "ann")
    await one.acquire("job/1", "ann")
    assert await told(one) == [("lease-granted", 1, "ann", "writer")]
    granted = await details(one, Kind.LEASE_GRANTED)
    assert (granted["mode"], granted["ttl"], set(granted)) == ("exclusive", 30, {"mode", "ttl", "acquired_at"})


async def test_those_who_share_a_lock_each_have_their_own(one: Gateway) -> None:
    held = [await one.acquire("job/1", holder, mode="shared") for holder in ("ann", "bob")]
    await one.release(held[0])
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-granted", 1, "bob", "writer"),
        ("lease-released", 1, "ann", "writer"),
    ]


async def test_one_that_lapses_is_over_before_the_next_begins(one: Gateway) -> None:
    await one.acquire("job/1", "ann")
    await pass_time(one, "job/1", 31)
    await one.acquire("job/1", "bob")
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-expired", 1, "ann", "writer"),
        ("lease-granted", 2, "bob", "writer"),
    ]
    assert set(await details(one, Kind.LEASE_EXPIRED)) == {"mode", "acquired_at", "expires_at"}


async def test_one_that_is_broken_says_by_whom_and_why(one: Gateway) -> None:
    lease = await one.acquire("job/1", "ann")
    await one.service.break_lock("job/1", lease.token, "operator", "it hangs")
    assert (await told(one))[1:] == [("lease-broken", 1, "ann", "operator")]
    broken = await details(one, Kind.LEASE_BROKEN)
    assert (broken["of"], broken["reason"]) == ("writer", "it hangs")


async def test_one_that_is_withdrawn_is_given_back(one: Gateway) -> None:
    await one.acquire("job/1", "ann", request="r-1")
    await leases.withdraw(one.database, "job/1", "ann", "writer", "r-1")
    await leases.withdraw(one.database, "job/1", "ann", "writer", "r-1")
    assert await told(one) == [("lease-granted", 1, "ann", "writer"), ("lease-released", 1, "ann", "writer")]


async def test_what_nobody_was_told_of_is_not_on_record(one: Gateway, dsn: str) -> None:
    """The gateway handed the lock over to a client that had hung up, and then to the next one."""
    lease = await one.acquire("job/1", "ann")
    async with gateway(dsn, running=False) as deaf:
        dead = await deaf.waits("job/1", "bob")
        await one.release(lease)
        await pass_time(one, "job/1", 31)
        await one.acquire("job/1", "cid")
        assert [entry[2] for entry in await told(one)] == ["ann", "ann", "cid"]
        await gone([dead])


async def test_nor_is_that_it_was_withdrawn_before(one: Gateway, dsn: str) -> None:
    lease = await one.acquire("job/1", "ann")
    async with gateway(dsn, running=False) as deaf:
        dead = await deaf.waits("job/1", "bob", request="r-1")
        await one.release(lease)
        await leases.withdraw(one.database, "job/1", "bob", "writer", "r-1")
        assert {entry[2] for entry in await told(one)} == {"ann"}
        assert (await one.service.inspect("job/1")).holders == ()
        await gone([dead])


async def test_a_new_epoch_ends_the_leases_of_the_one_before(one: Gateway) -> None:
    lease = await one.acquire("job/1", "ann")
    await one.database.fetch_write(
        "INSERT INTO fencing.fence (resource, epoch, value, holder, caller) VALUES ('job/1', 0, $1, 'ann', 'writer')",
        lease.token.value,
    )
    await fences.bump_epoch(one.database, "job/1", Token(0, 1), "admin", "restored")
    assert (await told(one))[1:] == [("lease-broken", 1, "ann", "admin")]
    (entry,) = await entries(one.database, "epoch")
    assert (entry["epoch"], entry["fence_value"], entry["fence_holder"]) == (1, 1, "ann")
    assert json.loads(entry["details"])["leases_ended"] == 1


async def test_the_life_of_a_database_that_came_back_is_an_epoch(one: Gateway) -> None:
    await one.acquire("job/1", "ann")
    await one.database.fetch_write("UPDATE fencing.issuer SET timeline = 'another'")
    await one.acquire("job/2", "ann")
    (entry,) = await entries(one.database, "epoch")
    assert (entry["resource"], entry["epoch"], entry["value"], entry["fence_value"]) == (None, 1, 0, None)
    assert json.loads(entry["details"])["before"]["timeline"] == "another"


async def test_the_id_of_a_lease_is_not_on_record(one: Gateway) -> None:
    """Any caller that knows the id can end the lease."""
    lease = await one.acquire("job/1", "ann")
    await one.release(lease)
    await entries(one.database)
    assert not [line for line in await lines(one.database) if str(lease.id) in line]
