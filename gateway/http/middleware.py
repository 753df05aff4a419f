"""The outermost layer: a request id, the client's address, and an answer even if the gateway itself fails."""

import re
from collections.abc import Iterable
from itertools import count
from secrets import token_hex
from time import perf_counter
from typing import Any, TypeAlias

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.http.head import Head
from gateway.observe import stages
from gateway.observe.events import Observe, RequestAnswered, RequestFailed

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

REQUEST_ID = b"x-request-id"

# The request ids that a client may choose. The gateway only logs them.
_SANE = re.compile(rb"[!-~]{1,128}")


class Middleware:
    """Plain ASGI. Puts ``request_id`` and ``client`` into ``scope["state"]``; answers carry ``X-Request-Id``.

    ``app`` may be replaced while requests run. ``lifespan`` starts and ends everything; without it the app does.
    The serving app adds ``area``, ``caller`` and ``code`` for observers, and ``path`` if the real one has a secret.
    """

    def __init__(self, app: ASGIApp, observe: Observe, lifespan: ASGIApp | None = None) -> None:
        self.app = app
        self._lifespan = lifespan or app
        self._observe = observe
        # Unique, not secret: a random prefix of this process, and a count. A random id per request would cost more.
        self._prefix = token_hex(8)
        self._count = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        began = perf_counter()
        request_id = f"{self._prefix}{next(self._count):016x}"
        stages.REQUEST_ID.set(request_id)
        identity = (REQUEST_ID, request_id.encode())
        client = scope.get("client")
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["client"] = client[0] if client else None
        expects, theirs = False, None
        head = Head.of(scope)
        for name, value in head.headers:
            if name == b"expect":
                expects = True
            elif name == REQUEST_ID:
                theirs = value
        status = sent = 0

        async def identified(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), identity]
            else:
                sent += len(message.get("body", b""))
            await send(message)

        try:
            if expects:
                receive, send = _unless_held_back(head.headers, receive, send)
            await self.app(scope, receive, identified)
        except Exception as error:
            self._observe(RequestFailed(request_id, head.method, state.get("path", head.path), error))
            state["code"] = GatewayError.code
            if status:
                raise
            await answer_problem(GatewayError("Something went wrong inside the gateway."), identified)
        finally:
            self._observe(
                RequestAnswered(
                    request_id,
                    state.get("area", "api"),
                    head.method,
                    state.get("path", head.path),
                    status,
                    state.get("code"),
                    perf_counter() - began,
                    sent,
                    state.get("caller"),
                    state["client"],
                    theirs.decode() if theirs is not None and _SANE.fullmatch(theirs) else None,
                )
            )


def _unless_held_back(headers: Headers, receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Wrap both so that the connection closes after an answer to a client that was not asked for its body.

    A client that waits for 100 Continue and gets an answer instead does not send its body. The server would take the
    next bytes of the connection for that body, so none may follow.
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
    await send({"type": "http.response.start", "status": error.status, "headers": headers + problem_headers(error)})
    await send({"type": "http.response.body", "body": body})


def problem_headers(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """Return the headers of a problem document that depend on its error."""
    challenge = [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
    return error.retry_headers + challenge


def problem(error: GatewayError) -> dict[str, Any]:
    """Return the error as a problem document. Each of its facts is a member."""
    return {
        **{name.replace("-", "_"): fact for name, fact in error.facts.items()},
        "type": f"urn:fencing-gateway:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
        "advice": error.advice,
    }
