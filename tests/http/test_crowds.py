"""Connections up to the limit of open files keep no other client out: those of the largest crowd that wait for their
client make room.
"""

import asyncio
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest
import trustme

from gateway.http import crowd as http_crowd
from gateway.http.crowd import Crowd, Seat
from tests.processes import free_port, started
from tests.test_reload import WRITER, Served
from tests.test_workers import wait_for_workers
from tests.tiers import first
from tests.waiting import PATIENCE

SOFT, HARD = 150, 300
"""The limits of open files with which the gateway starts. A gateway without a crowd has less than fifty open."""
MOST = int(HARD * 0.9)
FEW = 150
"""A lower limit, for crowds that take more than a file."""
CROWD = 600
OURS, THEIRS = "127.0.0.2", "127.0.0.1"
ASKED = b"GET /v1/live HTTP/1.1\r\nhost: a\r\n\r\n"
LARGE = f"GET /v1/tables/large HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {WRITER}\r\n\r\n".encode()
"""The answer has more than the gateway and the system buffer for a client."""
LARGE_TABLE = """
CREATE TABLE large (id bigint PRIMARY KEY, content text);
INSERT INTO large VALUES (1, repeat('x', 900000));
"""
ROOMY = "memory = 1073741824\nshare = 1.0"
"""Memory for the answers to a crowd, so that its requests do not wait for that."""
PUBLIC = "[telemetry]\npublic_metrics = true\n"


@asynccontextmanager
async def served(
    folder: Path, dsn: str, server: str = "", workers: int = 1, files: tuple[int, int] = (SOFT, HARD)
) -> AsyncIterator[Served]:
    file, port = folder / "gateway.toml", free_port()
    Served(None, file, dsn, port, server).write(PUBLIC)  # type: ignore[arg-type]  # not running yet
    arguments = ("serve", "--config", str(file), "--workers", str(workers))
    with started(*arguments, files=files, limits={"max_wait": 600}) as process:
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
            for sending in every_trickle:
                sending.cancel()
            every_trickle.clear()
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

    @classmethod
    async def narrow(cls, gateway: Served, address: str) -> "Raw":
        """Open one that has room for little of an answer: in the system, too, because packets are small."""
        connecting = socket.socket()
        connecting.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        connecting.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", gateway.port))
        every.append(opened := cls(*await asyncio.open_connection(sock=connecting, limit=1024)))
        return opened

    async def ask(self, asked: bytes = ASKED) -> bytes:
        self.writer.write(asked)
        return await self.answer()

    async def answer(self) -> bytes:
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


async def unread(gateway: Served, number: int) -> list[Raw]:
    """Open connections that ask for much, and read nothing but a byte."""
    opened = []
    for _ in range(number):
        opened.append(one := await Raw.narrow(gateway, THEIRS))
        one.writer.write(LARGE)
    for one in opened:
        with suppress(OSError):
            await one.reader.read(1)  # so the answer has begun
    return opened


async def begun(gateway: Served, number: int) -> list[Raw]:
    """Open connections that have sent a part of a body, for which the gateway waits."""
    opened = []
    for _ in range(number):
        opened.append(one := await Raw.open(gateway, THEIRS))
        one.writer.write(posted("/v1/leases/job/9", b'{"holder": ', 100, "expect: 100-continue\r\n"))
        with suppress(OSError, EOFError):
            await one.reader.readuntil(b"\r\n\r\n")
    return opened


async def trickled(gateway: Served, number: int) -> list[Raw]:
    """Open such connections that send a byte more now and then."""
    opened = await begun(gateway, number)
    every_trickle.extend(asyncio.create_task(trickle(one)) for one in opened)
    return opened


every_trickle: list[asyncio.Task[None]] = []


async def trickle(one: Raw) -> None:
    while one.is_open():
        await asyncio.sleep(1)
        one.writer.write(b" ")


def posted(path: str, body: bytes, length: int | None = None, more: str = "") -> bytes:
    fields = f"host: a\r\nauthorization: Bearer {WRITER}\r\n{more}content-length: {length or len(body)}"
    return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode() + body


def waiter(holder: int) -> bytes:
    """A request for a lock, which waits for it."""
    return posted("/v1/leases/job/1", f'{{"holder": "{holder}", "wait": 600}}'.encode())


async def held(gateway: Served) -> str:
    """Acquire the lock. Return the path of the lease, which releases it."""
    async with gateway.client() as client:
        answer = await client.post("/v1/leases/job/1", json={"holder": "first", "ttl": 3600})
        assert answer.status_code in (200, 201), answer.text
        return f"/v1/leases/job/1/{answer.json()['lease']}"


def beside(gateway: Served) -> httpx.AsyncClient:
    """A client at the address that is not crowded."""
    return gateway.client(transport=httpx.AsyncHTTPTransport(local_address=OURS))


async def waiters(gateway: Served) -> int:
    async with beside(gateway) as client:
        number: int = (await client.get("/v1/leases/job/1")).json()["waiters"]
        return number


async def release(gateway: Served, lease: str) -> None:
    async with beside(gateway) as client:
        assert (await client.delete(lease)).status_code == 204


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


async def idle(gateway: Served, number: int, address: str = THEIRS) -> list[Raw]:
    return [await Raw.open(gateway, address) for _ in range(number)]


@pytest.mark.parametrize("slow", first([(unread, trickled), (unread,), (trickled,)]))
async def test_a_crowd_of_slow_requests_makes_room_for_all_others(
    tmp_path: Path, dsn: str, slow: tuple[Callable[[Served, int], Awaitable[list[Raw]]], ...]
) -> None:
    """They do not read their answers, or do not send their bodies."""
    session = await asyncpg.connect(dsn)
    await session.execute(LARGE_TABLE)
    await session.close()
    async with served(tmp_path, dsn, ROOMY, files=(FEW, FEW)) as gateway:
        lease = await held(gateway)
        at_work = await Raw.open(gateway, THEIRS)
        at_work.writer.write(waiter(1))
        async with asking(gateway):
            for kind in slow:
                await kind(gateway, FEW)
            line = await asyncio.to_thread(gateway.until, "connections crowded")
            # More than the last files, and so few that the crowd stays larger: database sessions take files, too.
            many = []
            for _ in range(FEW // 4):  # each asks at once: on a slow machine, the first ones would be closed as idle
                many.append(one := await Raw.open(gateway, OURS))
                assert (await one.ask()).startswith(b"HTTP/1.1 2")
        assert files_of(gateway) <= FEW * 0.9 + 2
        assert all(one.is_open() for one in many)
        assert (line["limit"], line["network"]) == (FEW, THEIRS)
        assert line["closed"] > 0
        await release(gateway, lease)
        assert (await at_work.answer()).startswith(b"HTTP/1.1 20"), "it was at work, and in the way of nobody else"


def test_a_small_network_makes_no_way_for_a_crowd_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file is left, because the gateway has opened sessions with the database meanwhile."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (640, 640))
    crowd = Crowd()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))

        def entered(address: str) -> tuple[socket.socket, Seat]:
            where = listener.getsockname()
            client = stack.enter_context(socket.create_connection(where, source_address=(address, 0)))
            seat = crowd.enter(None, stack.enter_context(listener.accept()[0]))
            assert seat is not None
            return client, seat

        modest, _ = entered(OURS)
        theirs = [entered(THEIRS)[1] for _ in range(20)]
        for seat in theirs:
            seat.busy()
        assert not crowd.make_room(None)
        theirs[5].busy(awaits_client=True)
        theirs[6].idle()
        assert [crowd.make_room(None) for _ in range(3)] == [True, True, False]
        assert [number for number, seat in enumerate(theirs) if seat.has_made_way] == [5, 6]
        modest.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        with pytest.raises(BlockingIOError):
            modest.recv(1)


async def test_a_crowd_at_work_keeps_its_connections_and_gets_no_more(tmp_path: Path, dsn: str) -> None:
    """Each of them waits for a lock."""
    async with served(tmp_path, dsn) as gateway:
        lease = await held(gateway)
        async with asking(gateway):
            opened = await idle(gateway, HARD)
            for number, one in enumerate(opened):
                one.writer.write(waiter(number))
            async with asyncio.timeout(PATIENCE):
                while await waiters(gateway) < len(at_work := [one for one in opened if one.is_open()]):
                    await asyncio.sleep(0.1)
            later = []
            for number in range(100):
                later += await idle(gateway, 1)
                later[-1].writer.write(waiter(HARD + number))
                await asyncio.sleep(0.01)
            await settled(later, 20)  # a few may find room
            line = await asyncio.to_thread(gateway.until, "connections crowded")
        assert line["closed"] > 0
        assert 100 < len(at_work) <= MOST
        assert all(one.is_open() for one in at_work)
        await release(gateway, lease)
        first, _ = await asyncio.wait(
            [asyncio.create_task(one.answer()) for one in at_work], return_when=asyncio.FIRST_COMPLETED
        )
        assert (await first.pop()).startswith(b"HTTP/1.1 20")


async def test_idle_connections_make_room_before_slow_requests(tmp_path: Path, dsn: str) -> None:
    async with served(tmp_path, dsn, files=(FEW, FEW)) as gateway:
        before, idle_ones = await begun(gateway, 40), await idle(gateway, 40)
        while all(one.is_open() for one in idle_ones):
            before += await begun(gateway, 1)
        after = await begun(gateway, 30)
        await settled(idle_ones, 10)
        assert all(one.is_open() for one in (*before, *after, *idle_ones[35:]))
        after += await begun(gateway, 20)
        await settled(idle_ones, 0)
        await settled(before, len(before) - 10)
        still = [one.is_open() for one in (*before, *after)]
        assert all(still[20:]), "those that waited longest made room"


@pytest.mark.thorough
async def test_the_largest_of_many_networks_makes_room(tmp_path: Path, dsn: str) -> None:
    async with served(tmp_path, dsn) as gateway:
        single = [one for number in range(150) for one in await idle(gateway, 1, f"127.0.1.{number + 1}")]
        opened = await idle(gateway, 80)
        more = [one for number in range(60) for one in await idle(gateway, 1, f"127.0.2.{number + 1}")]
        await settled(opened, 60)
        assert all(one.is_open() for one in (*single, *more))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1024, 4096), 4096),
        ((1024, 1_048_576), 16_384),
        ((1024, resource.RLIM_INFINITY), 16_384),
        ((65_536, 1_048_576), 65_536),
        ((1_048_576, 1_048_576), 16_384),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 16_384),
    ],
)
def test_the_limit_of_files_is_raised_up_to_a_ceiling(
    before: tuple[int, int], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [before]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert http_crowd.set_limit_of_files() == after
    assert limits[-1] == (after, before[1])
