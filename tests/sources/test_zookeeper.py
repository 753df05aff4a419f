"""ZooKeeper's traps, each shown by a real server, and what the source makes of them."""

import asyncio
import struct
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

from gateway.client.errors import NotAcquired, Refused, Unavailable
from gateway.client.source import Held
from gateway.client.zookeeper import ZooKeeperSource
from tests.sources import servers
from tests.sources.conftest import started
from tests.sources.kinds import KINDS, Kind
from tests.sources.network import Network
from tests.sources.servers import Server
from tests.sources.test_contract import again
from tests.waiting import PATIENCE

ZOOKEEPER = next(kind for kind in KINDS if kind.name == "zookeeper")


@pytest.fixture
def kind() -> Kind:
    return ZOOKEEPER


@pytest.fixture
def resource() -> str:
    return f"order/{uuid.uuid4().hex}"


@pytest.fixture
async def source(server: Server) -> AsyncIterator[ZooKeeperSource]:
    opened = ZooKeeperSource(server.address)
    yield opened
    await opened.aclose()


@contextmanager
def connected(server: Server) -> "Iterator[KazooClient]":
    client = KazooClient(server.address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def parent(resource: str) -> str:
    return f"/fencing/{quote(resource, safe='')}"


async def acquire(source: ZooKeeperSource, resource: str, holder: str = "one", wait: float | None = 0) -> Held:
    return await source.acquire(resource, holder=holder, ttl=10, wait=wait, mode="exclusive")


async def test_the_token_is_the_czxid_of_the_own_node(source: ZooKeeperSource, server: Server, resource: str) -> None:
    held = await acquire(source, resource)
    with connected(server) as client:
        (name,) = client.get_children(parent(resource))
        data, stat = client.get(f"{parent(resource)}/{name}")
        assert (data, stat.czxid) == (b"one", held.value)
        changed = client.set(f"{parent(resource)}/{name}", b"another")
    assert changed.mzxid > held.value, "The transaction of the last change is no token: it changes under the holder."
    assert (await source.renew(held, 2)).value == held.value
    await source.release(held)


async def test_it_is_the_lock_of_kazoo(source: ZooKeeperSource, server: Server, resource: str) -> None:
    held = await acquire(source, resource)
    with connected(server) as client:
        theirs = Lock(client, parent(resource), "theirs")
        assert not theirs.acquire(blocking=False)
        await source.release(held)
        assert theirs.acquire(timeout=PATIENCE)
        with pytest.raises(NotAcquired) as refused:
            await acquire(source, resource)
        assert refused.value.holder == "theirs"
        waiting = asyncio.create_task(acquire(source, resource, wait=PATIENCE))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        theirs.release()
    after = await waiting
    assert after.value > held.value
    await source.release(after)


async def test_a_connection_that_a_starting_server_swallows_is_given_up(
    server: Server, net: Network, resource: str
) -> None:
    """The trap: kazoo waits for the answer as long as a session lasts, and has lost the session by then."""
    source = ZooKeeperSource(net.address, timeout=0.5)
    held = await source.acquire(resource, holder="one", ttl=2 * PATIENCE, wait=0, mode="exclusive")
    net.swallow_next()
    net.lose_answer_to(parent(resource).encode())
    async with asyncio.timeout(PATIENCE):
        assert await again(lambda: source.holds(held))
    assert (net.lost, net.swallowed) == (1, 1)
    await source.release(held)
    await source.aclose()


def snapshots(server: Server) -> list[Path]:
    """Return the complete snapshots of the server, the newest first. A kill may have interrupted one.

    A snapshot ends with: checksum, "/", zxid, version and value of the digest, checksum, "/".
    """
    found = sorted(
        (server.directory / "data/version-2").glob("snapshot.*"),
        key=lambda file: int(file.suffix[1:], 16),
        reverse=True,
    )
    return [file for file in found if is_whole(file.read_bytes())]


def is_whole(content: bytes) -> bool:
    ends = len(content) - 46, len(content) - 13
    return ends[0] > 0 and all(struct.unpack_from(">q", content, end)[0] == zlib.adler32(content[:end]) for end in ends)


def set_sequence(server: Server, path: str, number: int) -> None:
    """Change how the node's next child is numbered, in the server's newest snapshot: it saves 2^31 creations."""
    newest = snapshots(server)[0]
    content = bytearray(newest.read_bytes())
    ends = len(content) - 46, len(content) - 13
    # Its name, its data, then: acl, czxid, mzxid, ctime, mtime, version, cversion.
    at = content.index(struct.pack(">i", len(path)) + path.encode()) + 4 + len(path)
    (length,) = struct.unpack_from(">i", content, at)
    struct.pack_into(">i", content, at + 4 + max(length, 0) + 5 * 8 + 4, number)
    for end in ends:
        struct.pack_into(">q", content, end, zlib.adler32(content[:end]))
    newest.write_bytes(content)


async def test_the_sequence_ends_and_tokens_go_on(tmp_path: Path) -> None:
    """The trap: after 2^31 children the number repeats, and a client that relies on it shares the lock with others."""
    with ExitStack() as stack:
        server = started(lambda: servers.zookeeper(tmp_path, "-Dzookeeper.snapCount=2"), stack)
        with connected(server) as client:
            client.ensure_path(parent("order/5"))
            while not any(parent("order/5").encode() in file.read_bytes() for file in snapshots(server)):
                client.create("/other", sequence=True)
        server.kill()
        set_sequence(server, parent("order/5"), 2**31 - 2)
        server.start()
        source, held = ZooKeeperSource(server.address), []
        held.append(await acquire(source, "order/5", "first", wait=PATIENCE))
        waiting = []
        with connected(server) as client:
            for place in range(1, 5):
                waiting.append(asyncio.create_task(acquire(source, "order/5", f"waiter-{place}", wait=None)))
                while len(client.get_children(parent("order/5"))) <= place:
                    await asyncio.sleep(0.01)
            numbers = [name.rpartition("__")[2] for name in client.get_children(parent("order/5"))]
        assert numbers.count("2147483647") > 1, numbers
        for waiter in waiting:
            assert not any(task.done() for task in waiting[waiting.index(waiter) :])
            await source.release(held[-1])
            held.append(await waiter)
        await source.release(held[-1])
        await source.aclose()
    assert [hold.holder for hold in held] == ["first", "waiter-1", "waiter-2", "waiter-3", "waiter-4"]
    tokens = [hold.value for hold in held]
    assert tokens == sorted(set(tokens))


async def test_a_session_lasts_as_long_as_the_server_says(source: ZooKeeperSource, resource: str) -> None:
    """The trap: there is a longest session, 20 ticks unless it is set otherwise, whatever is asked for."""
    for asked, granted in ((3600, 30.0), (0.01, 0.2)):
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        held = await again(partial(source.acquire, resource, holder="one", ttl=asked, wait=0, mode="exclusive"))
        assert began <= held.valid_until - granted <= time.clock_gettime(time.CLOCK_BOOTTIME)
        with suppress(Unavailable):  # the shortest hold is already over
            await source.release(held)


async def test_a_busy_event_loop_does_not_lose_the_lock(source: ZooKeeperSource, resource: str) -> None:
    """kazoo keeps the session alive from a thread of its own, for as long as the process runs."""
    held = await source.acquire(resource, holder="one", ttl=3, wait=0, mode="exclusive")
    time.sleep(4.5)
    assert (await source.renew(held, 3)).value == held.value
    await source.release(held)


async def test_nodes_belong_to_their_user(server: Server, resource: str) -> None:
    """The trap: ZooKeeper knows no wrong password. Each user and password is an identity of its own.

    Nodes are closed to other identities.
    """
    root = f"/{uuid.uuid4().hex}"
    ours = ZooKeeperSource(server.address, root=root, username="locks", password="secret")
    held = await acquire(ours, resource)
    for username, password in (("locks", "wrong"), ("nobody", "secret"), (None, None)):
        stranger = ZooKeeperSource(server.address, root=root, username=username, password=password)
        with pytest.raises(Refused):
            await acquire(stranger, resource)
        await stranger.aclose()
    assert await ours.holds(held)
    await ours.release(held)
    await ours.aclose()


async def test_closing_the_source_gives_everything_back(server: Server, resource: str) -> None:
    one, other = ZooKeeperSource(server.address), ZooKeeperSource(server.address)
    held = await acquire(one, resource)
    await one.aclose()
    taken = await acquire(other, resource)
    assert taken.value > held.value
    await other.release(taken)
    await other.aclose()
