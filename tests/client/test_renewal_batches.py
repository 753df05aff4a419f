"""Locks of one client are renewed together, and each of them lives and dies by itself all the same."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from gateway.client import FencedClient, LockLost, Stale, leases
from gateway.client.lock import Lock
from tests.client.stage import Stage, relayed
from tests.clients.lossy import losing

BATCH = b"PUT /v1/leases "


class Sent(list[list[str]]):
    """The renewals that a client sends: for each request the names of its locks.

    ``alone``: those in requests of their own. ``times``: how often each has been sent.
    """

    def __init__(self, client: FencedClient) -> None:
        self.alone: list[str] = []
        self.times: Counter[str] = Counter()
        client._session().event_hooks = {"request": [self._note], "response": []}

    async def _note(self, request: httpx.Request) -> None:
        path = request.url.path
        if request.method == "PUT" and path == "/v1/leases":
            self.append([one["resource"] for one in json.loads(request.content)["leases"]])
        elif request.method == "PUT":
            self.alone.append(path.removeprefix("/v1/leases/").rpartition("/")[0])
            self.append(self.alone[-1:])
        else:
            return
        self.times.update(self[-1])


async def until(it_is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not it_is_so():
            await asyncio.sleep(0.01)


def renewed(locks: list[Lock], before: dict[Lock, float]) -> bool:
    """Whether all of them have been."""
    return all(lock._kept.held.valid_until > before[lock] for lock in locks)


def validity(locks: list[Lock]) -> dict[Lock, float]:
    return {lock: lock._kept.held.valid_until for lock in locks}


@asynccontextmanager
async def holding(client: FencedClient, job: str, number: int, ttl: float = 60) -> AsyncIterator[list[Lock]]:
    """So many locks, acquired in their order, and not renewed before all are."""
    async with AsyncExitStack() as stack:
        locks = [client.lock(f"{job}/{one}", ttl=ttl, barrier=False, on_loss="tell") for one in range(number)]
        for lock in locks:
            await stack.enter_async_context(lock)
        await asyncio.sleep(0)
        yield locks


@pytest.fixture
def due(monkeypatch: pytest.MonkeyPatch) -> Callable[[FencedClient], None]:
    """Ends the pause of the lock that was renewed least recently; all others are due soon."""
    monkeypatch.setattr(leases, "SOON", 1.0)
    monkeypatch.setattr(leases, "ANSWER_TIMEOUT", 0.3)  # the machine may be slow

    def end(client: FencedClient) -> None:
        client._leases._batches._pausing[0][2].set_result(None)

    return end


async def test_as_many_as_have_room(
    client: FencedClient, job: str, due: Callable[[FencedClient], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "MOST", 3)
    async with holding(client, job, 5) as locks:
        before, sent = validity(locks), Sent(client)
        due(client)
        await until(lambda: renewed(locks[:3], before))
        assert sent == [[lock.resource for lock in locks[:3]]]
        due(client)
        await until(lambda: renewed(locks, before))
        assert sent[1] == [lock.resource for lock in (*locks[3:], locks[0])]


async def test_validity_counts_from_when_the_request_was_sent(
    stage: Stage, job: str, due: Callable[[FencedClient], None]
) -> None:
    clock = [1000.0]
    async with (
        relayed(stage.origin) as relay,
        stage.client(url=relay.origin, clock=lambda: clock[0]) as client,
        holding(client, job, 3) as locks,
    ):
        clock[0], relay.kept_back, sent = 1010.0, BATCH, Sent(client)
        due(client)
        await relay.waiting.wait()
        clock[0] = 1015.0
        relay.let_go.set()
        await until(lambda: renewed(locks, dict.fromkeys(locks, 1060.0)))
        assert set(validity(locks).values()) == {1070.0}
        assert sent.alone == []


async def test_a_broken_one_is_lost_and_the_others_live(
    stage: Stage, client: FencedClient, job: str, due: Callable[[FencedClient], None]
) -> None:
    async with holding(client, job, 5) as locks:
        before, sent, broken = validity(locks), Sent(client), locks.pop(2)
        stage.ended(broken.resource)
        due(client)
        await asyncio.wait_for(broken.lost.wait(), 10)
        with pytest.raises(LockLost) as lost:
            broken.check()
        assert lost.value.code == "lease-lost"
        await until(lambda: renewed(locks, before))
        assert [len(names) for names in sent] == [5]
        assert not any(lock.lost.is_set() for lock in locks)
        due(client)
        await until(lambda: len(sent) == 2)
        assert sorted(sent[1]) == [lock.resource for lock in locks]


async def test_batchs_that_are_never_answered(
    stage: Stage, job: str, due: Callable[[FencedClient], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each lock is renewed by a request of its own, again and again."""
    monkeypatch.setattr(leases, "ANSWER_TIMEOUT", 0.005)
    async with relayed(stage.origin) as relay, stage.client(url=relay.origin) as client:
        relay.kept_back, sent = BATCH, Sent(client)
        async with holding(client, job, 5) as locks:
            for turn in range(1, 4):
                before = validity(locks)
                due(client)
                await until(lambda: renewed(locks, before))  # noqa: B023 - awaited before it is another
                assert sent.times == dict.fromkeys((lock.resource for lock in locks), 2 * turn)
                assert len(sent.alone) == 5 * turn
        assert not relay.let_go.is_set()


async def test_a_batch_whose_answer_gets_lost(stage: Stage, job: str, due: Callable[[FencedClient], None]) -> None:
    with losing(stage.origin, BATCH) as (origin, network):
        async with stage.client(url=origin) as client, holding(client, job, 3) as locks:
            before, sent = validity(locks), Sent(client)
            due(client)
            await until(lambda: renewed(locks, before))
            assert network.lost == 1
            assert sorted(sent.alone) == [lock.resource for lock in locks]


async def test_a_batch_that_is_refused_for_one_in_it(
    client: FencedClient, job: str, due: Callable[[FencedClient], None]
) -> None:
    async with holding(client, job, 3) as locks:
        before, sent = validity(locks), Sent(client)
        keeper = locks[1]._kept
        kept, keeper.held = keeper.held, replace(keeper.held, handle="no lease of this gateway's")
        due(client)
        await until(lambda: renewed([locks[0], locks[2]], before))
        assert sorted(sent.alone) == [lock.resource for lock in locks]
        assert not any(lock.lost.is_set() for lock in locks)
        keeper.held = kept


async def test_a_lock_that_is_lost_is_not_renewed(
    client: FencedClient, job: str, due: Callable[[FencedClient], None]
) -> None:
    async with holding(client, job, 3) as locks:
        before, sent = validity(locks), Sent(client)
        lost = locks.pop(1)
        lost.overtaken(Stale("A newer holder has taken over."))
        due(client)
        await until(lambda: renewed(locks, before))
        assert sent == [[lock.resource for lock in locks]]


@pytest.mark.parametrize("first", [True, False], ids=["the-first", "another"])
async def test_a_release_while_the_batch_is_under_way(
    stage: Stage, job: str, due: Callable[[FencedClient], None], *, first: bool
) -> None:
    """Released it is at once and for good, though its renewal arrives afterwards; the others are renewed."""
    async with relayed(stage.origin) as relay, stage.client(url=relay.origin) as client:
        leaving = client.lock(f"{job}/leaving", ttl=60, barrier=False)
        if first:
            await leaving.__aenter__()
            await asyncio.sleep(0)
        async with holding(client, job, 3) as locks:
            if not first:
                await leaving.__aenter__()
                await asyncio.sleep(0)
            before, relay.kept_back, sent = validity(locks), BATCH, Sent(client)
            due(client)
            await relay.waiting.wait()
            await leaving.__aexit__(None, None, None)
            assert stage.standing(leaving.resource)["holders"] == []
            relay.let_go.set()
            await until(lambda: renewed(locks, before))
            assert len(sent[0]) == 4
            assert sorted(sent.alone) == ([lock.resource for lock in locks] if first else [])
            assert not leaving.lost.is_set()
            assert stage.standing(leaving.resource)["holders"] == []
