"""Idle connections up to the limit of open files keep no other client out: the largest crowd makes room."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme

from tests.processes import free_port, started
from tests.test_reload import Served
from tests.test_workers import wait_for_workers
from tests.waiting import PATIENCE

SOFT, HARD = 150, 300
"""The limits of open files with which the gateway starts. A gateway without a crowd has less than fifty open."""
MOST = int(HARD * 0.9)
CROWD = 600
OURS, THEIRS = "127.0.0.2", "127.0.0.1"
ASKED = b"GET /v1/live HTTP/1.1\r\nhost: a\r\n\r\n"
PUBLIC = "[telemetry]\npublic_metrics = true\n"


@asynccontextmanager
async def served(folder: Path, dsn: str, server: str = "", workers: int = 1) -> AsyncIterator[Served]:
    file, port = folder / "gateway.toml", free_port()
    Served(None, file, dsn, port, server).write(PUBLIC)  # type: ignore[arg-type]  # not running yet
    arguments = ("serve", "--config", str(file), "--workers", str(workers))
    with started(*arguments, files=(SOFT, HARD)) as process:
        gateway = Served(process, file, dsn, port, server)
        gateway.until("listening")
        wait_for_workers(gateway, workers)
        try:
            yield gateway
        finally:
            for one in every:
                one.writer.transport.abort()
                with suppress(OSError):
                    await one.writer.wait_closed()
            every.clear()
        assert await asyncio.to_thread(process.stop) == 0


every: list["Raw"] = []
"""The connections that a test has opened."""


@dataclass
class Raw:
    """A connection, of which a test sees each byte."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def open(cls, gateway: Served, address: str, context: ssl.SSLContext | None = None) -> "Raw":
        where: dict[str, Any] = {"local_addr": (address, 0), "ssl": context}
        every.append(opened := cls(*await asyncio.open_connection("127.0.0.1", gateway.port, **where)))
        return opened

    async def ask(self) -> bytes:
        self.writer.write(ASKED)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        await self.reader.readexactly(length)
        return head.partition(b"\r\n")[0]

    def is_open(self) -> bool:
        return not self.reader.at_eof() and self.reader.exception() is None


@dataclass
class Modest:
    """A client that asks all the time: on one connection, and on a new one for each request."""

    gateway: Served
    context: ssl.SSLContext | None
    seconds: list[float] = field(default_factory=list)

    async def ask(self, kept: Raw) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            for one in (kept, None):
                began = clock()
                used = one or await Raw.open(self.gateway, OURS, self.context)
                assert (await used.ask()).startswith(b"HTTP/1.1 2")
                self.seconds.append(clock() - began)
                if one is None:
                    used.writer.close()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def asking(gateway: Served, context: ssl.SSLContext | None = None) -> AsyncIterator[Modest]:
    """Let the modest client ask. It gets each answer, on the connection that it keeps, too."""
    modest, kept = Modest(gateway, context), await Raw.open(gateway, OURS, context)
    asks = asyncio.create_task(modest.ask(kept))
    try:
        yield modest
        asked = len(modest.seconds)
        async with asyncio.timeout(PATIENCE):
            while len(modest.seconds) < asked + 10 and not asks.done():
                await asyncio.sleep(0.01)
    finally:
        asks.cancel()
        with suppress(asyncio.CancelledError):
            await asks
    # The machine may stand still for seconds. A gateway that is full would let no client in for twenty.
    slowest = sorted(modest.seconds)
    assert slowest[len(slowest) * 9 // 10] < 1
    assert slowest[-1] < 10


async def crowd(gateway: Served, number: int, context: ssl.SSLContext | None = None) -> list[Raw]:
    """Open connections that say nothing, begin a head, or wait after an answer."""
    opened = []
    for index in range(number):
        one = await Raw.open(gateway, THEIRS, context)
        opened.append(one)
        if index % 3 == 1:
            one.writer.write(ASKED[:20])
        if index % 3 == 2:
            with suppress(OSError, EOFError):
                await one.ask()
    return opened


def files_of(gateway: Served) -> int:
    return psutil.Process(gateway.process.process.pid).num_fds()


async def settled(opened: list[Raw], number: int) -> None:
    """Wait until no more than so many are open."""
    async with asyncio.timeout(PATIENCE):
        while sum(one.is_open() for one in opened) > number:
            await asyncio.sleep(0.02)


async def test_a_crowd_of_idle_connections_makes_room_for_all_others(tmp_path: Path, dsn: str) -> None:
    async with served(tmp_path, dsn) as gateway:
        [line] = gateway.events("listening")
        assert line["files"] == HARD, "the limit is raised as far as the system allows"
        async with asking(gateway):
            opened = await crowd(gateway, CROWD)
            await settled(opened, MOST)
            assert files_of(gateway) <= MOST + 2
            line = await asyncio.to_thread(gateway.until, "connections crowded")
        assert [line] == gateway.events("connections crowded")
        assert (line["level"], line["limit"], line["network"]) == ("warning", HARD, THEIRS)
        assert line["closed"] > 0
        assert MOST - 100 < line["connections"] <= MOST
        still = [one.is_open() for one in opened]
        assert 100 < sum(still) < MOST
        assert all(still[-100:]), "the oldest ones made room"


@pytest.mark.thorough
async def test_a_crowd_that_never_begins_its_handshake_makes_room(tmp_path: Path, dsn: str) -> None:
    """Without TLS's handshake there is no connection for HTTP yet, but a file."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    async with served(tmp_path, dsn, f'tls_certificate = "{tmp_path / "both.pem"}"') as gateway:
        async with asking(gateway, context):
            finished = await crowd(gateway, 30, context)
            opened = [await Raw.open(gateway, THEIRS) for _ in range(CROWD)]
            await settled(finished, 0)
            await settled(opened, MOST)
            await asyncio.to_thread(gateway.until, "connections crowded")
        assert all(one.is_open() for one in opened[-50:])


@pytest.mark.thorough
async def test_a_crowd_makes_room_at_each_of_several_workers(tmp_path: Path, dsn: str) -> None:
    async with served(tmp_path, dsn, workers=2) as gateway:
        async with asking(gateway):
            opened = await crowd(gateway, 2 * CROWD)
            await settled(opened, 2 * MOST)
            await asyncio.to_thread(gateway.process.wait_for, lambda: len(gateway.events("connections crowded")) == 2)
        lines = gateway.events("connections crowded")
        assert {line["worker"] for line in lines} == {1, 2}
        assert sum(one.is_open() for one in opened) > MOST
