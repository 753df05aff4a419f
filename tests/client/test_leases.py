"""The gateway's own lease service, and others, as the client library uses them: queues, lost answers, lost counters."""

import asyncio
from collections.abc import Callable

import pytest

from gateway.client import (
    FencedClient,
    Implausible,
    IssuerWentBackwards,
    NotAcquired,
    Refused,
    Stale,
    Unavailable,
    leases,
)
from tests.client.stage import Counter, Stage, relayed
from tests.clients.lossy import losing
from tests.waiting import PATIENCE


async def waiting(stage: Stage, resource: str, number: int) -> None:
    """Until so many wait for the lock."""
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(stage.standing, resource))["waiters"] != number:
            await asyncio.sleep(0.02)


async def test_a_lock_is_held_by_one(stage: Stage, client: FencedClient, job: str) -> None:
    """Two of one program exclude each other, too."""
    async with client.lock(job, ttl=20) as lock:
        [holder] = stage.standing(job)["holders"]
        assert (holder["holder"], holder["token"], holder["mode"]) == (lock.holder, lock.token, "exclusive")
        assert lock.holder.startswith(client.holder)
        assert lock.headers == {
            "Fencing-Token": "1",
            "Fencing-Resource": job,
            "Fencing-Holder": lock.holder,
            "Fencing-Sequencer": lock.sequencer,
        }
        assert 1 < lock.expires_in < 20
        with pytest.raises(NotAcquired) as refused:
            async with client.lock(job, wait=0):
                pass
        said = refused.value
        assert (said.code, said.resource, said.holder) == ("lock-held", job, lock.holder)
        assert said.expires_in is not None
        assert 0 < said.expires_in <= 20
    assert stage.standing(job)["holders"] == []
    async with client.lock(job, wait=0) as lock:
        assert lock.token == "2"


async def test_whoever_takes_one_name_shares_one_hold(client: FencedClient, job: str) -> None:
    async with client.lock(job, holder="night shift") as one, client.lock(job, holder="night shift", wait=0) as other:
        assert (one.token, one.holder) == (other.token, "night shift")


async def test_who_shares_a_lock_does_not_wait_for_itself(stage: Stage, client: FencedClient, job: str) -> None:
    """Wanted alone, under the name that shares it, it would never be had: that is said at once."""
    async with client.lock(job, mode="shared", holder="night shift") as lock:
        with pytest.raises(NotAcquired) as refused:
            await asyncio.wait_for(client.lock(job, holder="night shift").__aenter__(), PATIENCE)
        assert refused.value.facts["own"] is True
        lock.check()
        assert [one["mode"] for one in stage.standing(job)["holders"]] == ["shared"]


async def test_it_is_renewed(stage: Stage, eager: FencedClient, job: str) -> None:
    async with eager.lock(job) as lock:
        [granted] = stage.standing(job)["holders"]
        async with asyncio.timeout(PATIENCE):
            while (renewed := stage.standing(job)["holders"])[0]["expires_at"] == granted["expires_at"]:
                await asyncio.sleep(0.05)
        lock.check()
        assert [one["token"] for one in renewed] == ["1"]


async def test_sharing(stage: Stage, client: FencedClient) -> None:
    number = stage.account()
    resource = f"public.accounts/{number}"
    async with client.lock(resource, mode="shared") as one, client.lock(resource, mode="shared") as other:
        assert one.token == other.token
        for lock in (one, other):
            assert "Fencing-Holder" not in lock.headers
            row = {"id": number, "owner": lock.holder}
            answer = await lock.http.put(f"/v1/tables/accounts?id=eq.{number}", json=row)
            assert answer.is_success, answer.text
        with pytest.raises(NotAcquired):
            async with client.lock(resource, wait=0):
                pass


async def test_the_place_in_the_queue_is_kept(
    stage: Stage, client: FencedClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting takes many requests; who came first is served first."""
    monkeypatch.setattr(client._leases, "_stretch", 0.2)
    order: list[str] = []

    async def wait(name: str) -> None:
        async with client.lock(job, holder=name, ttl=60, wait=PATIENCE):
            order.append(name)

    async with asyncio.TaskGroup() as tasks, client.lock(job):
        for number, name in enumerate(("first", "second", "third"), 1):
            tasks.create_task(wait(name))
            await waiting(stage, job, number)
        await asyncio.sleep(0.7)
        queue = [one["holder"] for one in stage.standing(job)["queue"]]
    assert queue == ["first", "second", "third"]
    assert order == queue


@pytest.mark.thorough
async def test_waiting_for_longer_than_one_request_may(stage: Stage, client: FencedClient, job: str) -> None:
    """The operator lets requests wait for one second: the client finds out, and asks again and again."""
    assert leases.STRETCH > 1
    async with client.lock(job):
        with pytest.raises(NotAcquired):
            await asyncio.wait_for(client.lock(job, wait=1.5).__aenter__(), PATIENCE)
        assert client._leases._stretch < 1
        assert stage.standing(job)["waiters"] == 0


async def test_who_gives_up_leaves_the_queue(stage: Stage, client: FencedClient, job: str) -> None:
    async with client.lock(job):
        with pytest.raises(NotAcquired):
            await client.lock(job, wait=0.2).__aenter__()
        assert stage.standing(job)["waiters"] == 0
        task = asyncio.create_task(client.lock(job).__aenter__())
        await waiting(stage, job, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stage.standing(job)["waiters"] == 0
    assert stage.standing(job)["holders"] == []


async def test_a_withdrawal_does_not_overtake_what_it_withdraws(
    stage: Stage, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The acquire is slow to arrive. After an earlier give-up, it would later grant the lock to an absent client."""
    monkeypatch.setattr(leases, "ARRIVING", PATIENCE)
    monkeypatch.setattr(leases, "GIVING_BACK", PATIENCE)
    async with relayed(stage.origin) as relay, stage.client(url=relay.origin) as client:
        monkeypatch.setattr(client._leases, "_stretch", 1.0)
        relay.kept_back = b"POST /v1/leases/"
        acquiring = asyncio.create_task(client.lock(job).__aenter__())
        await asyncio.wait_for(relay.waiting.wait(), PATIENCE)
        acquiring.cancel()
        await asyncio.sleep(0.2)
        assert stage.standing(job)["token"] is None, "it has not arrived, nor what withdraws it"
        relay.let_go.set()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        view = stage.standing(job)
        assert (view["token"], view["holders"], view["waiters"]) == ("1", [], 0)


async def test_validity_counts_from_the_grant(stage: Stage, client: FencedClient, job: str) -> None:
    """The request was sent long before; as long as it waited, nothing of the lease was used up."""
    clock = [1000.0]
    async with stage.client(clock=lambda: clock[0]) as late, asyncio.TaskGroup() as tasks:
        async with client.lock(job):
            waiter = tasks.create_task(late.lock(job, ttl=60).__aenter__())
            await waiting(stage, job, 1)
            clock[0] += 50
        lock = await waiter
        assert lock.expires_in > 50
        await lock.__aexit__(None, None, None)


async def test_an_answer_that_got_lost(stage: Stage, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again it is the same lock, with the same token."""
    monkeypatch.setattr(leases, "SHORTEST_TIMEOUT", PATIENCE)
    with losing(stage.origin, b"POST /v1/leases/") as (origin, network):
        async with stage.client(url=origin) as client, client.lock(job, wait=0) as lock:
            assert (network.lost, lock.token) == (1, "1")


async def test_signed_tokens(stage: Stage, client: FencedClient, job: str) -> None:
    """If the policy demands a proof, every request of the lock carries one."""
    async with client.lock(f"signed/{job}") as lock:
        assert lock.sequencer is not None
        assert lock.sequencer.startswith(f"signed/{job}:exclusive:1:")
        assert (await lock.credentials()).expiration.tzinfo is not None
        assert (await lock.environment(s3=False))["FENCING_SEQUENCER"] == lock.sequencer
    counter = Counter(value=10)
    with pytest.raises(Implausible):  # one that has no proof
        await client.lock(f"signed/{job}", source=counter).__aenter__()


@pytest.mark.parametrize("ttl", [0.01, 365 * 86400])
async def test_times_that_the_gateway_does_not_give(stage: Stage, client: FencedClient, job: str, ttl: float) -> None:
    with pytest.raises(Refused, match=r"body\.ttl") as refused:
        await asyncio.wait_for(client.lock(job, ttl=ttl).__aenter__(), PATIENCE)
    assert refused.value.code == "request-malformed"
    assert stage.standing(job)["token"] is None


@pytest.mark.parametrize("make", [lambda: None, Counter], ids=["the gateway's lock", "another lock service"])
async def test_a_proxy_that_decodes_paths_is_found_out(
    stage: Stage, job: str, make: Callable[[], Counter | None]
) -> None:
    """A lock that the gateway knows under another name protects nothing, so the block does not begin."""
    async with relayed(stage.origin) as relay, stage.client(url=relay.origin) as client:
        relay.decodes = True
        with pytest.raises(Refused, match=f"asked about {job}/c%2Fd, and answered about {job}/c/d") as refused:
            await client.lock(f"{job}/c%2Fd", wait=0, source=make()).__aenter__()
        assert "proxy" in refused.value.advice
        async with client.lock(f"{job}/c/e", wait=0, source=make()):
            pass


@pytest.mark.parametrize(
    ("resource", "wrong"), [("", {}), ("a b", {}), ("a", {"ttl": 0}), ("a", {"ttl": float("nan")}),
    ("a", {"wait": -1}), ("a", {"wait": float("nan")}), ("a", {"holder": ""}), ("a", {"holder": "é"}), ("a/../b", {})],
)  # fmt: skip
def test_what_cannot_be_asked_for(resource: str, wrong: dict[str, object]) -> None:
    client = FencedClient("http://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"\w"):
        client.lock(resource, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host", "http://"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="not an address"):
        FencedClient(url)


# Locks of other lock services: numbers without epochs, and issuers that lose count.


async def test_the_epoch_is_the_fences(stage: Stage, client: FencedClient, counter: Counter, job: str) -> None:
    stage.raised(job, "2.5")
    counter.value = 6
    async with client.lock(job, source=counter) as lock:
        assert (lock.token, lock.headers["Fencing-Token"]) == ("2.7", "2.7")
        assert lock.sequencer is None
        assert "Fencing-Sequencer" not in lock.headers
    assert counter.holders == {}


async def test_a_counter_that_was_lost(stage: Stage, client: FencedClient, counter: Counter, job: str) -> None:
    counter.value = 100
    async with client.lock(job, source=counter):
        pass
    counter.value = 4
    with pytest.raises(IssuerWentBackwards, match="POST /v1/fences") as refused:
        await client.lock(job, source=counter).__aenter__()
    assert (refused.value.facts["token"], refused.value.facts["fence"]) == ("5", "101")
    assert counter.holders == {}, "it has been given back"
    # One number for two holders is the same trouble.
    counter.value = 100
    with pytest.raises(IssuerWentBackwards):
        await client.lock(job, source=counter).__aenter__()

    with stage.api() as api:  # the cure
        bumped = api.post(
            f"/v1/fences/{job}/epoch",
            json={"expected": "101", "reason": "the counter was restored from a backup"},
            headers={"Authorization": "Bearer operator-key"},
        )
    assert bumped.is_success, bumped.text
    counter.value = 4
    async with client.lock(job, source=counter) as lock:
        assert lock.token == "1.5"


async def test_a_new_epoch_in_the_meantime(stage: Stage, client: FencedClient, counter: Counter, job: str) -> None:
    """The epoch that was read goes with the number, although a newer one would pass: it may be a zombie's."""
    acquire = counter.acquire

    async def late(resource: str, **wanted: object) -> object:
        stage.raised(job, "1.0")
        return await acquire(resource, **wanted)  # type: ignore[arg-type]

    counter.acquire = late  # type: ignore[method-assign, assignment]
    counter.value = 50
    with pytest.raises(Unavailable, match="new epoch"):
        await client.lock(job, source=counter).__aenter__()
    assert counter.holders == {}
    async with client.lock(job, source=counter) as lock:
        assert lock.token == "1.52"


async def test_a_lock_that_was_lost_before_it_began(
    stage: Stage, client: FencedClient, counter: Counter, job: str
) -> None:
    stage.raised(job, "1000")

    async def holds(held: object) -> bool:
        return False

    counter.holds = holds  # type: ignore[method-assign]
    with pytest.raises(Stale):
        await client.lock(job, source=counter).__aenter__()


async def test_without_a_barrier_nobody_asks_the_gateway(
    stage: Stage, client: FencedClient, counter: Counter, job: str
) -> None:
    stage.raised(job, "1000")
    async with client.lock(job, source=counter, barrier=False) as lock:
        assert lock.token == "1"


async def test_sources_are_closed_with_the_client(stage: Stage, counter: Counter, job: str) -> None:
    async with stage.client() as client:
        for _ in range(2):
            async with client.lock(job, source=counter):
                with pytest.raises(NotAcquired, match="is held by"):
                    await client.lock(job, source=counter).__aenter__()
        assert counter.closed == 0
    assert counter.closed == 1
