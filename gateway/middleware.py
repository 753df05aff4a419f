"""Around everything: a request id, the client's address, and an answer even where the gateway itself has failed."""

from collections.abc import Iterable
from itertools import count
from secrets import token_hex
from typing import Any, TypeAlias

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.observe.events import Observe, RequestFailed

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

REQUEST_ID = b"x-request-id"


class Middleware:
    """Plain ASGI. Puts ``request_id`` and ``client`` into ``scope["state"]``; answers carry ``X-Request-Id``."""

    def __init__(self, app: ASGIApp, observe: Observe) -> None:
        self._app = app
        self._observe = observe
        # Unique, not secret: what this process starts with, and a count. Asking the system for each would cost more.
        self._prefix = token_hex(8)
        self._count = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"{self._prefix}{next(self._count):016x}"
        identity = (REQUEST_ID, request_id.encode())
        client = scope.get("client")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client"] = client[0] if client else None
        started = False

        async def identified(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), identity]
            await send(message)

        try:
            if any(name == b"expect" for name, _ in scope["headers"]):
                receive, send = _unless_held_back(scope["headers"], receive, send)
            await self._app(scope, receive, identified)
        except Exception as error:
            self._observe(RequestFailed(request_id, scope["method"], scope["path"], error))
            if started:
                raise
            await answer_problem(GatewayError("Something went wrong inside the gateway."), identified)


def _unless_held_back(headers: Headers, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """The same, but closing the connection behind an answer to a client that was not asked for its body.

    A client that waits for 100 Continue and gets an answer instead keeps its body to itself. What it sends next on this
    connection would be taken for that body, so there must be no next.
    """
    holds_back = (b"expect", b"100-continue") in ((name, value.lower()) for name, value in headers)

    async def asking() -> Message:
        nonlocal holds_back
        holds_back = False
        return await receive()

    async def closing(message: Message) -> None:
        if holds_back and message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
        await send(message)

    return asking, closing


async def answer_problem(error: GatewayError, send: Send) -> None:
    """Answer with RFC 9457 problem JSON."""
    body = orjson.dumps(problem(error))
    headers = [(b"content-type", b"application/problem+json"), (b"content-length", str(len(body)).encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def problem(error: GatewayError) -> dict[str, Any]:
    """The error as a problem document; its facts are members of their own."""
    return {
        **{name.replace("-", "_"): fact for name, fact in error.facts.items()},
        "type": f"urn:fencing-gateway:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "advice": error.advice,
    }
