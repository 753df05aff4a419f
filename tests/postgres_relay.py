"""A path to a PostgreSQL over TCP, also to one that listens at a socket in a folder. It can lose an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo


async def connect(to: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the server of a connection string, taken apart."""
    host, port = str(to.get("host") or "127.0.0.1"), int(to.get("port") or 5432)
    if host.startswith("/"):
        return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
    return await asyncio.open_connection(host, port)


class Relay:
    """A breakable path to the server. ``losing``: the content of a message whose answer is lost.

    After that message, no other one gets through while there is an answer to lose.
    """

    def __init__(self, dsn: str) -> None:
        self._to = conninfo_to_dict(dsn)
        self._broken = False
        self.losing: bytes | None = None
        self.url = ""

    async def __call__(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        if self.losing and self._broken:
            answers.close()
            return
        server, requests = await connect(self._to)
        try:
            await asyncio.gather(self._requests(client, requests), self._answers(server, answers))
        finally:
            requests.close()
            answers.close()

    async def _requests(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        while sent := await client.read(65536):
            self._broken = bool(self.losing and self.losing in sent)
            requests.write(sent)
        requests.close()

    async def _answers(self, server: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        while (answer := await server.read(65536)) and not self._broken:
            answers.write(answer)
        answers.close()


@contextlib.asynccontextmanager
async def relay(dsn: str, kind: type[Relay] = Relay) -> AsyncIterator[Relay]:
    made = kind(dsn)
    async with await asyncio.start_server(made, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        made.url = make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")
        yield made
