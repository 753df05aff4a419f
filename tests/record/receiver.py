"""A receiver of webhooks, which verifies messages with the code of docs/webhooks.md, and gateways that tell it."""

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from gateway.db.database import Database
from gateway.db.webhooks import EntryFilter
from gateway.fencing.record import Kind
from gateway.webhooks import delivery, messages
from gateway.webhooks.outbox import ConfiguredWebhook, Outbox, OutboxTimes
from tests import ROOT
from tests.patience import patient
from tests.running import Events
from tests.waiting import PATIENCE

PAGE = ROOT / "docs/webhooks.md"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def published() -> Callable[[str, Mapping[str, str], bytes], None]:
    """``verify`` as the page has it."""
    (code,) = re.findall(
        r"^<!-- verified: python -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code, names)
    verify: Callable[[str, Mapping[str, str], bytes], None] = names["verify"]
    return verify


verify = published()


@dataclass(frozen=True)
class Received:
    """A message, its signature verified."""

    id: str
    type: str
    data: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def positions(self) -> list[int]:
        """Of its entries."""
        return [entry["position"] for entry in self.data.get("entries", [])]


Reply: TypeAlias = bytes | Callable[[asyncio.StreamWriter], Awaitable[None]]
"""The bytes that the receiver sends, or the action that it takes, once a message has come."""

TAKEN = b"HTTP/1.1 204 No Content\r\n\r\n"


def status(code: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {code} Whatever", *headers, "Content-Length: 0", "", ""]).encode()


async def disconnect(writer: asyncio.StreamWriter) -> None:
    """No answer at all."""
    writer.transport.abort()


@dataclass
class Receiver:
    """The messages that it got, and its answers: ``replies`` one after the other, then ``usually``."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    usually: Reply = TAKEN
    attempts: list[Received] = field(default_factory=list)
    taken: list[Received] = field(default_factory=list)
    refuted: list[str] = field(default_factory=list)
    secret: str = SECRET

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.005)

    def entries(self) -> list[dict[str, Any]]:
        """All entries that were taken, in the order they came."""
        return [entry for message in self.taken for entry in message.data.get("entries", [])]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = [line.partition(":") for line in head.split("\r\n")[1:]]
                headers = {name.strip().lower(): value.strip() for name, _, value in lines}
                body = await reader.readexactly(int(headers["content-length"]))
                received = self._verified(headers, body)
                self.attempts.append(received)
                reply = self.replies.pop(0) if self.replies else self.usually
                if callable(reply):
                    await reply(writer)
                    return
                if reply.split(b" ", 2)[1].startswith(b"2"):
                    self.taken.append(received)
                writer.write(reply)
                await writer.drain()
        writer.close()

    def _verified(self, headers: Mapping[str, str], body: bytes) -> Received:
        try:
            verify(self.secret, headers, body)
        except ValueError as error:
            self.refuted.append(str(error))
        said = json.loads(body)
        return Received(headers["webhook-id"], said["type"], said["data"], headers)


@asynccontextmanager
async def receiving(tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Yield a receiver on a free port. At the end it hangs up on requests that still wait for an answer."""
    receiver = Receiver()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(asyncio.CancelledError):
                await receiver.serve(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    try:
        yield receiver
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
    assert receiver.refuted == []


def webhook(name: str, url: str, *, secret: str = SECRET, **wanted: Any) -> ConfiguredWebhook:
    asked = replace(EntryFilter((Kind.REJECTION,), "", observed=True, alarms=()), **wanted)
    return ConfiguredWebhook(name, delivery.Receiver(url, [messages.key_of(secret)]), asked)


@asynccontextmanager
async def telling(
    dsn: str, *webhooks: ConfiguredWebhook, courier: delivery.Courier | None = None
) -> AsyncIterator[tuple[Outbox, Events]]:
    """A gateway that delivers, once it has begun to; its webhooks begin at the end of the record."""
    events, database = Events(), patient(dsn)
    outbox = Outbox(database, webhooks, events, courier=courier, times=OutboxTimes(look=0.02), chance=lambda: 0.0)
    try:
        async with outbox.running():
            while len(await outbox.standings()) < len(webhooks):
                outbox.wake()
            yield outbox, events
    finally:
        await database.close()


async def time_passes(database: Database) -> None:
    """As if every wait of a webhook, and every gateway's time with one, were over."""
    await database.fetch_write("UPDATE fencing.webhook SET not_before = now(), owned_until = now()")


async def standing(database: Database, column: str, name: str = "ops") -> Any:
    row = await database.fetchrow(f"SELECT {column} AS it FROM fencing.webhook WHERE name = $1", name)
    assert row is not None
    return row["it"]
