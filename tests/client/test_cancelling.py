"""A request or a step may be cancelled at any moment: nothing stays open or half done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
import pytest

from gateway.client import FencedClient, client
from gateway.client.cancellation import MOST, Remembered, cancellable, whole
from tests.client.stage import Counter
from tests.tiers import first
from tests.waiting import PATIENCE

CONNECTIONS = 5


class Service:
    """Answers ``/together`` once it is asked for over all connections, and ``/never`` never."""

    def __init__(self) -> None:
        self.connected = self.most = 0
        self._together = asyncio.Barrier(CONNECTIONS)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        self.most = max(self.most, self.connected)
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                if request.startswith(b"GET /never"):
                    continue
                if request.startswith(b"GET /together"):
                    await self._together.wait()
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 36\r\n\r\n{"resource": "job/1", "token": null}')
        except asyncio.IncompleteReadError:
            pass
        finally:
            self.connected -= 1
            writer.close()

    async def left_by_all_but(self, few: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.connected > few:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Service, str]]:
    service = Service()
    server = await asyncio.start_server(service, "127.0.0.1", 0)
    try:
        yield service, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await service.left_by_all_but(0)


@pytest.mark.parametrize("after", first(range(8)), ids=lambda turns: f"after {turns} turns")
@pytest.mark.parametrize("kind", ["api", "lock"])
async def test_connections_that_were_to_be_closed_are(
    counter: Counter, monkeypatch: pytest.MonkeyPatch, kind: str, after: int
) -> None:
    unused = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=0.02)
    monkeypatch.setattr(client, "LIMITS", unused)
    async with (
        serving() as (service, origin),
        FencedClient(origin) as fenced,
        fenced.lock("job/1", source=counter, barrier=False) as lock,
    ):
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(lock.http.get("/together"))
        # On a busy machine some have expired by now, and are closed.
        assert service.most == CONNECTIONS
        await asyncio.sleep(0.05)
        asking = asyncio.create_task(fenced._api.ask("GET", "/never") if kind == "api" else lock.http.get("/never"))
        for _ in range(after):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await lock.http.get("/at-once")
        await service.left_by_all_but(1)


class Body(httpx.AsyncByteStream):
    """Knows how often it was handed out and not closed."""

    handed_out = 0
    open = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""

    async def aclose(self) -> None:
        self.open -= 1


async def never() -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def test_an_answer_that_comes_when_nobody_wants_it_any_more_is_closed() -> None:
    body = Body()

    async def answered() -> httpx.Response:
        body.handed_out += 1
        body.open += 1
        return httpx.Response(200, stream=body)

    for after in range(5):
        asking = asyncio.create_task(cancellable(answered))
        for _ in range(after):
            await asyncio.sleep(0)
        if asking.cancel():
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            await (await asking).aclose()
        assert body.open == 0
    assert body.handed_out > 1


async def test_a_scope_that_is_cancelled_ends_it() -> None:
    with anyio.move_on_after(0.01) as scope:
        await cancellable(never)
    assert scope.cancelled_caught


# Steps that are carried out whole, whichever task cancels them, and by whichever library.


async def test_a_step_ends_before_its_cancellation_is_felt() -> None:
    gate, done = asyncio.Event(), []

    async def step() -> None:
        await gate.wait()
        done.append(True)

    task = asyncio.create_task(whole(step()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done


async def test_a_step_that_fails_while_it_is_cancelled_is_cancelled() -> None:
    gate = asyncio.Event()

    async def step() -> None:
        await gate.wait()
        raise ValueError

    task = asyncio.create_task(whole(step()))
    await asyncio.sleep(0)
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_scope_of_anyio_lets_the_step_end_and_then_leaves() -> None:
    done = []

    async def step() -> None:
        await asyncio.sleep(0.02)
        done.append(True)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await whole(step())
        assert done
        await anyio.sleep(10)
    assert scope.cancelled_caught


def test_only_so_much_is_remembered() -> None:
    remembered: Remembered[int, str] = Remembered()
    for number in range(MOST + 1):
        remembered[number] = "x"
    assert remembered.get(0) is None
    assert remembered.take(1) == "x"
    assert remembered.take(1) is None
