"""A stream has every entry once and in order, even over broken connections. A client that does not read is cut off."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import pytest_asyncio

from gateway.api import record_stream
from gateway.api.record_stream import StreamLimits
from gateway.fencing.record import Kind
from tests.record.varied import everything, sealed
from tests.record.watched import ANN, AUDITOR, HOSTILE, Watched, refused, watched


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn) as one:
        yield one


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

    async def test_from_a_position_on(self, stage: Watched) -> None:
        await sealed(stage.database, 250)
        async with streaming(stage, after=3) as stream:
            assert await stream.positions(247) == list(range(4, 251))
            await sealed(stage.database, 3)
            assert await stream.positions(3) == [251, 252, 253]

    async def test_only_what_is_asked_for(self, stage: Watched) -> None:
        asked: dict[str, Any] = {"kind": ["raised", "barrier"], "prefix": "job/1"}
        async with streaming(stage, **asked) as stream:
            await sealed(stage.database, 200)
            wanted = [
                entry.position
                for entry in await everything(stage.database)
                if entry.kind in (Kind.RAISED, Kind.BARRIER) and (entry.resource or "").startswith("job/1")
            ]
            assert await stream.positions(len(wanted)) == wanted

    async def test_others_hear_of_their_own(self, stage: Watched) -> None:
        async with streaming(stage, key=ANN) as stream:
            for caller in ("bob", "ann", "bob", "ann"):
                await stage.put(caller=caller)
            assert await stream.positions(2) == [2, 4]

    async def test_hostile_names_stay_in_their_line(self, stage: Watched) -> None:
        async with streaming(stage) as stream:
            for name in HOSTILE:
                await refused(stage.database, name)
            assert [(await stream.next())["holder"] for _ in HOSTILE] == list(HOSTILE)


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
        monkeypatch.setattr(record_stream, "StreamLimits", lambda: StreamLimits(heartbeat=0.05))
        async with watched(dsn) as stage, streaming(stage, kind="epoch") as stream:
            await sealed(stage.database, 7)
            while (await stream.block())["id"] != "7":
                pass

    async def test_there_is_an_end_to_how_many(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record_stream, "StreamLimits", lambda: StreamLimits(most=2))
        async with watched(dsn) as stage:
            async with streaming(stage), streaming(stage, "/v1/rejections/stream"):
                answer = await stage.get("/v1/events/stream")
                assert (answer.status_code, answer.json()["code"]) == (503, "too-many-readers")
            while (status := await _status(stage)) != 200:
                assert status == 503
                await asyncio.sleep(0.02)

    async def test_writers_leave_room_for_auditors(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(record_stream, "StreamLimits", lambda: StreamLimits(most=4))
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
        monkeypatch.setattr(record_stream, "StreamLimits", lambda: StreamLimits(timeout=0.3, most=3))
        async with watched(dsn) as stage:
            await sealed(stage.database, 40_000)
            memory = psutil.Process().memory_info().rss
            held = [await _unread(stage) for _ in range(3)]
            # Each of them could have some 40 MB, and takes nothing. They are gone when there is room for others.
            while await _status(stage) != 200:
                assert psutil.Process().memory_info().rss - memory < 60_000_000
                await asyncio.sleep(0.02)
            for one in held:
                one.close()


async def _status(stage: Watched) -> int:
    async with stage.client() as client, client.stream("GET", "/v1/events/stream") as answer:
        return answer.status_code


async def _unread(stage: Watched) -> socket.socket:
    """A client that asks for the whole record, and reads no more than the beginning of the answer."""
    address = urlsplit(stage.origin)
    assert address.hostname is not None
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 - the signature is the library's
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (address.hostname, address.port))
    head = f"GET /v1/events/stream?after=0 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {AUDITOR}\r\n\r\n"
    await loop.sock_sendall(client, head.encode())
    assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
    return client
