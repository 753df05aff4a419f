"""Asks the API of each database, as if a client had sent the request to it alone.

So each database authenticates the caller, checks its rights and reads the parameters by itself.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlencode

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import GatewayError, Unavailable
from gateway.http.head import Head
from gateway.http.streaming import StreamedResponse

WAIT = 10.0
"""Seconds in which a database has to answer. Otherwise the answer of all goes without it."""

Pairs: TypeAlias = Sequence[tuple[str, str]]
"""The parameters of a request."""


@dataclass(slots=True)
class Answer:
    """A whole answer of a database."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def take(self, message: Message) -> None:
        """Be the ``send`` of the app that answers."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    def with_body(self, body: bytes) -> "Answer":
        """Return the same answer with another body."""
        kept = [header for header in self.headers if header[0].lower() != b"content-length"]
        return Answer(self.status, [*kept, (b"content-length", str(len(body)).encode())], body)

    async def __call__(self, _: Scope, __: Receive, send: Send) -> None:
        """Be an app that gives this answer."""
        await self.send(send)

    async def send(self, send: Send) -> None:
        """Send it to the client."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class Refused(Exception):
    """A database has refused the request itself, as each of them would. ``answer`` is the whole answer."""

    def __init__(self, answer: Answer, error: GatewayError | None) -> None:
        super().__init__(error)
        self.answer, self.error = answer, error


@dataclass(frozen=True, slots=True)
class Databases:
    """The databases that a request is about, by name, and the request. ``ending``: whether this gateway is retired.

    ``owner`` names the database of a resource.
    """

    apps: Mapping[str, ASGIApp]
    scope: Scope
    ending: Callable[[], bool]
    owner: Callable[[str], str]
    wait: float = WAIT

    @property
    def names(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(self.apps)

    async def ask(self, name: str, pairs: Pairs, path: str | None = None) -> Answer:
        """Return the answer of one database to a GET request, whatever its status.

        Raises ``Unavailable`` if it has not answered in time.
        """
        answer, _ = await self._asked(name, pairs, path)
        return answer

    async def open(self, name: str, pairs: Pairs) -> StreamedResponse:
        """Return the streamed answer of one database before anything of it is written.

        Raises ``Refused``, or ``Unavailable`` if the database cannot answer.
        """
        answer, streamed = await self._asked(name, pairs, None)
        if not streamed:
            raise Unavailable(f"The database {name} does not answer.") from Refused(answer, None)
        return streamed[0]

    async def _asked(self, name: str, pairs: Pairs, path: str | None) -> tuple[Answer, list[StreamedResponse]]:
        streamed: list[StreamedResponse] = []
        answer, inner = Answer(), self._inner(pairs, path)
        inner["state"]["collect"] = streamed.append
        try:
            async with asyncio.timeout(self.wait):
                await self.apps[name](inner, _silent(), answer.take)
        except TimeoutError as error:
            raise Unavailable(f"The database {name} has not answered in time.") from error
        if not streamed and 400 <= answer.status < 500 and answer.status != 404:
            raise Refused(answer, inner["state"].get("error"))
        return answer, streamed

    def _inner(self, pairs: Pairs, path: str | None) -> Scope:
        """Return the request for one database. It has no body, and no cursor but that in its parameters."""
        state = {key: value for key, value in self.scope["state"].items() if key != "head"}
        left_out = (b"last-event-id", b"content-length", b"transfer-encoding")
        # Trailers may have come to the headers of the scope by now. They prove nothing, and ask for nothing.
        headers = [header for header in Head.of(self.scope).headers if header[0] not in left_out]
        named = {} if path is None else {"path": path, "raw_path": path.encode()}
        query = urlencode(pairs).encode()
        return {**self.scope, **named, "method": "GET", "query_string": query, "headers": headers, "state": state}


def _silent() -> Receive:
    """Return a ``receive`` of an empty body, whose client stays."""
    left: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if left:
            return left.pop()
        await asyncio.Event().wait()
        raise AssertionError

    return receive
