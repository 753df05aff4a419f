"""A request inside a request: another app of this process answers for the same client, and its answer may be kept."""

from dataclasses import dataclass, field

from starlette.types import Message, Receive, Scope, Send

_OF_A_REQUEST = ("type", "asgi", "http_version", "scheme", "method", "headers", "client", "server", "state")
"""The parts of a scope that belong to the request, without additions of a router."""


def elsewhere(scope: Scope, path: str, query: str) -> Scope:
    """Return the client's request as one for another path, which shares its state. The head is read again."""
    scope["state"].pop("head", None)
    kept = {name: scope[name] for name in _OF_A_REQUEST if name in scope}
    return {**kept, "path": path, "raw_path": path.encode(), "query_string": query.encode()}


def apart(scope: Scope) -> Scope:
    """Return the client's request with a state of its own, as one of several at the same time."""
    return {**scope, "state": dict(scope["state"])}


def replayed(content: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives a body that was read, and then what follows it."""
    left: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


@dataclass(slots=True)
class Answer:
    """A whole answer of another app, which gets ``take`` in place of ``send``."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    async def take(self, message: Message) -> None:
        """Be the ``send`` of the app that answers."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    async def send(self, send: Send, body: bytes | None = None) -> None:
        """Send it to the client, if need be with another body."""
        headers = self.headers
        if body is not None:
            kept = [header for header in headers if header[0].lower() != b"content-length"]
            headers = [*kept, (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body if body is None else body})
