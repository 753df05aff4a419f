"""Tokens from Consul, against a real server where there is one, and against what one has answered before."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.client.consul import ConsulSource, key_of
from gateway.client.errors import LockLost, NotAcquired, Refused, Unavailable
from gateway.client.source import Held
from tests.sources.conftest import addresses
from tests.sources.exchanges import MODES, Cast, Fault, acquire, assert_held_by, assert_overtaken, cast_of
from tests.sources.go_servers import ADMINISTRATOR, consul, version

RECORDED = Path(__file__).parent / "recorded/consul"

# The odd parts of resource names; two of these names differ only in their escaped characters.
ODD = ["a", "a/", "/a", "a//b", "a/./b", "a/../b", "..", ".", "%2F", "a%20b", "2F", "é".encode().hex(), "a%2F..%2Fb"]
ODD += ["(a)!$&'*+;:@~-_.", "x" * 512]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """The addresses of real servers: ``"restored"``, ``"guarded"`` by ACLs, ``"alone"`` of two, and ``""``."""
    options: dict[str, dict[str, Any]] = {"guarded": {"acl": True}, "alone": {"expect": 2}}
    with addresses(lambda name, directory: consul(directory, **options.get(name, {})), tmp_path_factory) as address:
        yield address


@pytest.fixture(params=MODES)
async def cast(request: pytest.FixtureRequest) -> AsyncIterator[Cast]:
    async with cast_of(request, RECORDED, lambda: version("consul")) as actors:
        yield actors


async def a_source(cast: Cast, name: str, server: str = "", **given: Any) -> ConsulSource:
    return await cast.source(lambda url: ConsulSource(url, **{"shortest_ttl": 1.0, **given}), name, server)


async def test_tokens_grow_from_holder_to_holder(cast: Cast) -> None:
    one, other = await a_source(cast, "one"), await a_source(cast, "other")
    held = await acquire(one, "order/1", "one")
    assert await one.holds(held)
    await assert_held_by("one", other, "order/1")
    renewed = await one.renew(held, 10)
    assert renewed.value == held.value
    assert renewed.valid_until > held.valid_until
    await one.release(renewed)
    assert not await one.holds(renewed)
    taken = await acquire(other, "order/1", "other")
    assert taken.value > held.value
    await one.release(renewed)
    assert await other.holds(taken)
    await other.release(taken)


async def test_who_waits_is_woken_up_by_the_release(cast: Cast) -> None:
    one, other = await a_source(cast, "one"), await a_source(cast, "other")
    held = await acquire(one, "order/2", "one", ttl=60)
    waiting = asyncio.create_task(acquire(other, "order/2", "other", ttl=60, wait=None))
    await cast.stage.until_sent("other", "wait=")
    await one.release(held)
    taken = await waiting
    assert taken.value > held.value
    await other.release(taken)


async def test_a_paused_holder_is_overtaken_and_finds_out(cast: Cast) -> None:
    paused, other = await a_source(cast, "paused"), await a_source(cast, "other")
    held = await acquire(paused, "order/4", "paused", ttl=1)
    taken = await acquire(other, "order/4", "other", ttl=1, wait=None)
    assert taken.value > held.value
    await assert_overtaken(paused, held, other, taken)
    await other.release(taken)


async def test_a_deleted_key_ends_the_hold_but_not_the_count(cast: Cast) -> None:
    """``LockIndex`` starts again at 1 here, which is why it is not the token."""
    source, operator = await a_source(cast, "one"), await cast.operator()
    first = await acquire(source, "order/5", "one")
    await source.release(first)
    second = await acquire(source, "order/5", "one")
    assert await lock_index(operator, "order/5") == 2
    await operator.delete("/v1/kv/fencing/order/5")
    assert not await source.holds(second)
    with pytest.raises(LockLost):
        await source.renew(second, 10)
    third = await acquire(source, "order/5", "one")
    assert await lock_index(operator, "order/5") == 1
    assert third.value > second.value > first.value
    await source.release(third)


async def test_a_key_written_by_others_stays_held_and_goes_on_counting(cast: Cast) -> None:
    """``LockIndex`` is set to 0 here."""
    source, operator = await a_source(cast, "one"), await cast.operator()
    first = await acquire(source, "order/6", "one")
    await operator.put("/v1/kv/fencing/order/6", json="something else")
    assert await lock_index(operator, "order/6") == 0
    assert await source.holds(first)
    assert (await source.renew(first, 10)).value == first.value
    await source.release(first)
    second = await acquire(source, "order/6", "one")
    assert await lock_index(operator, "order/6") == 1
    assert second.value > first.value
    await source.release(second)


async def test_servers_without_their_data_issue_lower_tokens(cast: Cast) -> None:
    """Said as it is: it is the fence that notices, and an epoch that helps."""
    before, after = await a_source(cast, "before"), await a_source(cast, "after", "restored")
    for _ in range(10):
        held = await acquire(before, "order/7", "one")
        await before.release(held)
    lower = await acquire(after, "order/7", "one")
    assert lower.value < held.value
    await after.release(lower)


async def test_a_lock_delay_is_sat_out(cast: Cast) -> None:
    one, other = await a_source(cast, "one", lock_delay=0.5), await a_source(cast, "other")
    operator = await cast.operator()
    held = await acquire(one, "order/8", "one")
    await operator.put(f"/v1/session/destroy/{session_of(held)}")
    with pytest.raises(NotAcquired) as refused:
        await acquire(other, "order/8", "other")
    assert refused.value.holder is None
    taken = await acquire(other, "order/8", "other", wait=10)
    assert taken.value > held.value
    await other.release(taken)


async def test_a_shorter_ttl_is_made_as_long_as_sessions_are(cast: Cast) -> None:
    source = await a_source(cast, "one", clock=lambda: 100.0)
    held = await acquire(source, "order/9", "one", ttl=0.2)
    assert held.valid_until == 101.0
    assert (await source.renew(held, 0.2)).valid_until == 101.0
    await source.release(held)
    too_short = await a_source(cast, "two", shortest_ttl=0.1)
    with pytest.raises(Refused, match="Invalid Session TTL"):
        await acquire(too_short, "order/9", "two", ttl=0.2)


async def test_rules_of_the_acl_are_said_clearly(cast: Cast) -> None:
    operator = await cast.operator("guarded", **{"X-Consul-Token": ADMINISTRATOR})
    rules = {"sessions only": 'session_prefix "" { policy = "write" }'}
    rules["all of it"] = rules["sessions only"] + 'key_prefix "fencing/" { policy = "write" }'
    made = {}
    for name, text in rules.items():
        policy = await operator.put("/v1/acl/policy", json={"Name": name.replace(" ", "-"), "Rules": text})
        written = await operator.put("/v1/acl/token", json={"Policies": [{"ID": policy.json()["ID"]}]})
        made[name] = written.json()["SecretID"]
    for lane, token in (("nobody", None), ("unknown", "no-such-token"), ("sessions only", made["sessions only"])):
        source = await a_source(cast, lane, "guarded", token=token)
        with pytest.raises(Refused, match="key:write") as refused:
            await acquire(source, "order/10", "one")
        assert refused.value.status == 403
    allowed = await a_source(cast, "allowed", "guarded", token=made["all of it"])
    await allowed.release(await acquire(allowed, "order/10", "one"))


async def test_a_cluster_without_a_leader_is_unavailable(cast: Cast) -> None:
    source = await a_source(cast, "one", "alone")
    with pytest.raises(Unavailable, match="No cluster leader"):
        await acquire(source, "order/11", "one")


async def test_a_cancelled_waiter_leaves_nothing_behind(cast: Cast) -> None:
    one, other = await a_source(cast, "one"), await a_source(cast, "other")
    operator = await cast.operator()
    held = await acquire(one, "order/12", "one")
    waiting = asyncio.create_task(acquire(other, "order/12", "cancelled", wait=None))
    await cast.stage.until_sent("other", "wait=")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert "cancelled" not in await sessions(operator)
    assert await one.holds(held)
    await one.release(held)


async def test_an_acquire_cancelled_on_its_way_leaves_nothing_behind(cast: Cast) -> None:
    source, operator = await a_source(cast, "one"), await cast.operator()
    lane = await cast.lane("one")
    await source.release(await acquire(source, "order/13", "warm"))
    for step, times in (("/v1/session/create", 2), ("/v1/txn", 2)):
        lane.closed_to = step
        lane.gate.clear()
        taking = asyncio.create_task(acquire(source, "order/13", "cancelled"))
        await cast.stage.until_sent("one", step, times)
        taking.cancel()
        await asyncio.sleep(0)
        # More than once, as some frameworks do it.
        taking.cancel()
        await asyncio.sleep(0.02)
        if step == "/v1/txn":
            # Given back before it arrives.
            with pytest.raises(asyncio.CancelledError):
                await taking
        lane.gate.set()
        await cast.stage.until_arrived("one")
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert "cancelled" not in await sessions(operator)
    assert "Session" not in (await operator.get("/v1/kv/fencing/order/13")).json()[0]


async def test_a_lock_whose_answer_was_lost_is_found_again(cast: Cast) -> None:
    source, other = await a_source(cast, "one"), await a_source(cast, "other")
    lane = await cast.lane("one")
    lane.faults = [Fault("/v1/txn", lose=True, times=1), Fault("/v1/kv/", lose=False, times=1)]
    with pytest.raises(Unavailable):
        await acquire(source, "order/14", "one")
    await assert_held_by("one", other, "order/14")
    held = await acquire(source, "order/14", "one")
    assert await source.holds(held)
    await source.release(held)
    await other.release(await acquire(other, "order/14", "other"))


def test_keys_are_what_every_version_of_consul_takes() -> None:
    """From 1.22 on, Consul refuses ``..`` and spaces, once percent-decoded.

    Every version redirects from empty segments and dots.
    """
    keys = [key_of(resource) for resource in ODD]
    assert len(set(keys)) == len(ODD)
    for key in keys:
        assert "%" not in key
        assert not {"", ".", ".."} & set(key.split("/"))


async def sessions(operator: httpx.AsyncClient) -> list[str]:
    """Return the names of all sessions."""
    return [session["Name"] for session in (await operator.get("/v1/session/list")).json()]


async def lock_index(operator: httpx.AsyncClient, resource: str) -> int:
    return int((await operator.get(f"/v1/kv/fencing/{resource}")).json()[0]["LockIndex"])


def session_of(held: Held) -> str:
    return str(getattr(held.handle, "session", ""))
