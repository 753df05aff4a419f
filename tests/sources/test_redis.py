"""Redis's traps, each shown by a real server, and what the source makes of them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis.asyncio import Redis

from gateway.client.errors import LockLost, NotAcquired, Refused, Unavailable
from gateway.client.redis import RedisSource
from gateway.client.source import Held
from tests.sources import servers
from tests.sources.conftest import started
from tests.sources.kinds import KINDS, Kind
from tests.sources.servers import Server
from tests.waiting import PATIENCE

REDIS = next(kind for kind in KINDS if kind.name == "redis")


@pytest.fixture
def kind() -> Kind:
    return REDIS


@pytest.fixture
def resource() -> str:
    return f"order-{uuid.uuid4().hex}"


@pytest.fixture
async def source(server: Server) -> AsyncIterator[RedisSource]:
    opened = RedisSource(f"redis://{server.address}")
    yield opened
    await opened.aclose()


@pytest.fixture
async def redis(server: Server) -> AsyncIterator["Redis"]:
    async with Redis.from_url(f"redis://{server.address}", decode_responses=True) as client:
        yield client


def counter(resource: str) -> str:
    return f"fencing:{{{resource}}}:token"


def lock(resource: str) -> str:
    return f"fencing:{{{resource}}}:lock"


async def acquire(
    source: RedisSource, resource: str, holder: str = "one", *, ttl: float = 10, wait: float | None = 0
) -> Held:
    return await source.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode="exclusive")


async def test_the_token_is_the_counter_and_the_counter_stays(
    source: RedisSource, redis: "Redis", resource: str
) -> None:
    for token in (1, 2, 3):
        held = await acquire(source, resource)
        assert held.value == token
        assert str(await redis.get(lock(resource))).startswith(f"{token} ")
        assert 1000 < await redis.pttl(lock(resource)) <= 10000, "milliseconds"
        await source.release(held)
        assert await redis.exists(lock(resource)) == 0
    assert await redis.get(counter(resource)) == "3"
    assert await redis.ttl(counter(resource)) == -1, "A counter that expires would begin again."


async def test_a_high_counter_keeps_its_last_digits(source: RedisSource, redis: "Redis", resource: str) -> None:
    """The trap: in Lua every number is a double, and what INCR says in a script is inexact above 2^53."""
    await redis.set(counter(resource), 2**53)
    inexact = await redis.eval("return string.format('%.0f', redis.call('INCR', KEYS[1]))", 1, counter(resource))
    assert inexact == str(2**53)
    assert await redis.get(counter(resource)) == str(2**53 + 1)
    held = await acquire(source, resource)
    assert held.value == 2**53 + 2
    await source.release(held)
    await redis.set(counter(resource), 2**63 - 2)
    held = await acquire(source, resource)
    assert held.value == 2**63 - 1
    await source.release(held)


@pytest.mark.parametrize("value", [2**63 - 1, "no number"])
async def test_a_counter_that_cannot_be_counted_up_gives_no_lock(
    source: RedisSource, redis: "Redis", resource: str, value: int | str
) -> None:
    await redis.set(counter(resource), value)
    with pytest.raises(Refused):
        await acquire(source, resource)
    assert await redis.exists(lock(resource)) == 0


async def test_a_failover_loses_what_was_not_replicated(tmp_path: Path, resource: str) -> None:
    """The trap: replication is asynchronous, and the new primary gives a token that the old one has given already."""
    directories = [tmp_path / "primary", tmp_path / "replica"]
    for directory in directories:
        directory.mkdir()
    with ExitStack() as stack:
        primary = started(lambda: servers.redis(directories[0], "--repl-diskless-sync-delay", "0"), stack)
        replica = started(lambda: servers.redis(directories[1], "--replicaof", f"127.0.0.1 {primary.port}"), stack)
        old, new = RedisSource(f"redis://{primary.address}"), RedisSource(f"redis://{replica.address}")
        first = await acquire(old, resource)
        await old.release(first)
        async with Redis.from_url(f"redis://{replica.address}", decode_responses=True) as client:
            async with asyncio.timeout(PATIENCE):
                while await client.get(counter(resource)) != "1" or await client.exists(lock(resource)):
                    await asyncio.sleep(0.02)
            with pytest.raises(Unavailable):
                await acquire(new, resource)
            await client.replicaof("NO", "ONE")
        last = await acquire(old, resource, "before the failover")
        primary.kill()
        again = await acquire(new, resource, "after the failover")
        assert again.value == last.value, "Two holders, one token: only Fencing-Holder tells them apart."
        await new.aclose()
        await old.aclose()


async def test_a_flushed_database_is_a_lost_lock(own: Server, resource: str) -> None:
    source = RedisSource(f"redis://{own.address}")
    for _ in range(3):
        await source.release(await acquire(source, resource))
    held = await acquire(source, resource)
    async with Redis.from_url(f"redis://{own.address}") as client:
        await client.flushall()
        await client.script_flush()
    with pytest.raises(LockLost):
        await source.renew(held, 10)
    assert not await source.holds(held)
    taken = await acquire(source, resource, "two")
    assert taken.value == 1 < held.value
    await source.aclose()


async def test_a_lock_that_expires_is_taken_at_once(source: RedisSource, redis: "Redis", resource: str) -> None:
    held = await acquire(source, resource, ttl=60)
    with pytest.raises(NotAcquired) as refused:
        await acquire(source, resource)
    assert refused.value.expires_in is not None
    assert 1 < refused.value.expires_in <= 60
    await redis.pexpire(lock(resource), 500)
    taken = await asyncio.wait_for(acquire(source, resource, "two", ttl=60, wait=None), PATIENCE)
    assert taken.value == held.value + 1
    await source.release(held)
    assert await source.holds(taken)
    await source.release(taken)


@pytest.fixture
async def guarded(own: Server) -> Server:
    """A server whose user ``locks`` with the password ``secret`` alone has rights: only those of the source."""
    commands = "get set del incr pexpire pttl eval evalsha script|load publish subscribe unsubscribe"
    async with Redis.from_url(f"redis://{own.address}") as client:
        await client.acl_setuser(
            "locks",
            enabled=True,
            passwords="+secret",
            keys=["fencing:*"],
            channels=["fencing:*"],
            commands=[f"+{command}" for command in commands.split()],
            reset=True,
        )
        await client.acl_setuser("default", enabled=False)
    return own


async def test_users_and_passwords(guarded: Server) -> None:
    source = RedisSource(f"redis://locks:secret@{guarded.address}")
    held = await acquire(source, "order/5")
    waiting = asyncio.create_task(acquire(source, "order/5", "two", wait=PATIENCE))
    await asyncio.sleep(0.1)
    assert (await source.renew(held, 10)).value == held.value
    await source.release(held)
    await source.release(await waiting)
    await source.aclose()
    for who, prefix in (("locks:wrong@", "fencing"), ("", "fencing"), ("locks:secret@", "elsewhere")):
        stranger = RedisSource(f"redis://{who}{guarded.address}", prefix=prefix)
        with pytest.raises(Refused):
            await acquire(stranger, "order/5")
        await stranger.aclose()
