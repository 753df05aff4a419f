"""An acknowledged raise survives that the database goes back, with a journal of each kind."""

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.errors import JournalUnusable, Unavailable
from gateway.fencing.intent import DEAD_AFTER
from gateway.fencing.token import Token
from gateway.journal.archive import Store
from gateway.journal.contents import SEGMENTS, SNAPSHOTS, Contents, Entry, Problem
from gateway.journal.trust import Marker, Mode
from tests.journal.installation import Gateway, Installation
from tests.waiting import PATIENCE

STALE, HELD, RAISED = "token-stale", "held", "raised"


@pytest.fixture
async def gateway(installation: Installation) -> Gateway:
    """A gateway that has opened the database."""
    one = installation.gateway()
    await one.runner.open()
    return one


@pytest.mark.parametrize("installation", ["bucket", "rows"], indirect=True)
async def test_a_fence_survives_a_restored_backup_and_what_was_lost_is_told(installation: Installation) -> None:
    gateway = installation.gateway()
    assert (await gateway.runner.ensure_open()).fresh
    assert await gateway.raised("order/5", 4) == RAISED
    backup = await installation.save()
    gateway = installation.gateway()
    assert await gateway.raised("order/5", 5) == RAISED
    assert await gateway.raised("s3/new", 1, objects=True) == RAISED
    await installation.restore(backup)
    assert await installation.tokens() == {"order/5": 4}

    opening = await installation.gateway().runner.open()
    assert {(loss.entry.resource, loss.entry.token, loss.was) for loss in opening.losses} == {
        ("order/5", Token(0, 5), "4"),
        ("s3/new", Token(0, 1), None),
    }
    assert not opening.continues
    assert opening.waits == frozenset({"s3/new"})
    assert await installation.waiting() == ["s3/new"]
    await installation.restore(backup)
    gateway = installation.gateway()
    assert await gateway.raised("order/5", 4) == STALE, "a request that finds the database closed opens it"
    assert await installation.tokens() == {"order/5": 5, "s3/new": 1}


async def test_a_restart_loses_nothing_and_nothing_waits(installation: Installation, gateway: Gateway) -> None:
    await gateway.raised("s3/new", 1, objects=True)
    await installation.restart()
    gateway.runner._database = replace(gateway.side, dead_after=lambda: DEAD_AFTER)
    async with asyncio.timeout(PATIENCE):
        opening = await gateway.runner.ensure_open()
    assert (opening.fresh, opening.continues, opening.losses) == (True, True, ())
    assert await installation.waiting() == []
    assert await gateway.raised("s3/new", 1) == HELD


async def test_a_position_tells_that_the_database_was_put_back(installation: Installation, gateway: Gateway) -> None:
    position = await gateway.side.beat()
    assert position is not None
    gateway.journal.reach(*position)
    await gateway.runner.flush()
    await installation.restart()
    assert (await gateway.runner.open()).continues
    await installation.fetch("UPDATE fencing.opening SET position = 0")
    await installation.restart()
    assert not (await gateway.runner.open()).continues


async def test_two_gateways_open_at_the_same_time(installation: Installation) -> None:
    one, other = installation.gateway(), installation.gateway()
    await asyncio.gather(one.runner.ensure_open(), other.runner.ensure_open())
    for turn in range(5):
        await installation.restart()
        openings = await asyncio.gather(*(gateway.runner.ensure_open() for gateway in (one, other, one, other)))
        assert all(opening.continues for opening in openings), turn
        raised = await asyncio.gather(one.raised("a", 2 * turn + 1), other.raised("b", 2 * turn + 1))
        assert list(raised) == [RAISED, RAISED]


class Slow:
    """A store that takes its time, so that openings overlap."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        async def later(*arguments: Any) -> Any:
            await asyncio.sleep(random.uniform(0.02, 0.1))
            return await getattr(self._store, name)(*arguments)

        return later


async def test_gateways_do_not_overtake_the_openings_of_each_other(installation: Installation) -> None:
    """A gateway opens a database again when it sees a newer marker. In an endless race, no write would succeed."""
    gateways = [installation.gateway(store=Slow(installation.store)) for _ in range(3)]

    async def write(number: int) -> None:
        for token in range(1, 6):
            while True:
                try:
                    await gateways[number].raised(f"order/{number}", token)
                except Unavailable:
                    continue
                break

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*map(write, range(3)))
    assert (await gateways[0].side.ask()).opened.term <= 4
    # Another gateway has died before it could open the database. The next one waits for it, and then goes on.
    marker = await gateways[0].journal.marker()
    await installation.restart()
    assert isinstance(marker.marker, Marker)
    assert await gateways[1].journal.create_marker(replace(marker.marker, term=9), marker.version)
    assert (await gateways[2].runner.ensure_open()).term == 10


async def test_a_server_that_was_replaced_acknowledges_no_raise(installation: Installation) -> None:
    old = installation.gateway()
    await old.runner.open()
    await old.raised("order/5", 4)
    clone = await installation.save()
    old = installation.gateway()
    await old.runner.open()
    successor = Installation(installation.server, clone, installation.store)
    new = successor.gateway()
    assert await new.raised("order/5", 6) == RAISED
    with pytest.raises(JournalUnusable, match="another server was opened") as refused:
        await old.raised("order/5", 5)
    assert refused.value.facts == {"problem": Problem.SUPERSEDED}
    assert await installation.tokens() == {"order/5": 4}, "nothing was written"
    term = (await old.side.ask()).opened.term
    assert not await old.runner.may_send("order/5", Token(0, 4), datetime.now(UTC), term)
    await successor.opened.aclose()


async def test_raises_that_come_together_share_one_append(installation: Installation, gateway: Gateway) -> None:
    at = (await gateway.side.ask()).now
    before = len(await installation.store.names(SEGMENTS))
    entries = [Entry(f"order/{number}", Token(0, 1), at) for number in range(50)]
    markers = await asyncio.gather(*(gateway.journal.append([entry]) for entry in entries))
    assert len(set(markers)) == 1
    assert len(await installation.store.names(SEGMENTS)) == before + 1
    decisions = await asyncio.gather(*(gateway.raised(f"order/{number}", 2) for number in range(50)))
    assert decisions == [RAISED] * 50


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
async def test_a_takeover_costs_two_requests_to_the_store(installation: Installation) -> None:
    gateway, double = installation.gateway(), installation.double
    assert double is not None
    await gateway.runner.open()

    async def costs(token: int) -> list[str]:
        before = len(double.requests_since(0))
        await gateway.raised("order/5", token)
        return [one.method for one in double.requests_since(0)[before:]]

    assert await costs(1) == ["PUT", "GET"]
    assert await costs(1) == [], "a token that the fence already carries costs nothing"
    assert await costs(2) == ["PUT", "GET"]


async def test_snapshots_stand_for_segments(installation: Installation, gateway: Gateway) -> None:
    backup = ""
    for number in range(1, 5):
        assert await gateway.raised("order/5", number) == RAISED
        assert await gateway.raised(f"order/{5 + number}", 1) == RAISED
        assert await gateway.journal.compact(gateway.side)
        if number == 2:
            backup = await installation.save()
            gateway = installation.gateway()
            await gateway.runner.open()
            assert not await gateway.journal.compact(gateway.side), "there is nothing new"
    assert (await gateway.side.ask()).opened.snapshot == 4
    assert gateway.journal.status.snapshot == 4
    assert len(await installation.store.names(SNAPSHOTS)) == 2
    assert len(await installation.store.names(SEGMENTS)) == 2
    await installation.restore(backup)
    opening = await installation.gateway().runner.open()
    assert {loss.entry.resource for loss in opening.losses} == {"order/5", "order/8", "order/9"}
    assert await installation.tokens() == {"order/5": 4, **{f"order/{number}": 1 for number in range(6, 10)}}


async def test_a_raise_that_was_never_committed_is_raised_by_the_next_snapshot(
    installation: Installation, gateway: Gateway
) -> None:
    """A process ended between the journal and the database. From then on, both have it."""
    server = await gateway.side.ask()
    await gateway.journal.append([Entry("order/5", Token(0, 7), server.now)])
    assert await installation.tokens() == {}
    await gateway.journal.compact(gateway.side)
    assert await installation.tokens() == {"order/5": 7}


async def test_mode_async_survives_after_its_flush(installation: Installation) -> None:
    gateway = installation.gateway(Mode.ASYNC)
    await gateway.runner.open()
    await gateway.raised("order/5", 4)
    backup = await installation.save()
    gateway = installation.gateway(Mode.ASYNC)
    await gateway.runner.open()
    await gateway.raised("order/5", 5)
    assert (gateway.journal.status.pending, gateway.journal.status.lag > 0) == (1, True)
    await gateway.runner.flush()
    assert (gateway.journal.status.pending, gateway.journal.status.lag) == (0, 0.0)
    await installation.restore(backup)
    assert await installation.gateway(Mode.ASYNC).raised("order/5", 4) == STALE


async def test_a_late_flush_of_mode_async_has_the_database_opened_again(installation: Installation) -> None:
    """The gateway that acknowledged lives, but another one has opened the restored database before its flush."""
    gateway = installation.gateway(Mode.ASYNC)
    await gateway.runner.open()
    backup = await installation.save()
    late = installation.gateway(Mode.ASYNC)
    await late.runner.open()
    await late.raised("order/5", 5)
    await installation.restore(backup)
    await installation.gateway(Mode.ASYNC).runner.open()
    assert await installation.tokens() == {}
    fresh = installation.gateway(Mode.ASYNC)
    late.runner._database = fresh.side
    await late.runner.flush()
    assert await installation.tokens() == {"order/5": 5}
    term = (await fresh.side.ask()).opened.term
    await late.runner.flush()
    assert (await fresh.side.ask()).opened.term == term, "and only once"


async def test_a_running_gateway_flushes_and_ends_with_a_flush(installation: Installation) -> None:
    gateway = installation.gateway(Mode.ASYNC)
    await gateway.runner.open()
    gateway.runner._flush_interval = 0.02
    async with gateway.runner.running():
        await gateway.raised("order/5", 1)
        async with asyncio.timeout(30):
            while len(await installation.store.names(SEGMENTS)) < 2:
                await asyncio.sleep(0.01)
        gateway.runner._flush_interval = 3600
        await gateway.raised("order/5", 2)
    await gateway.runner.close()
    installed = (await gateway.side.ask()).opened.installation
    assert installed is not None
    contents = await gateway.journal.read(installed, 0, datetime.now(UTC))
    assert isinstance(contents, Contents)
    assert contents.entries["order/5"].token == Token(0, 2)


async def test_a_running_gateway_writes_snapshots(installation: Installation) -> None:
    gateway = installation.gateway(compact_after=3)
    await gateway.runner.open()
    async with gateway.runner.running():
        for number in range(1, 8):
            await gateway.raised("order/5", number)
        async with asyncio.timeout(30):
            while (await gateway.side.ask()).opened.snapshot < 1:
                await asyncio.sleep(0.01)


async def test_a_gateway_remembers_its_own_last_raises(installation: Installation) -> None:
    gateway = installation.gateway(Mode.OFF)
    for number in (1, 2):
        await gateway.raised("order/5", number)
        await gateway.raised("order/6", number)
    assert [(one.entry.resource, one.entry.token.value) for one in gateway.runner.own_raises] == [("order/6", 2)]


async def test_mode_off_opens_by_itself(installation: Installation) -> None:
    gateway = installation.gateway(Mode.OFF)
    assert await gateway.raised("order/5", 1) == RAISED
    await installation.restart()
    assert await gateway.raised("order/5", 2) == RAISED
    async with gateway.runner.running():
        pass
    assert not await installation.store.names(SEGMENTS)


async def test_a_stronger_mode_begins_by_itself_and_a_weaker_one_does_not(installation: Installation) -> None:
    await installation.gateway(Mode.OFF).raised("order/5", 1)
    await installation.gateway(Mode.ASYNC).raised("order/5", 2)
    strong = installation.gateway(Mode.SYNC)
    await strong.raised("order/5", 3)
    for weaker in (Mode.ASYNC, Mode.OFF):
        with pytest.raises(JournalUnusable, match="promises less") as refused:
            await installation.gateway(weaker).raised("order/5", 4)
        assert refused.value.facts == {"problem": Problem.WEAKER}
    opening = await installation.gateway(Mode.OFF).runner.open(accept_loss=True)
    assert opening.accepted is not None
    with pytest.raises(JournalUnusable, match="the journal only 2"):
        await strong.raised("order/5", 4)
