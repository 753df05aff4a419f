"""Bodies cost nothing before their caller is known, and a bounded amount of time and memory afterwards."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import BaseRoute

from gateway import app
from gateway.api.requests import MAX_BODY
from gateway.errors import Unavailable
from gateway.http.body import SMALL, Body, BodyReader, Memory, Pace
from gateway.http.middleware import Middleware
from gateway.observe.events import RequestFailed
from gateway.observe.telemetry import Observability
from tests.postgres import Server, fresh
from tests.running import API_KEY, Events, config
from tests.serving_app import served
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")
MEBIBYTE = 1024 * 1024
KEY = f"Authorization: Bearer {API_KEY}"
JSON = "Content-Type: application/json"
TABLE = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint, extra jsonb); INSERT INTO accounts VALUES (1, 0)"
UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}


class Stage:
    """One gateway behind a socket, and what it has announced."""

    def __init__(self, gateway: app.Gateway, port: int, events: Events) -> None:
        self.gateway, self.port, self.events = gateway, port, events

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of each route of the fencing API that takes a body, from its own route table."""
        return sorted(_with_body(self.gateway._first.api.router.routes))

    @property
    def memory(self) -> int:
        return self.gateway._bodies[0].memory.used


def _with_body(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if isinstance(route, APIRoute) and (route.body_field or "requestBody" in (route.openapi_extra or {})):
            path = route.path.replace("{resource:path}", "order/5")
            path = re.sub(r"\{lease\}", "01890000-0000-7000-8000-000000000000", path)
            yield from ((method, re.sub(r"\{\w+(:\w+)?\}", "x", path)) for method in (route.methods or set()) & UNSAFE)


@pytest.fixture(scope="module")
def database_of_stage(postgres_server: Server) -> Iterator[str]:
    with fresh(postgres_server) as dsn:
        yield dsn


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(database_of_stage: str) -> AsyncIterator[Stage]:
    connection = await asyncpg.connect(database_of_stage)
    await connection.execute(TABLE)
    await connection.close()
    events = Events()
    caller = {"name": "writer", "groups": ["admins"], "api_key": API_KEY}
    settings = config(database_of_stage, callers=[caller], server={"body_timeout": PATIENCE, "memory": 8 * MEBIBYTE})
    gateway = app.Gateway(settings, Observability(settings, events))
    async with served(Middleware(gateway, events)) as port:
        yield Stage(gateway, port, events)
    await gateway._first._database.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway waits half a second for a body. Only for those that do not come: others may take longer."""
    pace = Pace(idle=0.5, grace=0.5)
    monkeypatch.setattr(BodyReader, "of", lambda reader, scope, receive: Body(scope, receive, pace, reader.memory))


@pytest.fixture(autouse=True)
def _nothing_is_left(stage: Stage) -> Iterator[None]:
    yield
    assert stage.memory == 0
    assert not [event for event in stage.events if isinstance(event, RequestFailed)]


async def ask(stage: Stage, method: str, path: str, headers: list[str], *pieces: bytes) -> tuple[int, Any]:
    """Send a head and pieces of a body, and nothing after them; return the status and the document of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write("\r\n".join([f"{method} {path} HTTP/1.1", "Host: gateway", *headers, "", ""]).encode())
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
    finally:
        writer.close()
    return int(head.split()[1]), json.loads(body) if body.startswith(b"{") else body


CHUNKED = "Transfer-Encoding: chunked"
HALF = [
    pytest.param(["Content-Length: 1000"], [b'{"token": '], id="half sent"),
    pytest.param([f"Content-Length: {100 * MEBIBYTE}"], [b"[" * 1000], id="100 MiB announced"),
    pytest.param([CHUNKED], [b"5\r\n[[[[["], id="chunked"),
]


@pytest.mark.parametrize(("headers", "pieces"), HALF)
async def test_no_route_waits_for_the_body_of_an_unknown_caller(
    stage: Stage, headers: list[str], pieces: list[bytes]
) -> None:
    tables = [("PATCH", "/v1/tables/accounts?id=eq.1"), ("POST", "/v1/tables/accounts"), ("POST", "/v1/tables/rpc/x")]
    assert len(stage.routes) > 5
    for method, path in [*stage.routes, *tables]:
        for proof in ([], ["Authorization: Bearer wrong"]):
            status, document = await ask(stage, method, path, [JSON, *proof, *headers], *pieces)
            assert status == 401, (method, path, document)


@pytest.mark.usefixtures("impatient")
async def test_every_route_ends_the_wait_for_a_body(stage: Stage) -> None:
    async def half(method: str, path: str) -> None:
        headers = [KEY, JSON, "Fencing-Token: 5", "Fencing-Resource: order/5", "Content-Length: 1000"]
        status, document = await ask(stage, method, path, headers, b'{"token": ')
        assert (status, document["code"]) == (408, "body-too-slow"), (method, path, document)

    tables = [("PATCH", "/v1/tables/accounts?id=eq.1"), ("POST", "/v1/tables/accounts")]
    async with asyncio.TaskGroup() as tasks:
        for method, path in [*stage.routes, *tables]:
            tasks.create_task(half(method, path))


@pytest.mark.usefixtures("impatient")
async def test_a_body_that_trickles_is_cut_off(stage: Stage) -> None:
    """Each byte is in time; the lowest rate ends it all the same."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    head = [f"POST /v1/tables/accounts HTTP/1.1\r\nHost: gateway\r\n{KEY}", JSON, "Fencing-Token: 5"]
    writer.write("\r\n".join([*head, "Content-Length: 100000", "", ""]).encode())
    async with asyncio.timeout(PATIENCE):
        answer = asyncio.create_task(reader.readline())
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(0.05)
    writer.close()
    assert answer.result().split()[1] == b"408"


async def test_every_route_of_the_api_has_a_limit(stage: Stage) -> None:
    larger = {"/v1/leases": 1024 * 1024, "/v1/transaction": 64 * MEBIBYTE}
    for method, path in stage.routes:
        limit = larger.get(path, MAX_BODY)
        status, document = await ask(stage, method, path, [KEY, JSON, f"Content-Length: {limit + 1}"])
        assert (status, document["code"]) == (413, "body-too-large"), (method, path)
        if limit == MAX_BODY:
            chunk = b"%x\r\n%s\r\n" % (32_768, b" " * 32_768)
            status, document = await ask(stage, method, path, [KEY, JSON, CHUNKED], chunk, chunk, chunk)
            assert (status, document["code"]) == (413, "body-too-large"), (method, path)


@pytest.mark.usefixtures("impatient")
async def test_the_login_reads_little_and_not_for_long(stage: Stage) -> None:
    form = ["Origin: http://gateway", "Content-Type: application/x-www-form-urlencoded"]
    assert (await ask(stage, "POST", "/ui/login", [*form, "Content-Length: 1000"], b"api_key="))[0] == 408
    assert (await ask(stage, "POST", "/ui/login", [*form, f"Content-Length: {100 * MEBIBYTE}"], b"api_key="))[0] == 400


DEEP = [
    pytest.param(b"[" * 60_000, id="lists in lists"),
    pytest.param(b'{"a":' * 10_000, id="objects in objects"),
    pytest.param(b"[" + b"[]," * 20_000 + b"[]]", id="tiny lists"),
    pytest.param(b"{" + b",".join(b'"%d":1' % number for number in range(6_000)) + b"}", id="unknown members"),
]


@pytest.mark.parametrize("body", DEEP)
async def test_every_route_refuses_what_is_deep_or_has_too_many_parts(stage: Stage, body: bytes) -> None:
    for method, path in [*stage.routes, ("POST", "/v1/tables/accounts")]:
        headers = [KEY, JSON, "Fencing-Token: 5", "Fencing-Resource: order/5", f"Content-Length: {len(body)}"]
        status, document = await ask(stage, method, path, headers, body)
        assert status in (400, 413, 422), (method, path, document)
        assert len(json.dumps(document)) < 10_000


async def test_no_body_of_the_api_has_more_values_than_are_validated_in_a_moment(stage: Stage) -> None:
    """Each of the values can be a mistake, and the models list every one of them before an answer is made."""
    lease = "01890000-0000-7000-8000-000000000000"
    renewals = {"leases": [{"resource": f"order/{number}", "lease": lease, "ttl": 30} for number in range(1000)]}
    entry = b"{" + b",".join(b'"%d":0' % number for number in range(60_000)) + b"}"
    head = [KEY, JSON]

    status, _ = await ask(stage, "PUT", "/v1/leases", head + _length(most := json.dumps(renewals).encode()), most)
    assert status == 200

    for body in (entry, b'{"leases":[' + entry + b"]}"):
        status, document = await ask(stage, "PUT", "/v1/leases", head + _length(body), body)
        assert (status, document["code"]) == (413, "body-too-large"), document


def _length(body: bytes) -> list[str]:
    return [f"Content-Length: {len(body)}"]


# A body of so many bytes takes twice as many while it is put together.
BODY = 10
ROOM = 2 * BODY


class Holder:
    """A task that asks for room, and keeps it until it is told to leave."""

    def __init__(self, memory: Memory, size: int = BODY) -> None:
        self.size = size
        self._memory = memory
        self.leaving = asyncio.Event()
        self.inside = False
        self.task = asyncio.ensure_future(self._hold())

    async def _hold(self) -> None:
        async with self._memory.reserved(self.size):
            self.inside = True
            try:
                await self.leaving.wait()
            finally:
                self.inside = False

    async def leave(self) -> None:
        self.leaving.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def settled() -> None:
    """Let everything happen that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def assert_all_there(memory: Memory, bodies: int) -> None:
    """As many bodies as there were at first have room again, and no more than those."""
    holders = [Holder(memory) for _ in range(bodies + 1)]
    await settled()
    assert [holder.inside for holder in holders] == [True] * bodies + [False]
    for holder in holders:
        await holder.cancel()


async def test_a_body_that_is_there_already_gets_room_at_once_or_none() -> None:
    memory = Memory(3 * SMALL)
    with memory.at_once(2 * SMALL), memory.at_once(SMALL):
        assert memory.used == 2 * SMALL, "a small one needs no room"
        with pytest.raises(Unavailable), memory.at_once(2 * SMALL):
            pass
        waiting = Holder(memory, SMALL)
        await settled()
        assert not waiting.inside
        with pytest.raises(Unavailable), memory.at_once(SMALL + 1):
            pass  # there is room, and it is the turn of the waiting one
    await waiting.leave()
    assert memory.used == 0


async def test_a_small_one_does_not_overtake_a_large_one() -> None:
    """Else a stream of small bodies would keep a large one waiting for ever."""
    memory = Memory(4 * ROOM)
    first = Holder(memory, 3 * BODY)
    large, small = Holder(memory, 2 * BODY), Holder(memory, BODY)
    await settled()
    assert (first.inside, large.inside, small.inside) == (True, False, False), "there is room for the small one"
    await first.leave()
    await settled()
    assert (large.inside, small.inside) == (True, True)
    await large.leave()
    await small.leave()
    await assert_all_there(memory, 4)


async def test_one_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    """The large one is in the way of the small one, for which there is room as soon as it is gone."""
    memory = Memory(2 * ROOM)
    first, large, small = Holder(memory), Holder(memory, 2 * BODY), Holder(memory)
    await settled()
    assert (large.inside, small.inside) == (False, False)
    await large.cancel()
    await settled()
    assert small.inside
    await first.leave()
    await small.leave()
    await assert_all_there(memory, 2)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 5 * BODY)),
            st.tuples(st.sampled_from(["leave", "cancel"]), st.integers(0, 20)),
            st.tuples(st.just("settle"), st.just(0)),
        ),
        max_size=40,
    )
)
async def test_whatever_happens_nothing_is_lost_and_nothing_exceeded(story: list[tuple[str, int]]) -> None:
    budget = 3 * ROOM
    memory = Memory(budget)
    holders: list[Holder] = []
    for deed, number in story:
        if deed == "ask":
            holders.append(Holder(memory, number))
        elif deed == "settle":
            await settled()
        elif holders:
            chosen = holders[number % len(holders)]
            if deed == "leave":
                chosen.leaving.set()
            else:
                chosen.task.cancel()
        inside = sum(min(2 * each.size, budget) for each in holders if each.inside)
        assert inside <= budget
    for each in holders:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in holders), return_exceptions=True)
    await assert_all_there(memory, 3)
