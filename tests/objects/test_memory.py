"""However large bodies are, however many come at once, and however slow the store is: little of them is held."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import psutil
import pytest

from tests import ROOT

pytestmark = pytest.mark.thorough

MEBIBYTE = 1024 * 1024
LIMIT = 256 * MEBIBYTE
"""Less than half of what comes each time."""


class Discarding(asyncio.BufferedProtocol):
    """A store that opens uploads and takes parts, and keeps nothing. ``pause``: seconds before it reads a body."""

    def __init__(self, pause: float, taken: list[int]) -> None:
        self._pause, self._taken = pause, taken
        self._buffer = bytearray(4 * MEBIBYTE)
        self._head = b""
        self._left = 0
        self._said = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._left:
            self._take(nbytes)
            return
        self._head += bytes(self._buffer[:nbytes])
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if end:
            self._head = b""
            length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            self._left = int(length[1]) if length else 0
            self._said = _answer(head)
            self._take(len(rest))
            if self._pause and self._left:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_later(self._pause, self._transport.resume_reading)

    def _take(self, size: int) -> None:
        self._left -= size
        self._taken[0] += size
        if not self._left:
            self._transport.write(self._said)


def _answer(head: bytes) -> bytes:
    etag, body = b"", b""
    if head.startswith(b"POST"):
        body = f"<InitiateMultipartUploadResult><UploadId>{uuid4()}</UploadId></InitiateMultipartUploadResult>".encode()
    elif head.startswith(b"PUT"):
        etag = f'etag: "{uuid4().hex}"\r\n'.encode()
    return b"HTTP/1.1 200 OK\r\n%scontent-length: %d\r\n\r\n%s" % (etag, len(body), body)


@asynccontextmanager
async def discarding(pause: float, taken: list[int]) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Discarding(pause, taken), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


@contextmanager
def staging_server(endpoint: str) -> Iterator[tuple[int, psutil.Process]]:
    command = [sys.executable, "-m", "tests.objects.staging_server", endpoint]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline()), psutil.Process(process.pid)
        finally:
            process.kill()


async def put(port: int, size: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % size)
    piece = bytes(MEBIBYTE)
    for _ in range(size // MEBIBYTE):
        writer.write(piece)
        await writer.drain()
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def most_memory(process: psutil.Process, done: asyncio.Event) -> int:
    """The most memory the process had while it was looked at, in bytes."""
    most = 0
    while not done.is_set():
        most = max(most, process.memory_info().rss)
        await asyncio.sleep(0.02)
    return most


@pytest.mark.parametrize(
    ("bodies", "size", "pause"),
    [
        pytest.param(64, 9 * MEBIBYTE, 0.0, id="many"),
        pytest.param(1, 512 * MEBIBYTE, 0.0, id="one that is large"),
        pytest.param(64, 9 * MEBIBYTE, 0.5, id="many, and a slow store"),
    ],
)
async def test_bodies_are_not_held(bodies: int, size: int, pause: float) -> None:
    taken = [0]
    async with discarding(pause, taken) as endpoint:
        with staging_server(endpoint) as (port, process):
            done = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(most_memory(process, done))
                async with asyncio.TaskGroup() as clients:
                    for _ in range(bodies):
                        clients.create_task(put(port, size))
                done.set()
    assert taken[0] == bodies * size, "everything has come through"
    assert looking.result() < LIMIT, f"{looking.result() // MEBIBYTE} MiB"
