"""The parts that all routes of the fencing API share: the caller, the body, the path, and the record of a request."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from fastapi import Path, Request
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.auth.principal import Principal
from gateway.errors import BodyTooLarge, RequestMalformed
from gateway.fencing.headers import HOLDER_PATTERN, FencingHeaders
from gateway.fencing.record import Attempt
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head

MAX_PAGE = 1000

Authenticate: TypeAlias = Callable[[Request], Principal]

TokenText: TypeAlias = Annotated[str, Field(max_length=40, examples=["34", "2.34"])]
HolderName: TypeAlias = Annotated[str, Field(max_length=200, pattern=f"^{HOLDER_PATTERN}$")]


def attempt(request: Request, principal: Principal, shown: FencingHeaders) -> Attempt:
    """Return the request as it goes on record if a fence refuses it."""
    state: dict[str, Any] = request.scope["state"]
    return Attempt(
        token=shown.token,
        holder=shown.holder,
        caller=principal.name,
        method=request.method,
        target=request.url.path,
        client=state["client"],
        request_id=state["request_id"],
        plane="api",
    )


def storable(text: str | None) -> str | None:
    """Return ``text``. Raises ``RequestMalformed`` for a NUL character, which Postgres cannot store."""
    if text is not None and "\0" in text:
        raise RequestMalformed("A NUL character cannot be part of a name.")
    return text


MAX_BODY = 64 * 1024
"""The most bytes of a request body, unless its route has a limit of its own."""

MAX_VALUES = 5_000
"""The most values of a body, roughly: 1000 renewals have 4 each. The models report every value that is wrong."""
_STRUCTURE = b"[{,"


class BodyIntake:
    """ASGI middleware that proves the caller, then reads its body. ``limit`` is in bytes."""

    def __init__(self, app: ASGIApp, caller: Callable[[Request], Principal], bodies: BodyReader, limit: int) -> None:
        self._app, self._caller, self._bodies, self._limit = app, caller, bodies, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._caller(Request(scope))
        body = self._bodies.of(scope, receive)
        try:
            content = await body.whole(self._limit)
            check_values(content)
            await self._app(scope, _after(content, receive), send)
        except ClientGone:
            raise RequestMalformed("The client hung up before its body was complete.") from None
        finally:
            body.release()


def check_values(content: bytes) -> None:
    """Raise ``BodyTooLarge`` for too many values. Commas inside strings count too: no string here has thousands."""
    if len(content) - len(content.translate(None, _STRUCTURE)) > MAX_VALUES:
        raise BodyTooLarge(f"The body has more than {MAX_VALUES:,} values.", advice="Split the request.")


def _after(content: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` that gives the body that was read, and then what follows it."""
    left: list[Message] = [{"type": "http.request", "body": content}]

    async def replay() -> Message:
        return left.pop() if left else await receive()

    return replay


ResourceName: TypeAlias = Annotated[
    str,
    Path(
        description="The name as lists and errors print it, without encoding or decoding: `/` stays `/`, and `%2F` "
        "stays `%2F`. For another spelling the gateway answers 400 and names the one to use.",
        examples=["order/5", "public.txt/c%2Fd"],
    ),
]


class PathAsSent:
    """ASGI middleware: ``app`` routes by the path as the client sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = path_as_sent(scope)
        await self._app(scope, receive, send)


def path_as_sent(scope: Scope) -> str:
    """Return the path of a request before percent-decoding."""
    return Head.of(scope).raw_path.decode("utf-8", "replace")
