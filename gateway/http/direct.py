"""Requests that are answered from their connection, without a task: plain ones, with a known head.

The app sends a statement as soon as the packet is there, and a callback writes the answer. A request whose answer is
not found in this way goes to the parser after all. Its task then goes on with what has begun.
"""

from asyncio import Future
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from gateway.auth.principal import Proof, Use
from gateway.http.head import REQUEST_ID, KnownHeads, Packet, Preparation
from gateway.observe.events import Observe, RequestAnswered

_OLDEST = 128
"""Requests among which those of one batch are looked for."""


class Answer(Protocol):
    """A finished answer. It has a ``Content-Length``, or a status without a body. ``code``: of the error it tells."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes: ...
    @property
    def code(self) -> str | None: ...


class Begun(Protocol):
    """A request that can be answered once ``row`` is done. ``row`` is None if it needs a task at once.

    ``path`` is as others may see it.
    """

    @property
    def row(self) -> "Future[Any] | None": ...
    @property
    def path(self) -> str: ...


class Finished(NamedTuple):
    """An answer that is nothing else."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    code: str | None = None


class Origin(NamedTuple):
    """The part of ``RequestAnswered`` that all requests with one head have in common."""

    area: str
    method: str
    caller: str
    client_request_id: str | None


class Prepared(Preparation, Protocol):
    """All that an app knows about requests with one head. It keeps no secrets of theirs.

    ``proof``: that of their caller, if it can end. ``use``: of its key.
    """

    @property
    def origin(self) -> Origin: ...
    @property
    def proof(self) -> Proof | None: ...
    @property
    def use(self) -> Use: ...

    def begin(self, packet: Packet[Any], request_id: str, client: str | None) -> Begun | None:
        """Send what the request of a proven caller asks for. None if the request needs a task from the start.

        ``client``: the address that it comes from.
        """

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

    def answer(self) -> Answer | None:
        """Return the answer to the request, whose row is done. None if a task has to find it."""
        try:
            return self.prepared.answer(self.begun)
        except Exception:  # noqa: BLE001 - the task finds out the same, and answers
            return None

    def finish(self, answer: Answer | None) -> None:
        """Send the answer, or let a task find it."""
        app, began, request_id, exchange, prepared, begun, observe = self
        if answer is None:
            exchange.start_task({"arrival": (app, began, request_id), "begun": begun})
            return
        answer.headers.append((REQUEST_ID, request_id.encode()))
        exchange.respond(answer.status, answer.headers, answer.body)
        app.leave()
        (area, method, caller, client_request_id), client = prepared.origin, exchange.client
        observe(
            RequestAnswered(
                request_id,
                area,
                method,
                begun.path,
                answer.status,
                answer.code,
                perf_counter() - began,
                len(answer.body),
                caller,
                client[0] if client else None,
                client_request_id,
            )
        )


class Finishing:
    """Finishes requests without a task whose rows are done. The rows of one batch are done at one time.

    All answers are made before the first is sent. A client that is woken by each of them would take the processor away
    in between, time and again.
    """

    def __init__(self) -> None:
        self._under_way: dict[Future[Any], Direct] = {}
        self._ready: deque[tuple[Direct, Answer | None]] = deque()

    def await_row(self, row: "Future[Any]", direct: Direct) -> None:
        """Finish a request as soon as its row is done."""
        self._under_way[row] = direct
        row.add_done_callback(self._finish)

    def _finish(self, row: "Future[Any]") -> None:
        """Finish a request, with all others that can be. If one fails, the next row goes on with the rest."""
        if row in self._under_way:
            # The oldest have been sent together.
            others = [one for one in islice(self._under_way, _OLDEST) if one.done() and one is not row]
            for one in (row, *others):
                direct = self._under_way.pop(one)
                self._ready.append((direct, direct.answer()))
        while self._ready:
            direct, answer = self._ready.popleft()
            direct.finish(answer)
