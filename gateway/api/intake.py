"""Around each route that takes a body: proves the caller, then reads the body within limits, then serves the request.

FastAPI reads and parses a body before it asks who sent it, without a limit on size or time.
"""

from collections.abc import Callable

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth.principal import Principal
from gateway.errors import BodyTooLarge, RequestMalformed
from gateway.http.body import Bodies, ClientGone

MAX_BODY = 64 * 1024
"""Bytes that the body of a request to the fencing API may have, unless its route says more."""


MAX_VALUES = 5_000
"""Values that such a body may have, about; 1000 renewals have 4 each. The models list every value that is wrong."""
_STRUCTURE = b"[{,"


class Intake:
    """Plain ASGI. ``caller`` proves the caller or raises, ``limit`` is in bytes."""

    def __init__(self, app: ASGIApp, caller: Callable[[Request], Principal], bodies: Bodies, limit: int) -> None:
        self._app, self._caller, self._bodies, self._limit = app, caller, bodies, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._caller(Request(scope))
        body = self._bodies.of(scope, receive)
        try:
            content = await body.whole(self._limit)
            _check_values(content)
            await self._app(scope, _after(content, receive), send)
        except ClientGone:
            raise RequestMalformed("The client hung up before its body was complete.") from None
        finally:
            body.release()


def _check_values(content: bytes) -> None:
    """Raise ``BodyTooLarge`` for too many values. Commas inside strings count too: no string here has thousands."""
    if len(content) - len(content.translate(None, _STRUCTURE)) > MAX_VALUES:
        raise BodyTooLarge(f"The body has more than {MAX_VALUES:,} values.", advice="Split the request.")


def _after(content: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body that was read, and then what follows it."""
    left: list[Message] = [{"type": "http.request", "body": content}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay
