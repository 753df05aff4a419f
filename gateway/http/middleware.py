"""The outermost layer: a request id, the client's address, and an answer even if the gateway itself fails."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from secrets import token_hex
from time import perf_counter
from typing import Any, TypeAlias, cast

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import budget
from gateway.errors import GatewayError, Unavailable
from gateway.fencing.record import ANONYMOUS
from gateway.http.direct import App, Direct, Exchange, Finishing, Prepared
from gateway.http.head import REQUEST_ID, Head, KnownHeads, Packet, client_request_id
from gateway.http.turns import Turns
from gateway.observe import stages
from gateway.observe.events import Observe, RequestAnswered, RequestFailed, RequestNotServed

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]


LARGEST_PIECE = 256 * 1024
"""Bytes of an answer that are handed to the connection at one time."""


class Middleware:
    """Plain ASGI. Puts ``request_id`` and ``client`` into ``scope["state"]``; answers carry ``X-Request-Id``.

    ``app`` may be replaced while requests run. ``lifespan`` starts and ends everything; without it the app does.
    The serving app adds ``area``, ``caller`` and ``error`` for observers, and ``path`` if the real one has a secret.
    ``unserved`` is an error of one part of a request whose answer is a success.
    """

    def __init__(self, app: ASGIApp, observe: Observe, lifespan: ASGIApp | None = None) -> None:
        self.app = app
        self._lifespan = lifespan or app
        self.observe = observe
        self.turns = Turns()
        """The turns of strangers. They may be replaced while requests run."""
        # Unique, not secret: a random prefix of this process, and a count. A random id per request would cost more.
        self._prefix = token_hex(8)
        self._finishing = Finishing()
        self._count = count(1)

    def read(self, data: bytes, seal: bytes) -> Packet[Prepared] | None:
        """Return what ``KnownHeads.read`` of the serving app returns. None if it answers no request without a task."""
        heads: KnownHeads[Prepared] | None = getattr(self.app, "known_heads", None)
        return None if heads is None else heads.read(data, seal)

    def learn(self, packet: Packet[Prepared], scope: Scope) -> None:
        """Let the serving app learn the head of a packet. ``scope`` has it as it was parsed."""
        heads: KnownHeads[Prepared] | None = getattr(self.app, "known_heads", None)
        if heads is not None:
            with suppress(GatewayError):  # such requests are refused, and their tasks say so
                heads.learn(packet, scope)

    def begin(self, prepared: Prepared, packet: Packet[Prepared], exchange: Exchange) -> bool:
        """Begin to answer a packet with a known head without a task. Return whether that is possible."""
        app = cast("App", self.app)
        began, request_id = perf_counter(), self._new_id()
        if prepared.origin.caller != ANONYMOUS:
            self.turns.named = began
        elif self.turns.limit(began):
            return False  # its task waits for its turn
        try:
            if prepared.proof is not None and not prepared.proof.holds():
                return False
            prepared.use.note()
            begun = prepared.begin(packet, request_id, exchange.client and exchange.client[0])
        except Exception:  # noqa: BLE001 - the task finds out the same, and answers
            return False
        if begun is None:
            return False
        app.enter()
        if begun.row is None:
            exchange.start_task({"arrival": (app, began, request_id), "begun": begun})
        else:
            direct = Direct(app, began, request_id, exchange, prepared, begun, self.observe)
            self._finishing.await_row(begun.row, direct)
        return True

    def _new_id(self) -> str:
        return f"{self._prefix}{next(self._count):016x}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        app, began, request_id = state.get("arrival") or (self.app, perf_counter(), self._new_id())
        stages.REQUEST_ID.set(request_id)
        faults = list[GatewayError]()
        stages.FAULTS.set(faults)
        identity = (REQUEST_ID, request_id.encode())
        client = scope.get("client")
        state["request_id"] = request_id
        state["client"] = client[0] if client else None
        head = Head.of(scope)
        theirs = head.value(REQUEST_ID)
        status = sent = 0

        async def identified(message: Message) -> None:
            nonlocal status, sent
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), identity]
            sent += len(message.get("body", b""))
            for piece in _pieces(message):
                await send(piece)

        try:
            if head.value(b"expect") is not None:
                receive, send = _unless_held_back(head.headers, receive, send)
            if (overloaded := state.get("overloaded")) is not None:
                app = refusing(overloaded)
            await budget.one_request(app(scope, receive, identified))
        except Exception as error:
            self.observe(RequestFailed(request_id, head.method, state.get("path", head.path), error))
            state["error"] = GatewayError("Something went wrong inside the gateway.")
            if status:
                raise
            await answer_problem(state["error"], identified)
        finally:
            answered: GatewayError | None = state.get("error")
            area = state.get("area", "api")
            if event := not_served(request_id, area, answered or state.get("unserved"), faults):
                self.observe(event)
            self.observe(
                RequestAnswered(
                    request_id,
                    area,
                    head.method,
                    state.get("path", head.path),
                    status,
                    None if answered is None else answered.code,
                    perf_counter() - began,
                    sent,
                    state.get("caller"),
                    state["client"],
                    client_request_id(theirs),
                )
            )


def not_served(
    request_id: str, area: str, error: GatewayError | None, faults: Sequence[GatewayError]
) -> RequestNotServed | None:
    """Return the event of an answer with 503, for operators: its first cause, with the remedy. None for other errors.

    ``faults``: the errors of services that the request has met. The last one is the cause of an error that has none.
    """
    if error is None or error.status != Unavailable.status or not error.is_told:
        return None
    cause = error.cause
    if faults and not cause.operator.remedy:
        cause = faults[-1].cause
    at = cause.operator.at or (faults[-1].cause.operator.at if faults else "")
    particulars = cause.operator._replace(at=at).particulars
    return RequestNotServed(
        *(
            request_id,
            area,
            error.code,
            cause.message,
            particulars or None,
            cause.remedy,
            f"{cause.message} {at}".rstrip(),
        )
    )


def _pieces(message: Message) -> Iterator[Message]:
    """Cut a large body of an answer. The request keeps its memory until all but the last piece are on their way."""
    body: bytes = message.get("body", b"")
    last = max(0, len(body) - 1) // LARGEST_PIECE * LARGEST_PIECE
    for start in range(0, last, LARGEST_PIECE):
        yield {"type": message["type"], "body": body[start : start + LARGEST_PIECE], "more_body": True}
    yield {**message, "body": body[last:]} if last else message


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


def refusing(error: GatewayError) -> ASGIApp:
    """Return an app that answers with this error."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
        scope["state"]["error"] = error
        await answer_problem(error, send)

    return refuse


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
