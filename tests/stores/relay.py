"""A path to a store on which chosen requests get lost, as when a machine dies in the middle of sending one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias
from urllib.parse import urlsplit

Matches: TypeAlias = Callable[[str, str], bool]
"""Of the method and the target of a request."""


class Relay:
    """Passes requests on as they are. The requests that ``losing`` names break their connection instead."""

    def __init__(self, store: str) -> None:
        self.losing: list[Matches] = []
        self.origin = ""
        self._store = urlsplit(store)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, onward = await asyncio.open_connection(self._store.hostname, self._store.port)
        answering = asyncio.create_task(_pass(answers, writer))
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._request(reader, onward):
                    pass
        finally:
            answering.cancel()
            for one in (onward, writer):
                one.transport.abort()

    async def _request(self, reader: asyncio.StreamReader, onward: asyncio.StreamWriter) -> bool:
        """Pass one request on. False: it is lost."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        method, target, _ = line.split(" ")
        named = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        if any(matches(method, target) for matches in self.losing):
            return False
        onward.write(head)
        left = int(named.get("content-length", "0"))
        while left:
            some = await reader.read(min(left, 65536))
            if not some:
                return False
            left -= len(some)
            onward.write(some)
            await onward.drain()
        return True


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(65536):
            writer.write(some)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def relayed(store: str) -> AsyncIterator[Relay]:
    """A path to the store, at ``origin``."""
    relay = Relay(store)
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    relay.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield relay
    server.close()
