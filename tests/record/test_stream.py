"""Following the record: each entry once, in order, for however many, over lost sessions and broken connections."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import httpx
import psutil
import pytest

from gateway.api import services
from gateway.api.services import StreamLimits
from gateway.db import search
from gateway.db.database import Database
from gateway.db.notifications import RECORD, listening
from gateway.db.servers import Servers
from gateway.errors import GatewayError
from gateway.fencing.record import Entry, Filters, Kind
from gateway.observe.events import ServiceUnreachable
from gateway.record.following import Follower, Subscription
from tests.record.conftest import ANN, AUDITOR, Watched, refused, unread, watched
from tests.record.entries import everything, sealed
from tests.running import Events
from tests.tiers import first
from tests.waiting import PATIENCE, end_sessions


class Stream:
    """The blocks that a client receives, without comments."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_raw()
        self._rest = b""
        self.last_id: str | None = None
        """The Last-Event-ID that a browser would send."""

    async def block(self) -> dict[str, str]:
        """The next block, which may be nothing but an id."""
        while b"\n\n" not in self._rest:
            self._rest += await anext(self._lines)
        block, _, self._rest = self._rest.partition(b"\n\n")
        fields = dict(line.split(": ", 1) for line in block.decode().split("\n") if not line.startswith(":"))
        self.last_id = fields.get("id", self.last_id)
        return fields

    async def next(self) -> dict[str, Any]:
        while "data" not in (fields := await self.block()):
            pass
        entry: dict[str, Any] = json.loads(fields["data"])
        assert fields["id"] == str(entry["position"])
        return entry

    async def positions(self, count: int) -> list[int]:
        return [(await self.next())["position"] for _ in range(count)]


@asynccontextmanager
async def streaming(
    stage: Watched, path: str = "/v1/events/stream", key: str = AUDITOR, last_id: str | None = None, **parameters: Any
) -> AsyncIterator[Stream]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with stage.client(key) as client, client.stream("GET", path, params=parameters, headers=headers) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        stream = Stream(answer)
        assert (await stream.block())["retry"] == "1000"
        yield stream


class TestWhatIsHeard:
    async def test_what_comes_from_now_on_as_the_list_has_it(self, stage: Watched) -> None:
        await sealed(stage.database, 20)
        async with streaming(stage) as events, streaming(stage, "/v1/rejections/stream") as rejections:
            assert events.last_id == "20"
            await stage.put(kind=Kind.RAISED)
            await refused(stage.database, "zombie")
            heard = [await events.next(), await events.next()]
            (listed, *_) = (await stage.get("/v1/rejections")).json()["rejections"]
            assert await rejections.next() == listed
        assert heard == (await stage.get("/v1/events", limit=2)).json()["events"][::-1]

    async def test_others_hear_of_their_own(self, stage: Watched) -> None:
        async with streaming(stage, key=ANN) as stream:
            for caller in ("bob", "ann", "bob", "ann"):
                await stage.put(caller=caller)
            assert await stream.positions(2) == [2, 4]


class TestComingBack:
    async def test_nothing_is_missed_and_nothing_comes_twice(self, stage: Watched) -> None:
        heard: list[int] = []
        last: str | None = None
        done = asyncio.Event()

        async def intake() -> None:
            for _ in range(30):
                await sealed(stage.database, 10)
            done.set()

        async with asyncio.TaskGroup() as group:
            async with streaming(stage) as stream:
                last = stream.last_id
            group.create_task(intake())
            while len(heard) < 300:
                async with streaming(stage, last_id=last, after=0) as stream:
                    heard += await stream.positions(min(23, 300 - len(heard)))
                    last = stream.last_id
        assert heard == list(range(1, 301))

    async def test_an_id_that_the_record_has_not_reached(self, stage: Watched) -> None:
        answer = await stage.get("/v1/events/stream", after=5)
        assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed")
        for headers in ({"Last-Event-ID": "x"}, {"Last-Event-ID": "-1"}):
            async with stage.client() as client:
                assert (await client.get("/v1/events/stream", headers=headers)).status_code == 400


class TestLimits:
    async def test_a_client_hears_that_it_is_still_connected_and_how_far(
        self, dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "StreamLimits", lambda: StreamLimits(heartbeat=0.05))
        async with watched(dsn) as stage, streaming(stage, kind="epoch") as stream:
            await sealed(stage.database, 7)
            while (await stream.block())["id"] != "7":
                pass

    async def test_there_is_an_end_to_how_many(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "StreamLimits", lambda: StreamLimits(most=2))
        async with watched(dsn) as stage:
            async with streaming(stage), streaming(stage, "/v1/rejections/stream"):
                answer = await stage.get("/v1/events/stream")
                assert (answer.status_code, answer.json()["code"]) == (503, "too-many-readers")
            while (status := await _status(stage)) != 200:
                assert status == 503
                await asyncio.sleep(0.02)

    async def test_writers_leave_room_for_auditors(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(services, "StreamLimits", lambda: StreamLimits(most=4))
        async with watched(dsn) as stage, AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(streaming(stage, key=ANN))
            answer = await stage.get("/v1/events/stream", key=ANN)
            assert (answer.status_code, answer.json()["code"]) == (503, "too-many-readers")
            assert "serves 3 streams" in answer.json()["detail"]
            assert await _status(stage) == 200

    async def test_a_gateway_that_stops_ends_them_at_once(self, dsn: str) -> None:
        async with watched(dsn) as stage:
            client = stage.client()
            answer = await client.send(client.build_request("GET", "/v1/events/stream"), stream=True)
            stream = Stream(answer)
            await stream.block()
        # The server has gone down, without waiting for its streams; and they have ended as they should.
        with pytest.raises(StopAsyncIteration):
            await stream.block()
        await client.aclose()

    @pytest.mark.thorough
    async def test_who_does_not_read_is_cut_off_without_holding_memory(
        self, dsn: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(services, "StreamLimits", lambda: StreamLimits(timeout=0.3, most=3))
        async with watched(dsn) as stage:
            await sealed(stage.database, 40_000)
            memory = psutil.Process().memory_info().rss
            held = [await unread(stage, "/v1/events/stream?after=0") for _ in range(3)]
            # Each of them could have some 40 MB, and takes nothing. They are gone when there is room for others.
            while await _status(stage) != 200:
                assert psutil.Process().memory_info().rss - memory < 60_000_000
                await asyncio.sleep(0.02)
            for one in held:
                one.close()


async def _status(stage: Watched) -> int:
    async with stage.client() as client, client.stream("GET", "/v1/events/stream") as answer:
        return answer.status_code


SHORTEST = 0.001
"""Seconds of the shortest timeout."""


@asynccontextmanager
async def following(database: Database, dsn: str | None = None, kept: int = 2000) -> AsyncIterator[Follower]:
    """With a ``dsn`` it hears of what is new."""
    listen = None if dsn is None else partial(listening, Servers(dsn, PATIENCE), RECORD)
    follower = Follower(database, Events(), listen, kept=kept)
    async with follower.running():
        yield follower


async def taken(subscription: Subscription, count: int) -> list[Entry]:
    found: list[Entry] = []
    while len(found) < count:
        found += await subscription.next()
    return found


@pytest.mark.parametrize("kept", first([7, 1, 2000]))
async def test_everybody_gets_everything_once_and_in_order(database: Database, dsn: str, kept: int) -> None:
    await sealed(database, 150)
    asked = [Filters(), Filters(kinds=(Kind.REJECTION,)), Filters(prefix="job/1", caller="caller-1")]
    async with following(database, dsn, kept) as follower, asyncio.TaskGroup() as group:

        async def follow(filters: Filters, after: int | None) -> None:
            async with follower.subscribed(filters, after) as subscription:
                begun.release()
                begin = subscription.position
                await written.wait()
                wanted = [e for e in await everything(database) if e.position > begin and filters.admit(e)]
                assert await taken(subscription, len(wanted)) == wanted

        begun, written = asyncio.Semaphore(0), asyncio.Event()
        for filters in asked:
            for after in (None, 0, 99, 150):
                group.create_task(follow(filters, after))
        for _ in range(12):
            await begun.acquire()
        for _ in range(10):
            await sealed(database, 30)
        written.set()


async def test_however_many_follow_it_is_read_once(
    database: Database, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, read = search.read_after, []

    async def counted(*arguments: Any) -> Sequence[Any]:
        found = await real(*arguments)
        read.append(len(found))
        return found

    monkeypatch.setattr(search, "read_after", counted)
    monkeypatch.setattr(search, "find_page", None)
    async with following(database, dsn) as follower:
        subscriptions = [follower.subscribed(Filters()) for _ in range(50)]
        opened = [await one.__aenter__() for one in subscriptions]
        first = [asyncio.ensure_future(one.next()) for one in opened]
        # Until it knows where it begins, it has nothing to hand over.
        while not read:
            await asyncio.sleep(0.01)
        await sealed(database, 100)
        await asyncio.gather(*first)
        assert sum(read) == 100
        for one in subscriptions:
            await one.__aexit__(None, None, None)


async def test_it_may_be_cancelled_at_any_time(database: Database, dsn: str) -> None:
    found: list[Entry] = []
    async with following(database, dsn, kept=20) as follower, follower.subscribed(Filters(), 0) as subscription:
        writing = asyncio.ensure_future(_write(database, 20))
        patience = SHORTEST
        while len(found) < 200:
            try:
                async with asyncio.timeout(patience):
                    found += await subscription.next()
                patience = SHORTEST
            except TimeoutError:
                # Not for ever too short: each that is cancelled takes a session along, and needs a new one.
                patience *= 1.5
        await writing
    assert [one.position for one in found] == list(range(1, 201))


async def _write(database: Database, times: int) -> None:
    for _ in range(times):
        await sealed(database, 10)


async def test_it_looks_by_itself_where_nothing_can_be_heard(database: Database) -> None:
    async with following(database) as follower, follower.subscribed(Filters()) as subscription:
        await sealed(database, 3)
        assert [one.position for one in await taken(subscription, 3)] == [1, 2, 3]


_LISTENING = """
    SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' AND state = 'idle'
"""


async def test_it_goes_on_when_its_sessions_were_lost(database: Database, dsn: str) -> None:
    events = Events()
    follower = Follower(database, events, partial(listening, Servers(dsn, PATIENCE), RECORD))
    async with follower.running(), follower.subscribed(Filters()) as subscription:
        await sealed(database, 3)
        found = await taken(subscription, 3)
        async with asyncio.timeout(PATIENCE):
            # Entries arrive without it, too. A session that is not open yet cannot be lost.
            while not await database.fetch(_LISTENING):
                await asyncio.sleep(0.01)
            await end_sessions(dsn)
            while not any(isinstance(event, ServiceUnreachable) for event in events):
                await asyncio.sleep(0.01)
        await _sealed_somehow(database, 4)
        found += await taken(subscription, 4)
    assert all(one.position + 1 == other.position for one, other in pairwise(found))


async def _sealed_somehow(database: Database, count: int) -> None:
    """The first statement of a lost session says so."""
    while True:
        try:
            await sealed(database, count)
        except GatewayError:
            continue
        return
