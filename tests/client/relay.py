"""A network that goes down and comes back: connections are passed on until it is cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.processes import free_port


class Relay:
    """``origin`` is where clients find the gateway.

    ``decodes``: slashes that were sent percent-encoded arrive as slashes, as behind some proxies.
    ``kept_back``: requests that begin so do not arrive until ``let_go`` is set; ``waiting`` is set by the first.
    """

    def __init__(self, gateway: str) -> None:
        self.decodes = False
        self.kept_back: bytes | None = None
        self.waiting = asyncio.Event()
        self.let_go = asyncio.Event()
        self._gateway = urlsplit(gateway)
        self._server: asyncio.Server | None = None
        self._port = free_port()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def resume(self) -> None:
        """Take connections, at the same address as ever."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self._port)

    async def cut(self) -> None:
        """Break off all connections, and take no more."""
        assert self._server is not None
        self._server.close()
        self.let_go.set()
        for writer in tuple(self._writers):
            writer.transport.abort()
        while self._writers:
            await asyncio.sleep(0.01)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward = await asyncio.open_connection(self._gateway.hostname, self._gateway.port)
        self._writers |= {writer, onward}
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))
        finally:
            for one in (writer, onward):
                one.transport.abort()
                self._writers.discard(one)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while some := await reader.read(65536):
                if self.kept_back is not None and some.startswith(self.kept_back):
                    self.waiting.set()
                    await self.let_go.wait()
                writer.write(some.replace(b"%2F", b"/") if self.decodes else some)
                await writer.drain()
        writer.transport.abort()


@asynccontextmanager
async def relayed(gateway: str) -> AsyncIterator[Relay]:
    relay = Relay(gateway)
    await relay.resume()
    try:
        yield relay
    finally:
        await relay.cut()
