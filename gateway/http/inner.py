"""A request inside a request: another app of this process answers for the same client."""

from urllib.parse import parse_qsl, urlencode

from starlette.types import Message, Receive, Scope

from gateway.http.head import Head

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


def without_parameter(scope: Scope, name: str) -> Scope:
    """Return the client's request without a parameter of its query."""
    pairs = parse_qsl(Head.of(scope).query_string.decode("latin-1"), keep_blank_values=True)
    return {**scope, "query_string": urlencode([pair for pair in pairs if pair[0] != name]).encode()}
