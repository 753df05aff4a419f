"""Counts the files of the gateway whose code one request executes: what a reader has open to follow it.

``python -m bench.files`` prints the number for each request; ``python -m bench.files put`` also lists the files of the
requests with that word in their names.
"""

import asyncio
import hashlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign
from gateway.observe.logs import log
from tests.doubles.s3 import S3Double, serve
from tests.postgres import Server, a_server, fresh_database
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY, config, running

GATEWAY = str(Path(__file__).parents[1] / "gateway") + "/"
REPETITIONS = 10
"""A background task may run during some of them. A file counts if every repetition executes it."""

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, note text); INSERT INTO orders VALUES (1, '');"
PATH = "/v1/tables/orders?id=eq.1"

Files = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Client:
    """One connection to the gateway. It runs no code of the gateway between a request and its answer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host: str

    async def patch(self, token: int, note: str = "x") -> int:
        return await self._table("PATCH", f'{{"note": "{note}"}}'.encode(), {"fencing-token": str(token)})

    async def get(self) -> int:
        return await self._table("GET")

    async def acquire(self, number: int) -> int:
        headers = {"host": self.host, "authorization": f"Bearer {API_KEY}"}
        content = b'{"holder": "worker"}'
        headers |= {"content-type": "application/json", "content-length": str(len(content))}
        return await self._ask("POST", f"/v1/leases/job/{number}", headers, content)

    async def put(self, key: str, token: int, content: bytes) -> int:
        headers = {"host": self.host, "content-length": str(len(content)), "fencing-token": str(token)}
        head = RequestHead("PUT", key.encode(), b"", [(name.encode(), text.encode()) for name, text in headers.items()])
        keys = StoreCredentials(ACCESS_KEY, SECRET_KEY, "us-east-1")
        signed = sign(head, hashlib.sha256(content).hexdigest(), keys, datetime.now(UTC))
        return await self._ask("PUT", key, headers | dict(signed), content)

    async def _table(self, method: str, content: bytes = b"", fencing: Mapping[str, str] | None = None) -> int:
        headers = {"host": self.host, "authorization": f"Bearer {API_KEY}", **(fencing or {})}
        if content:
            headers |= {"content-type": "application/json", "content-length": str(len(content))}
        return await self._ask(method, PATH, headers, content)

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], content: bytes) -> int:
        """Send a request and return the status of its answer, once its last byte is here.

        ``_executed`` then has the files of this request.
        """
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {text}" for name, text in headers.items())]
        request = "\r\n".join([*lines, "", ""]).encode() + content
        _executed.clear()
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, announced, length = head.partition("content-length: ")
        if announced:
            await self.reader.readexactly(int(length.partition("\r\n")[0]))
        return int(head.split()[1])


_executed: set[str] = set()


@contextmanager
def _recording() -> Iterator[None]:
    """Add the files of the gateway whose functions are called to ``_executed``, in this thread and in new ones."""

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(GATEWAY):
            _executed.add(frame.f_code.co_filename)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def files_per_request(server: Server) -> Files:
    """Return the files that each kind of request executes, in the order of their names.

    A gateway is started in this process, with a database of its own on ``server`` and the S3 double.
    """
    with _recording():
        return await _counted(server)


async def _counted(server: Server) -> Files:
    async with _started(server) as client:
        tokens, notes = count(2), count()

        async def patch_by_a_new_holder() -> int:
            return await client.patch(next(tokens))

        async def patch_by_the_same_holder() -> int:
            return await client.patch(1)

        async def put_of_an_object() -> int:
            return await client.put("/bucket/key", 1_000, str(next(notes)).encode())

        async def put_by_a_new_holder() -> int:
            return await client.put("/bucket/key", 1_000 + next(tokens), str(next(notes)).encode())

        async def acquire() -> int:
            return await client.acquire(next(notes))

        return {
            "POST of a lease": await _common(acquire, {201}),
            "PATCH, hot": await _common(patch_by_the_same_holder, {200, 204}),
            "GET by key": await _common(client.get, {200}),
            "PATCH by a new holder": await _common(patch_by_a_new_holder, {200, 204}),
            "PATCH, stale": await _common(patch_by_the_same_holder, {412}),
            "PUT of an object": await _common(put_of_an_object, {200}),
            "PUT of an object by a new holder": await _common(put_by_a_new_holder, {200}),
        }


async def _common(request: Callable[[], Any], expected: set[int]) -> tuple[str, ...]:
    """Return the files that all repetitions of a request execute, once a first request has warmed the caches."""
    executed: list[set[str]] = []
    for _ in range(2 + REPETITIONS):
        status = await request()
        assert status in expected, f"the gateway answers with {status}"
        executed.append(set(_executed))
    common = set.intersection(*executed[2:])
    return tuple(sorted(name.removeprefix(GATEWAY) for name in common))


@asynccontextmanager
async def _started(server: Server) -> AsyncIterator[Client]:
    """Start a gateway in front of one table and one bucket, and connect to it."""
    async with fresh_database(server) as dsn, serve(S3Double(buckets=["bucket"])) as endpoint:
        connection = await asyncpg.connect(dsn)
        await connection.execute(TABLE)
        await connection.close()
        async with running(config(dsn, endpoint), log) as origin:
            address = urlsplit(origin)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            try:
                yield Client(reader, writer, address.netloc)
            finally:
                writer.close()


def main(words: Iterable[str]) -> None:
    with a_server() as server:
        counted = asyncio.run(files_per_request(server))
    for name, files in counted.items():
        print(f"{len(files):3}  {name}")
        if any(word.lower() in name.lower() for word in words):
            print(*(f"       {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
