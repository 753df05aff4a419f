"""Requests to each of several databases have the head of the client's request, and nothing that came after it."""

from starlette.types import Receive, Scope, Send

from gateway.http.head import Head, Headers
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
