"""A gateway with all its surroundings, in a thread, and a client that sends it unchecked bytes."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeAlias

import asyncpg
import orjson

from gateway import app, serving
from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from gateway.observe.events import Event, RequestFailed
from tests.patience import limited
from tests.postgres import fresh
from tests.running import OPEN

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

PATIENCE = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. ``document`` is the body read as JSON; None if it is none."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None


@dataclass(slots=True)
class RawClient:
    """Sends requests as they are given, on one connection as long as that lasts."""

    port: int
    _connection: socket.socket | None = None

    def ask(self, method: str, target: bytes, headers: Headers = (), body: bytes = b"") -> Answer:
        """One request with its length announced. ``target`` and ``headers`` go out without a look at them."""
        length = [(b"content-length", str(len(body)).encode())] if body else []
        return self.send(method, head(method, target, [*headers, *length]) + body)

    def send(self, method: str, *pieces: bytes) -> Answer:
        """Send the bytes, and read one answer. ``method`` tells whether it has a body."""
        for attempt in (1, 2):
            connection = self._connection or socket.create_connection(("127.0.0.1", self.port), PATIENCE)
            self._connection = None
            try:
                _send(connection, pieces)
                return self._answer(connection, method)
            except (HTTPException, OSError):
                # The server may have closed a connection that was idle: nothing of this request was read then.
                connection.close()
                if attempt == 2:
                    raise
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Hang up. The next request makes a new connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _answer(self, connection: socket.socket, method: str) -> Answer:
        response = HTTPResponse(connection, method=method)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        answer = Answer(response.status, headers, response.read())
        if response.will_close:
            connection.close()
        else:
            self._connection = connection
        return answer


def head(method: str, target: bytes, headers: Headers) -> bytes:
    """The head of a request."""
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), b"host: gateway"]
    return b"\r\n".join([*lines, *(b"%s: %s" % header for header in headers), b"", b""])


def _send(connection: socket.socket, pieces: Sequence[bytes]) -> None:
    try:
        for piece in pieces:
            connection.sendall(piece)
    except OSError:
        # The server has heard enough; what it has to say may be there to be read.
        pass


@dataclass(slots=True)
class Watched:
    """A running gateway, the events that it has announced, and an independent session on its database."""

    client: RawClient
    events: list[Event]
    connection: "asyncpg.Connection[asyncpg.Record]"
    runner: asyncio.Runner

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.runner.run(self.connection.fetch(sql))]

    def execute(self, sql: str) -> None:
        self.runner.run(self.connection.execute(sql))

    def failures(self) -> list[BaseException]:
        """Return the errors inside the gateway."""
        return [event.error for event in self.events if isinstance(event, RequestFailed)]


@contextmanager
def watched_gateway(server: EmbeddedPostgres, setup: str, /, **sections: Any) -> Iterator[Watched]:
    """Serve the whole gateway, as ``gateway serve`` does, from a thread, over a database of its own.

    ``setup`` is SQL that makes the tables, ``sections`` are those of the configuration.
    """
    with ExitStack() as stack:
        dsn = stack.enter_context(fresh(server))
        runner = stack.enter_context(asyncio.Runner())
        connection = runner.run(asyncpg.connect(dsn))
        stack.callback(lambda: runner.run(connection.close()))
        runner.run(connection.execute(setup))
        events: list[Event] = []
        limits = sections.pop("limits", {})
        config = Config.model_validate({"postgres": {"dsn": dsn}, "grants": OPEN, **sections})
        gateway = app.build(limited(config, **limits), events.append)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.enter_context(serving.in_background(gateway, listener))
        client = RawClient(listener.getsockname()[1])
        stack.callback(client.close)
        yield Watched(client, events, connection, runner)
