"""Bodies cost nothing before their caller is known, and a bounded amount of time and memory afterwards."""

import asyncio
import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp

from gateway import app
from gateway.api import ROUTES
from gateway.api.routes import MAX_BODY, Route
from gateway.budget import CALLER, Budget, Caller, one_request
from gateway.errors import GatewayError
from gateway.http.body import SMALL, Body, BodyReader, Pace, WholeAnswers
from gateway.http.middleware import Middleware, refusing
from gateway.observe.events import RequestFailed
from gateway.observe.telemetry import Observability
from tests.postgres import Server, fresh
from tests.running import API_KEY, GRANTS, Events, config
from tests.serving_app import served
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")
MEBIBYTE = 1024 * 1024
KEY = f"Authorization: Bearer {API_KEY}"
JSON = "Content-Type: application/json"
TABLE = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint, extra jsonb); INSERT INTO accounts VALUES (1, 0)"
IDLE = "a-key-without-any-grant"
UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}


class Stage:
    """One gateway behind a socket, and what it has announced."""

    def __init__(self, gateway: app.Gateway, port: int, events: Events) -> None:
        self.gateway, self.port, self.events = gateway, port, events

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path of each route of the fencing API that takes a body, from its own route table."""
        return sorted(_with_body(ROUTES))

    @property
    def memory(self) -> int:
        return self.gateway._bodies[0].memory.used


def _with_body(routes: Iterable[Route]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if route.body or route.reads:
            path = route.path.replace("{resource:path}", "order/5")
            path = re.sub(r"\{(lease|id)\}", "01890000-0000-7000-8000-000000000000", path)
            yield route.method, re.sub(r"\{\w+\}", "x", path)


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
    callers = [{"name": "writer", "groups": ["admins"], "api_key": API_KEY}, {"name": "idle", "api_key": IDLE}]
    grants = [one for one in GRANTS if one["callers"] == ["group:admins"]]
    server, limits = {"memory": 8 * MEBIBYTE}, {"body_timeout": PATIENCE}
    settings = config(database_of_stage, callers=callers, grants=grants, server=server, limits=limits)
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
async def test_no_route_waits_for_the_body_of_a_caller_without_grants(
    stage: Stage, headers: list[str], pieces: list[bytes]
) -> None:
    tables = [("PATCH", "/v1/tables/accounts?id=eq.1"), ("POST", "/v1/tables/accounts"), ("POST", "/v1/tables/rpc/x")]
    known = [KEY, JSON, "Fencing-Token: 5", "Content-Length: 13"]
    for _ in range(2):  # the next request has a known form
        assert (await ask(stage, *tables[0], known, b'{"balance":1}'))[0] == 204
    assert len(stage.routes) > 5
    for method, path in [*stage.routes, *tables]:
        for proof, expected in (([], 401), (["Authorization: Bearer wrong"], 401), ([f"apikey: {IDLE}"], 403)):
            head = [JSON, "Fencing-Token: 5", *proof, *headers]
            status, document = await ask(stage, method, path, head, *pieces)
            assert status == expected, (method, path, document)


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


async def test_only_an_answer_to_a_request_that_changes_nothing_is_refused_for_want_of_memory() -> None:
    """The answer to any other one must not say that nothing has happened."""
    memory = Budget(MEBIBYTE, "bytes of memory")
    CALLER.set(Caller("ann"))
    held = memory.take_now(memory.most())

    async def refuse(_: object, error: Exception) -> ASGIApp:
        assert isinstance(error, GatewayError)
        return refusing(error)

    answers = WholeAnswers(PlainTextResponse("x" * 2 * SMALL), memory, refuse)

    async def answering(*arguments: Any) -> None:
        CALLER.set(Caller("ann"))
        arguments[0]["state"] = {}
        await answers(*arguments)

    async def serving(*arguments: Any) -> None:
        await one_request(answering(*arguments))

    async with httpx.AsyncClient(transport=httpx.ASGITransport(serving), base_url="http://gateway") as client:
        found = {method: (await client.request(method, "/")).status_code for method in ("GET", "POST", "PUT", "DELETE")}
        assert found == {"GET": 503, "POST": 200, "PUT": 200, "DELETE": 200}
        memory.give(held)
        assert (await client.get("/")).status_code == 200


def _csv_with_a_long_name() -> bytes:
    return b"id," + b"a" * 20_000 + b"\n" + b"1,\n" * 10_000


HUNGRY = [
    pytest.param(
        "json", b"[" + b'{"id":1,"extra":[[],[],[],[],[],[],[],[]]},' * 20_000 + b'{"id":1,"extra":0}]', id="tiny lists"
    ),
    pytest.param(
        "json", b"[" + b'{"id":1,"extra":{"":{},"a":{}}},' * 25_000 + b'{"id":1,"extra":0}]', id="tiny objects"
    ),
    pytest.param("csv", b"id,extra\n" + b"1,\n" * 30_000, id="short lines"),
    pytest.param("csv", _csv_with_a_long_name(), id="a long name in each row"),
]


@pytest.mark.parametrize(("kind", "body"), HUNGRY)
async def test_a_body_of_tiny_values_takes_no_more_than_the_share_of_its_caller(
    stage: Stage, kind: str, body: bytes
) -> None:
    """The values are looked at piece by piece: of them, no more than those of one piece are there at one time."""
    share, one_piece = stage.gateway._bodies[0].memory.size // 4, 128 * 1024 * 45
    media = {"json": JSON, "csv": "Content-Type: text/csv"}[kind]
    head = [KEY, media, "Fencing-Token: 5", "Fencing-Resource: order/5", *_length(body)]
    await ask(stage, "POST", "/v1/tables/accounts", [*head[:-1], "Content-Length: 2"], b"{}")
    tracemalloc.start()
    try:
        status, document = await ask(stage, "POST", "/v1/tables/accounts", head, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert status in (400, 409, 413), document
    assert peak < share + one_piece
