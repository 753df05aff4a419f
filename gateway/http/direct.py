"""Requests that are answered from their connection, without a task: plain ones, with a known head.

The app sends a statement as soon as the packet is there, and a callback writes the answer. A request whose answer is
not found in this way goes to the parser after all. Its task then goes on with what has begun.
"""

from asyncio import Future
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, NamedTuple, Protocol, cast

from gateway.http.head import REQUEST_ID, KnownHeads, Packet
from gateway.observe.events import Observe, RequestAnswered


class Answer(Protocol):
    """A finished answer. It has a ``Content-Length``, or a status without a body."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes: ...


class Begun(Protocol):
    """A request that can be answered once ``row`` is done. ``row`` is None if it needs a task at once."""

    @property
    def row(self) -> "Future[Any] | None": ...


class Named(Begun, Protocol):
    """A request with a path of its own."""

    @property
    def path(self) -> str: ...


class Finished(NamedTuple):
    """An answer that is nothing else."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class Origin(NamedTuple):
    """The part of ``RequestAnswered`` that all requests with one head have in common.

    ``path`` is as others may see it. If it ends in a name, it is None, and each ``Begun`` has its own.
    """

    area: str
    method: str
    path: str | None
    caller: str
    client_request_id: str | None


class Prepared(Protocol):
    """All that an app knows about requests with one head. It keeps no secrets of theirs."""

    @property
    def origin(self) -> Origin: ...

    def begin(self, packet: Packet) -> Begun | None:
        """Send what the request asks for. None if the request needs a task from the start."""

    def answer(self, begun: Any) -> Answer | None:
        """Return the answer to a request whose row is done. None if a task has to find it."""


class App(Protocol):
    """An app that answers requests without a task. It does not end while requests are inside."""

    known_heads: "KnownHeads[Prepared]"

    def enter(self) -> None: ...
    def leave(self) -> None: ...


class Exchange(Protocol):
    """The connection of a request without a task."""

    @property
    def client(self) -> tuple[str, int] | None: ...

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        """Send the whole answer."""

    def start_task(self, state: Mapping[str, Any]) -> None:
        """Let a task answer it. ``state`` goes into its scope."""


class Direct(NamedTuple):
    """A request without a task, under way. ``app`` is the one that it began with, whatever serves by now."""

    app: App
    began: float
    request_id: str
    exchange: Exchange
    prepared: Prepared
    begun: Begun
    observe: Observe

    def finish(self, _: object) -> None:
        """Answer the request, whose row is done."""
        app, began, request_id, exchange, prepared, begun, observe = self
        try:
            answer = prepared.answer(begun)
        except Exception:  # noqa: BLE001 - the task finds out the same, and answers
            answer = None
        if answer is None:
            exchange.start_task({"arrival": (app, began, request_id), "begun": begun})
            return
        answer.headers.append((REQUEST_ID, request_id.encode()))
        exchange.respond(answer.status, answer.headers, answer.body)
        app.leave()
        (area, method, path, caller, client_request_id), client = prepared.origin, exchange.client
        observe(
            RequestAnswered(
                request_id,
                area,
                method,
                path or cast("Named", begun).path,
                answer.status,
                None,
                perf_counter() - began,
                len(answer.body),
                caller,
                client[0] if client else None,
                client_request_id,
            )
        )
