"""Locks of other lock services: numbers without epochs, and issuers that lose count."""

import pytest

from gateway.client import FencedClient, IssuerWentBackwards, NotAcquired, Stale, Unavailable
from tests.client.counter import Counter
from tests.client.stage import Stage


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
