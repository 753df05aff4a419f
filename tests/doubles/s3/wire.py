"""One HTTP exchange over ASGI: the body in, the answer out, whole, in part, or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime
from typing import Any

from tests.doubles.s3.faults import Action, Plan
from tests.doubles.s3.messages import Answer, http_date

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_BODILESS = frozenset({204, 304})


class Disconnected(Exception):
    """The client went away before its body was complete: the request never arrived."""


class Wire:
    """The double's view of a connection during one request."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, clock: Callable[[], datetime]) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._clock = clock

    async def read_body(self) -> bytes:
        """The whole body. Raises Disconnected."""
        pieces: list[bytes] = []
        await self.read_into(pieces.append)
        return b"".join(pieces)

    async def read_into(self, take: Callable[[bytes], None]) -> None:
        """Hand over the body piece by piece; asking for it is what sends 100 Continue. Raises Disconnected."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            take(message.get("body", b""))
            if not message.get("more_body", False):
                return

    async def cut(self) -> None:
        """Reset the connection."""
        self._scope["state"]["abort_connection"]()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def send(self, answer: Answer, plan: Plan | None = None) -> None:
        """Send the answer, as the plan's rule for bodies wants it."""
        start = {"type": "http.response.start", "status": answer.status, "headers": _head(answer, self._clock())}
        await self._send(start)
        body = b"" if self._scope["method"] == "HEAD" or answer.status in _BODILESS else answer.body
        cutting = plan.find(Action.CUT_BODY) if plan is not None else None
        if cutting is not None:
            await self._send_piece(body[: cutting.details.size], more=True)
            await self.cut()
            return
        await self._send_piece(body, more=False)

    async def _send_piece(self, piece: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": piece, "more_body": more})


def _head(answer: Answer, now: datetime) -> list[tuple[bytes, bytes]]:
    """The Date is the store's own: it is what clients may go by."""
    request_id = secrets.token_hex(8).upper()
    headers = {"date": http_date(now), "server": "AmazonS3", "x-amz-request-id": request_id, **answer.headers}
    if answer.status not in _BODILESS:
        headers["content-length"] = str(len(answer.body) if answer.length is None else answer.length)
    return [(name.lower().encode(), value.encode("utf-8", "surrogateescape")) for name, value in headers.items()]
