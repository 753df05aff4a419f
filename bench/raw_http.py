"""HTTP/1.1 on one connection, for load generators: a request at a time, and next to nothing spent on it."""

import asyncio
from typing import Self, cast
from urllib.parse import urlsplit


class RawConnection(asyncio.Protocol):
    """Sends JSON and reads answers of known length."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    @classmethod
    async def open(cls, origin: str) -> Self:
        address = urlsplit(origin)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: cls(address.netloc), str(address.hostname), address.port or 80
        )
        return connection

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        """Status and body of the answer. ``headers``: more lines of the head, each with its end."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        head += headers
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return await self._answer

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none by its class

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        _, found, length = head.lower().partition(b"\r\ncontent-length:")
        expected = int(length.partition(b"\r\n")[0]) if found else 0
        if len(body) < expected:
            return
        self._received = b""
        assert self._answer is not None
        self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionError("the server has hung up"))
