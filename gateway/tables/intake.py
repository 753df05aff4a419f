"""Takes in the body of a request whole, up to a limit: nothing is written unless all of it has arrived."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from gateway.errors import BodyTooLarge

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]


class ClientGone(Exception):
    """The client hung up before its body was complete."""


async def whole_body(receive: Receive, announced: int | None, limit: int) -> bytes:
    """The body. ``announced`` is its size if the client has told it; ``limit`` is in bytes.

    Raises ``BodyTooLarge``, at once if the size was announced; ``ClientGone`` where there is nobody left to answer.
    """
    if announced is not None and announced > limit:
        raise _too_large(limit)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        content: bytes = message.get("body", b"")
        if len(content) > limit:
            raise _too_large(limit)
        return content
    chunks, size = [], 0
    while True:
        if message["type"] != "http.request":
            raise ClientGone
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body"):
            return b"".join(chunks)
        message = await receive()


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body has more than {limit} bytes.")
