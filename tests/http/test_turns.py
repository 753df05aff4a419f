"""While a caller with credentials is served, strangers have their share of the event loop's time, and no more."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, TypeAlias

import pytest

from gateway.fencing.record import ANONYMOUS
from gateway.http import turns
from gateway.http.connection import Connection
from gateway.http.middleware import Middleware
from gateway.http.turns import Turns
from gateway.observe.events import ignore
from tests.serving_app import served
from tests.waiting import PATIENCE

COST = 0.02
"""Seconds of the loop that a request of a stranger takes."""
CROWD = 12


Ask: TypeAlias = Callable[..., Awaitable[bytes]]
"""Asks once, as the caller that is named, and returns the head of the answer."""


class Stage:
    """A server whose callers name themselves. Requests of strangers take their time of the loop."""

    def __init__(self) -> None:
        self.middleware = Middleware(self._answer, ignore)
        self.answered: list[str] = []
        self.port = 0

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        name = scope["path"].strip("/")
        scope["state"]["caller"] = name
        await asyncio.sleep(0)
        if name == ANONYMOUS:
            end = perf_counter() + COST
            while perf_counter() < end:
                pass
        self.answered.append(name)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    @asynccontextmanager
    async def connection(self, name: str, address: str = "127.0.0.1", key: str = "") -> AsyncIterator[Ask]:
        """Yield a function that asks once, and returns the head of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(address, 0))

        async def ask(name: str = name) -> bytes:
            proof = key or ("" if name == ANONYMOUS else f"of-{name}")
            shown = f"Authorization: Bearer {proof}\r\n" if proof else ""
            writer.write(f"GET /{name} HTTP/1.1\r\nHost: a\r\n{shown}\r\n".encode())
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
                return head + await reader.readexactly(length)

        try:
            yield ask
        finally:
            writer.close()

    async def crowd(self, address: str = "127.0.0.1", number: int = CROWD, key: str = "") -> list[bytes]:
        """Let so many strangers ask once each, all at one time."""

        async def one() -> bytes:
            async with self.connection(ANONYMOUS, address, key) as ask:
                return await ask()

        return await asyncio.gather(*(one() for _ in range(number)))


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    one = Stage()
    async with served(one.middleware) as one.port:
        yield one


async def beside(ask: Ask, crowd: Awaitable[list[bytes]]) -> list[bytes]:
    """Let a caller ask again and again until all of a crowd are answered."""
    answers = asyncio.ensure_future(crowd)
    while not answers.done():
        await ask()
    return await answers


def parts(answered: list[str]) -> tuple[float, int]:
    """Return the answers to a named caller for each one to a stranger, and the most answers to strangers in a row."""
    strangers = answered.count(ANONYMOUS)
    rows = "".join("s" if name == ANONYMOUS else " " for name in answered).split()
    return (len(answered) - strangers) / strangers, max(map(len, rows))


@pytest.mark.parametrize("key", ["", "that proves nothing"])
async def test_strangers_wait_for_their_turn_while_a_named_caller_is_served(stage: Stage, key: str) -> None:
    async with stage.connection("ann") as ask:
        await ask()
        await beside(ask, stage.crowd(key=key))
    served_for_each, in_a_row = parts(stage.answered)
    assert served_for_each > 3
    # A network has three at once. Others may begin between two requests of the caller, on a busy machine.
    assert in_a_row <= 2 * 3


async def test_without_a_named_caller_or_a_limit_nothing_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(stage.middleware.turns, "_go_on", waited.append)
    await stage.crowd()
    stage.middleware.turns.share = 1
    async with stage.connection("ann") as ask:
        await ask()
        await beside(ask, stage.crowd())
    assert waited == []


async def test_proven_credentials_wait_for_nothing_on_a_new_connection(stage: Stage) -> None:
    """Behind a proxy, each request may have its own connection, and all have one address."""
    async with stage.connection("ann") as ask:
        await ask()
        crowd = asyncio.ensure_future(beside(ask, stage.crowd(number=30)))
        for _ in range(10):
            async with stage.connection("ben", key="of-ben") as once:
                await once()
        assert stage.answered.count(ANONYMOUS) < 15
        await crowd


async def test_named_callers_come_as_fast_as_they_are_proven(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_FIRST", 1.0)
    async with stage.connection("ann") as ask, asyncio.TaskGroup() as tasks:
        await ask()

        async def once(number: int) -> None:
            async with stage.connection("ben", key=f"of-ben-{number}") as first:
                assert b" 204 " in await first()

        for number in range(200):
            tasks.create_task(once(number))
        while stage.answered.count("ben") < 200:
            await ask()
    assert not any(stage.middleware.turns._lines["127.0.0.1"].waiting), "each would have taken four seconds"


async def test_a_request_that_has_begun_without_a_task_is_never_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have written already."""
    monkeypatch.setattr(turns, "PATIENCE", 0.0)
    begun = Middleware.__call__
    marked: list[str] = []

    async def mark(self: Middleware, scope: Any, receive: Any, send: Any) -> None:
        marked.append(scope.get("state", {}).get("overloaded", "on time"))
        await begun(self, scope, receive, send)

    monkeypatch.setattr(Middleware, "__call__", mark)
    started = Connection.on_message_begin

    def hand_over(self: Connection) -> None:
        self._handed_over = {"arrival": (stage._answer, perf_counter(), "of-a-test")}
        started(self)

    async with stage.connection("ann") as ask:
        await ask()
        monkeypatch.setattr(Connection, "on_message_begin", hand_over)
        marked.clear()
        await beside(ask, stage.crowd())
    assert set(marked) == {"on time"}


async def test_a_long_request_keeps_no_other_one_waiting_beyond_the_patience(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 10 * COST)
    line = stage.middleware.turns._line("127.0.0.1")
    stage.middleware.turns.named = perf_counter()
    stage.middleware.turns.take(line, 60.0, perf_counter())
    async with stage.connection("ann") as ask:
        await ask()
        answers = await beside(ask, stage.crowd(number=3))
    assert len(answers) == 3


async def test_a_stranger_on_the_connection_of_a_named_caller_waits_as_others_do(stage: Stage) -> None:
    """A proxy may send the requests of many callers on one connection."""
    line = stage.middleware.turns._line("127.0.0.1")
    async with stage.connection("ann") as ask, stage.connection("ben") as shared:
        await ask()
        await shared()
        stage.middleware.turns.take(line, 2 * COST, perf_counter())
        before = len(stage.answered)
        late = asyncio.ensure_future(shared(ANONYMOUS))
        while not late.done():
            await ask()
    assert stage.answered[before:].count("ann") > 3


async def test_a_stranger_of_another_network_has_its_own_line(stage: Stage) -> None:
    async with stage.connection("ann") as ask, stage.connection(ANONYMOUS, "127.0.0.2") as modest:
        await ask()
        crowd = asyncio.ensure_future(beside(ask, stage.crowd(number=30)))
        await asyncio.sleep(5 * COST)
        await modest()
        assert stage.answered.count(ANONYMOUS) < 30
        await crowd


async def test_one_that_would_wait_too_long_is_refused_with_the_reason(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PATIENCE", 10 * COST)
    async with stage.connection("ann") as ask:
        await ask()
        answers = await beside(ask, stage.crowd(number=30))
    late = [one for one in answers if b" 503 " in one]
    assert 0 < len(late) < 30
    assert b"retry-after: 1" in late[0]
    assert b"The time that all anonymous callers at 127.0.0.1 may take is in use." in late[0]


async def test_one_that_hangs_up_while_it_waits_gives_its_place_back(stage: Stage) -> None:
    async with stage.connection("ann") as ask:
        await ask()
        waiting = [asyncio.create_task(stage.crowd(number=1)) for _ in range(CROWD)]
        for _ in range(5):
            await ask()
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await beside(ask, stage.crowd(number=1))
    assert stage.answered.count(ANONYMOUS) < CROWD


async def test_time_without_a_limit_is_no_debt(stage: Stage) -> None:
    await stage.crowd(number=30)
    async with stage.connection("ann") as ask:
        await ask()
        stage.answered.clear()
        await beside(ask, stage.crowd(number=1))
    assert len(stage.answered) < 100


async def test_a_map_of_networks_does_not_grow() -> None:
    line = Turns()
    for number in range(2 * turns._MOST_NETWORKS):
        line.enter(f"2001:db8:{number:x}::1", (), lambda turn, _: turn.end())
    assert len(line._lines) <= turns._MOST_NETWORKS
