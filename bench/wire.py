"""A path to PostgreSQL that counts what the gateway sends: round trips, and statements."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg.conninfo import conninfo_to_dict

from tests.postgres_relay import Relay, relay

_EXECUTED = (b"Q"[0], b"E"[0])
"""Messages that run a statement: a simple query, and the execution of a prepared one."""


@dataclass(slots=True)
class Sent:
    """The messages to the server so far. A round trip begins with the first message after an answer."""

    trips: int = 0
    statements: int = 0


class CountingRelay(Relay):
    """A path that reads the messages it passes on."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.sent = Sent()

    async def _requests(self, client: asyncio.StreamReader, requests: asyncio.StreamWriter) -> None:
        rest, started = b"", False
        while sent := await client.read(65536):
            self.sent.trips += 1
            requests.write(sent)
            rest += sent
            while len(rest) >= (head := 5 if started else 4):
                length = int.from_bytes(rest[head - 4 : head], "big") + head - 4
                if len(rest) < length:
                    break
                self.sent.statements += started and rest[0] in _EXECUTED
                # The first message of a session has no type.
                rest, started = rest[length:], True
        requests.close()


@contextmanager
def counting(dsn: str) -> Iterator[tuple[str, Sent]]:
    """Run such a path in a thread. Yields its address, and what it counts."""
    ready = threading.Event()
    found: list[tuple[CountingRelay, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        async with relay(dsn, CountingRelay) as made:
            assert isinstance(made, CountingRelay)
            stop = asyncio.Event()
            found.append((made, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    ready.wait()
    made, loop, stop = found[0]
    try:
        to = conninfo_to_dict(made.url)
        yield f"postgresql://{to['user']}@{to['host']}:{to['port']}/{to['dbname']}?sslmode=disable", made.sent
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(5)
