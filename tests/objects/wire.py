"""A store on a raw socket: what stood on the wire is what a test asserts, and what it answers is what a test says."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import SecretStr

from gateway.config.sections import ObjectStore
from gateway.objects.s3.answers import WriteAnswer
from gateway.objects.store.operations import Upstream

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HANG, RESET = b"<hang>", b"<reset>"


def answer(status: int, body: bytes = b"", /, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


OK = answer(200, ETag='"e1"')
CLOCK = answer(200, Date="Fri, 02 Jan 2026 03:04:05 GMT")
"""The answer to the HEAD by which a client learns the store's clock, before its first write without an intent."""
ERROR = b"<Error><Code>%s</Code><Message>m</Message></Error>"

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Received:
    """One request as it stood on the wire."""

    connection: int
    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes:
        (value,) = [value for key, value in self.headers if key == name]
        return value


@dataclass
class Store:
    """Answers each request with the next of ``answers`` (the last one for ever); an empty one closes the connection."""

    answers: list[bytes] = field(default_factory=lambda: [OK])
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    port: int = 0
    serving: Serve | None = None
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self._serving.add(task)
        self.connections += 1
        try:
            if self.serving is not None:
                await self.serving(reader, writer)
            else:
                while await self._exchange(self.connections, reader, writer):
                    pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)
        await asyncio.sleep(0)  # lets the transports close

    async def _exchange(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line, *lines = (await reader.readuntil(b"\r\n\r\n")).removesuffix(b"\r\n\r\n").split(b"\r\n")
        pairs = [tuple(part.strip() for part in text.split(b":", 1)) for text in lines]
        headers = [(name.lower(), value) for name, value in pairs]
        body = await reader.readexactly(int(dict(headers).get(b"content-length", b"0")))
        self.received.append(Received(number, line, headers, body))
        said = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if said == HANG:
            await asyncio.sleep(30)
        if said == RESET:
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            return False
        writer.write(said)
        await writer.drain()
        return said.startswith(b"HTTP/1.1") and b"Content-Length: 9999\r\n" not in said


@asynccontextmanager
async def listening(serve: Serve | None = None, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Store]:
    """A store on a free port. ``serve``: what it does with a connection, instead of answers to requests."""
    store = Store(serving=serve)
    server = await asyncio.start_server(store.serve, "127.0.0.1", 0, ssl=tls, limit=2**16 if serve else 2**22)
    store.port = server.sockets[0].getsockname()[1]
    yield store
    server.close()
    await store.stop()


async def put(up: Upstream, body: bytes = b"hello") -> WriteAnswer:
    return await up.put(("bucket", "key"), body, expected=None, signed_at=AT)


@asynccontextmanager
async def upstream(store: Store, *, timeout: float = 20, scheme: str = "http") -> AsyncIterator[Upstream]:
    config = ObjectStore(
        endpoint=f"{scheme}://127.0.0.1:{store.port}",
        region="eu-west-1",
        access_key_id="AKGATEWAY",
        secret_access_key=SecretStr("gateway-secret"),
    )
    async with Upstream(config, timeout=timeout) as opened:
        yield opened
