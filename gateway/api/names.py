"""Names of resources in paths: taken as they were sent, for every route.

The server also hands on the path decoded. There, ``public.txt/c%2Fd`` and ``public.txt/c/d`` look the same, but they
are two resources. So the routes are matched with the path before decoding, and ``{resource}`` is the name itself.
"""

from typing import Annotated, TypeAlias

from fastapi import Path
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.head import Head

ResourceName: TypeAlias = Annotated[
    str,
    Path(
        description="The name as lists and errors print it, with nothing encoded or decoded: `/` stays `/`, and `%2F` "
        "stays `%2F`. Another spelling is answered with 400 and the one to use.",
        examples=["order/5", "public.txt/c%2Fd"],
    ),
]


class AsSent:
    """ASGI middleware that has ``app`` route by the path as it was sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = path_as_sent(scope)
        await self._app(scope, receive, send)


def path_as_sent(scope: Scope) -> str:
    """Return the path of a request before percent-decoding."""
    return Head.of(scope).raw_path.decode("utf-8", "replace")
