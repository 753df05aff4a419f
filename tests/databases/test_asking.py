"""Requests to each of several databases have the head of the client's request, and nothing that came after it."""

import asyncio

import orjson
from starlette.types import Receive, Scope, Send

from gateway.http.head import Head, Headers
from gateway.merged import lists
from gateway.merged.asking import Databases


async def test_trailers_of_a_request_are_no_headers_of_those_to_its_databases() -> None:
    """The body of a request may end while its databases are asked, and a server adds its trailers to the headers."""
    seen = list[Headers]()

    async def database(scope: Scope, _: Receive, send: Send) -> None:
        seen.append(Head.of(scope).headers)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    path = {"path": "/v1/events", "raw_path": b"/v1/events", "query_string": b""}
    scope: Scope = {"type": "http", "method": "GET", **path, "headers": [(b"apikey", b"own")], "state": {}}
    databases = Databases({"north": database}, scope, lambda: False, lambda _: "north")
    Head.of(scope)
    scope["headers"].append((b"sec-fetch-site", b"same-origin"))
    await databases.ask("north", [])
    assert seen == [((b"apikey", b"own"),)]


async def test_a_slower_database_is_not_cancelled_once_another_one_has_the_entry() -> None:
    """To cancel a query would end its session."""
    ended, finish = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def answer(send: Send, status: int, body: bytes) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def fast(_: Scope, __: Receive, send: Send) -> None:
        await answer(send, 200, b'{"id": "x"}')

    async def slow(_: Scope, __: Receive, send: Send) -> None:
        try:
            await finish.wait()
            await answer(send, 404, b"{}")
            ended.set_result("by itself")
        except asyncio.CancelledError:
            ended.set_result("cancelled")
            raise

    path = {"path": "/v1/events/x", "raw_path": b"/v1/events/x", "query_string": b""}
    scope: Scope = {"type": "http", "method": "GET", **path, "headers": [], "state": {}}
    databases = Databases({"slow": slow, "fast": fast}, scope, lambda: False, lambda _: "fast")
    found = await lists.read(databases, [], "/v1/events/x")
    assert orjson.loads(found.body) == {"database": "fast", "id": "x"}
    finish.set()
    assert await ended == "by itself"
