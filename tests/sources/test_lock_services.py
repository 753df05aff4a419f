"""The traps of etcd, Redis and ZooKeeper, each shown by a real server, and what their sources make of them."""

import asyncio
import os
import ssl
import struct
import subprocess
import time
import uuid
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock
from redis.asyncio import Redis

from gateway.client.errors import NotAcquired, Refused, Unavailable
from gateway.client.etcd import EtcdApi, EtcdSource, decoded, encoded
from gateway.client.redis import RedisSource
from gateway.client.zookeeper import ZooKeeperSource
from tests.processes import closed_port, free_port
from tests.sources import servers
from tests.sources.conftest import KINDS, Kind, acquire, started
from tests.sources.servers import Network, Server
from tests.sources.test_contract import again
from tests.waiting import PATIENCE


def queue(resource: str) -> str:
    return f"fencing/{quote(resource, safe='')}"


async def keys(api: EtcdApi, resource: str) -> list[dict[str, str]]:
    first = queue(resource) + "/"
    answer = await api.call(
        "kv/range", {"key": encoded(first.encode()), "range_end": encoded((first[:-1] + "0").encode())}
    )
    return list(answer.get("kvs", []))


async def queued(api: EtcdApi, resource: str, number: int) -> None:
    async with asyncio.timeout(60):
        while len(await keys(api, resource)) < number:
            await asyncio.sleep(0.01)


def etcdctl(server: Server, *arguments: str) -> str:
    command = ["etcdctl", "--endpoints", server.address, *arguments]
    environment = {**os.environ, "ETCDCTL_API": "3"}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


class TestEtcd:
    """etcd's traps, and what the source makes of them."""

    @pytest.fixture
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if kind.name == "etcd")

    @pytest.fixture
    async def source(self, server: Server) -> AsyncIterator[EtcdSource]:
        opened = EtcdSource(f"http://{server.address}")
        yield opened
        await opened.aclose()

    @pytest.fixture
    async def api(self, server: Server) -> AsyncIterator[EtcdApi]:
        opened = EtcdApi([f"http://{server.address}"], timeout=5)
        yield opened
        await opened.aclose()

    async def test_the_token_is_the_create_revision_of_the_own_key(
        self, source: EtcdSource, api: EtcdApi, resource: str
    ) -> None:
        for wait in (0, 5):
            held = await acquire(source, resource, wait=wait)
            (key,) = await keys(api, resource)
            assert held.value == int(key["create_revision"])
            assert key["value"] == encoded(b"one")
            await source.release(held)

    async def test_header_revisions_must_not_be_mixed_with_create_revisions(
        self, source: EtcdSource, api: EtcdApi, resource: str
    ) -> None:
        """The trap: the owner's answers carry a revision that is higher than the token of its successor, who waits."""
        first = await acquire(source, resource, "first")
        second_waiting = asyncio.create_task(acquire(source, resource, "second", wait=None))
        await queued(api, resource, 2)
        third_waiting = asyncio.create_task(acquire(source, resource, "third", wait=None))
        await queued(api, resource, 3)
        await source.release(first)
        second = await second_waiting
        header = int((await api.call("kv/range", {"key": encoded(b"anything")}))["header"]["revision"])
        await source.release(second)
        third = await third_waiting
        assert first.value < second.value < third.value
        assert header > third.value, "A second holder that took the header's revision would fence its successor off."
        await source.release(third)

    async def test_it_is_the_lock_of_etcdctl_and_of_the_go_client(
        self, source: EtcdSource, server: Server, resource: str
    ) -> None:
        held = await acquire(source, resource)
        ours = subprocess.Popen(
            ["etcdctl", "--endpoints", server.address, "lock", queue(resource)],
            env={**os.environ, "ETCDCTL_API": "3"},
            stdout=subprocess.PIPE,
            text=True,
        )
        with ours:
            try:
                while len(etcdctl(server, "get", "--prefix", "--keys-only", f"{queue(resource)}/").split()) < 2:
                    await asyncio.sleep(0.02)
                await source.release(held)
                assert ours.stdout is not None
                assert (await asyncio.to_thread(ours.stdout.readline)).startswith(f"{queue(resource)}/")
                with pytest.raises(NotAcquired):
                    await acquire(source, resource)
                waiting = asyncio.create_task(acquire(source, resource, "after", wait=20))
                await asyncio.sleep(0.1)
                assert not waiting.done()
            finally:
                ours.terminate()
        after = await waiting
        assert after.value > held.value
        await source.release(after)

    @pytest.mark.parametrize("gone", ["lease", "key"])
    async def test_a_waiter_whose_place_is_gone_does_not_get_the_lock(
        self, source: EtcdSource, server: Server, api: EtcdApi, resource: str, gone: str
    ) -> None:
        """The lock of etcd 3.4.3 did: its waiters never looked at their own key again (Jepsen, 2020)."""
        held = await acquire(source, resource)
        waiting = asyncio.create_task(acquire(source, resource, "waiter", wait=None))
        await queued(api, resource, 2)
        (waiter,) = [key for key in await keys(api, resource) if int(key["create_revision"]) > held.value]
        if gone == "lease":
            etcdctl(server, "lease", "revoke", f"{int(waiter['lease']):x}")
        else:
            etcdctl(server, "del", decoded(waiter["key"]).decode())
        await source.release(held)
        with pytest.raises(Unavailable):
            await waiting

    async def test_a_revision_that_is_compacted_ends_the_watch_and_not_the_wait(
        self, source: EtcdSource, api: EtcdApi, server: Server, resource: str
    ) -> None:
        held = await acquire(source, resource)
        etcdctl(server, "put", "anything", "else")
        etcdctl(server, "compact", str(held.value + 1))
        async with asyncio.timeout(30):
            await api.until_deleted(b"anything", after=0)
        await source.release(held)

    async def test_an_endpoint_that_is_gone_is_passed_over(self, server: Server, resource: str) -> None:
        with closed_port() as port:
            source = EtcdSource([f"http://127.0.0.1:{port}", f"http://{server.address}/"])
            held = await acquire(source, resource)
            assert await source.holds(held)
            await source.release(held)
            await source.aclose()

    @pytest.mark.installed
    async def test_without_the_json_gateway_it_says_what_to_do(self, tmp_path: Path, resource: str) -> None:
        """The trap: etcd 3.4 has it on by default on the command line, and off where there is a configuration file."""
        clients, peers = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        (tmp_path / "etcd.yml").write_text(
            f"data-dir: {tmp_path}/data\nlog-level: error\n"
            f"listen-client-urls: {clients}\nadvertise-client-urls: {clients}\n"
            f"listen-peer-urls: {peers}\ninitial-advertise-peer-urls: {peers}\ninitial-cluster: default={peers}\n"
        )
        with ExitStack() as stack:
            started(lambda: servers.etcd_configured(tmp_path, clients), stack)
            source = EtcdSource(clients)
            with pytest.raises(Refused, match="enable-grpc-gateway"):
                await acquire(source, resource)
            await source.aclose()

    @pytest.fixture
    def guarded(self, own: Server) -> Server:
        """A server whose user ``locks`` with the password ``secret`` alone may use the keys below ``fencing/``."""
        for arguments in (
            ("user", "add", "root:root-secret"),
            ("user", "grant-role", "root", "root"),
            ("user", "add", "locks:secret"),
            ("role", "add", "locks"),
            ("role", "grant-permission", "locks", "--prefix=true", "readwrite", "fencing/"),
            ("user", "grant-role", "locks", "locks"),
            ("auth", "enable"),
        ):
            with suppress(subprocess.CalledProcessError):  # the role root is there already in some releases
                etcdctl(own, *arguments)
        return own

    async def test_users_and_passwords(self, guarded: Server) -> None:
        url = f"http://{guarded.address}"
        source = EtcdSource(url, username="locks", password="secret")
        held = await acquire(source, "order/5", wait=5)
        guarded.restart()
        assert await source.holds(held), "The server has forgotten its tokens: another one is asked for."
        with pytest.raises(NotAcquired):
            await acquire(source, "order/5", "two", wait=0.3)
        await source.release(held)
        await source.aclose()
        for username, password, prefix in (
            ("locks", "wrong", "fencing"),
            ("nobody", "secret", "fencing"),
            (None, None, "fencing"),
            ("locks", "secret", "elsewhere"),
        ):
            stranger = EtcdSource(url, username=username, password=password, prefix=prefix)
            for wait in (0, 5):
                with pytest.raises(Refused):
                    await acquire(stranger, "order/5", wait=wait)
            await stranger.aclose()

    @pytest.mark.installed
    async def test_tls(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
        authority.cert_pem.write_to_path(tmp_path / "authority.pem")
        with ExitStack() as stack:
            server = started(lambda: servers.etcd(tmp_path, tls=True), stack)
            trusting = ssl.create_default_context(cafile=tmp_path / "authority.pem")
            source = EtcdSource(f"https://{server.address}", tls=trusting)
            held = await acquire(source, "order/5")
            await source.release(held)
            await source.aclose()
            distrusting = EtcdSource(f"https://{server.address}")
            with pytest.raises(Unavailable):
                await acquire(distrusting, "order/5")
            await distrusting.aclose()

    async def test_what_is_no_etcd_is_no_lock(self, resource: str) -> None:
        """A proxy that answers something else, as JSON or not."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as proxy:
            port = proxy.sockets[0].getsockname()[1]
            source = EtcdSource(f"http://127.0.0.1:{port}")
            with pytest.raises(Unavailable):
                await acquire(source, resource)
            await source.aclose()


def counter(resource: str) -> str:
    return f"fencing:{{{quote(resource, safe='')}}}:token"


def lock(resource: str) -> str:
    return f"fencing:{{{quote(resource, safe='')}}}:lock"


class TestRedis:
    """Redis's traps, and what the source makes of them."""

    @pytest.fixture
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if kind.name == "redis")

    @pytest.fixture
    async def source(self, server: Server) -> AsyncIterator[RedisSource]:
        opened = RedisSource(f"redis://{server.address}")
        yield opened
        await opened.aclose()

    @pytest.fixture
    async def redis(self, server: Server) -> AsyncIterator["Redis"]:
        async with Redis.from_url(f"redis://{server.address}", decode_responses=True) as client:
            yield client

    async def test_the_token_is_the_counter_and_the_counter_stays(
        self, source: RedisSource, redis: "Redis", resource: str
    ) -> None:
        for token in (1, 2, 3):
            held = await acquire(source, resource, ttl=10)
            assert held.value == token
            assert str(await redis.get(lock(resource))).startswith(f"{token} ")
            assert 1000 < await redis.pttl(lock(resource)) <= 10000, "milliseconds"
            await source.release(held)
            assert await redis.exists(lock(resource)) == 0
        assert await redis.get(counter(resource)) == "3"
        assert await redis.ttl(counter(resource)) == -1, "A counter that expires would begin again."

    async def test_a_high_counter_keeps_its_last_digits(
        self, source: RedisSource, redis: "Redis", resource: str
    ) -> None:
        """The trap: in Lua every number is a double, and what INCR says in a script is inexact above 2^53."""
        await redis.set(counter(resource), 2**53)
        inexact = await redis.eval("return string.format('%.0f', redis.call('INCR', KEYS[1]))", 1, counter(resource))
        assert inexact == str(2**53)
        assert await redis.get(counter(resource)) == str(2**53 + 1)
        held = await acquire(source, resource)
        assert held.value == 2**53 + 2
        await source.release(held)
        await redis.set(counter(resource), 2**63 - 2)
        held = await acquire(source, resource)
        assert held.value == 2**63 - 1
        await source.release(held)

    @pytest.mark.parametrize("value", [2**63 - 1, "no number"])
    async def test_a_counter_that_cannot_be_counted_up_gives_no_lock(
        self, source: RedisSource, redis: "Redis", resource: str, value: int | str
    ) -> None:
        await redis.set(counter(resource), value)
        with pytest.raises(Refused):
            await acquire(source, resource)
        assert await redis.exists(lock(resource)) == 0

    @pytest.mark.installed
    async def test_a_failover_loses_what_was_not_replicated(self, tmp_path: Path, resource: str) -> None:
        """The trap: replication is asynchronous, and the new primary gives a token that was given already."""
        directories = [tmp_path / "primary", tmp_path / "replica"]
        for directory in directories:
            directory.mkdir()
        with ExitStack() as stack:
            primary = started(lambda: servers.redis(directories[0], "--repl-diskless-sync-delay", "0"), stack)
            replica = started(lambda: servers.redis(directories[1], "--replicaof", f"127.0.0.1 {primary.port}"), stack)
            old, new = RedisSource(f"redis://{primary.address}"), RedisSource(f"redis://{replica.address}")
            first = await acquire(old, resource)
            await old.release(first)
            async with Redis.from_url(f"redis://{replica.address}", decode_responses=True) as client:
                async with asyncio.timeout(PATIENCE):
                    while await client.get(counter(resource)) != "1" or await client.exists(lock(resource)):
                        await asyncio.sleep(0.02)
                with pytest.raises(Unavailable):
                    await acquire(new, resource)
                await client.replicaof("NO", "ONE")
            last = await acquire(old, resource, "before the failover")
            primary.kill()
            again = await acquire(new, resource, "after the failover")
            assert again.value == last.value, "Two holders, one token: only Fencing-Holder tells them apart."
            await new.aclose()
            await old.aclose()

    @pytest.fixture
    async def guarded(self, own: Server) -> Server:
        """A server whose user ``locks`` with the password ``secret`` alone has rights: only those of the source."""
        commands = "get set del incr pexpire pttl eval evalsha script|load publish subscribe unsubscribe"
        async with Redis.from_url(f"redis://{own.address}") as client:
            await client.acl_setuser(
                "locks", enabled=True, passwords="+secret", keys=["fencing:*"], channels=["fencing:*"],
                commands=[f"+{command}" for command in commands.split()], reset=True,
            )  # fmt: skip
            await client.acl_setuser("default", enabled=False)
        return own

    async def test_users_and_passwords(self, guarded: Server) -> None:
        source = RedisSource(f"redis://locks:secret@{guarded.address}")
        held = await acquire(source, "order/5")
        waiting = asyncio.create_task(acquire(source, "order/5", "two", wait=PATIENCE))
        await asyncio.sleep(0.1)
        assert (await source.renew(held, 10)).value == held.value
        await source.release(held)
        await source.release(await waiting)
        await source.aclose()
        for who, prefix in (("locks:wrong@", "fencing"), ("", "fencing"), ("locks:secret@", "elsewhere")):
            stranger = RedisSource(f"redis://{who}{guarded.address}", prefix=prefix)
            with pytest.raises(Refused):
                await acquire(stranger, "order/5")
            await stranger.aclose()


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


class TestZooKeeper:
    """ZooKeeper's traps, and what the source makes of them."""

    @pytest.fixture
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if kind.name == "zookeeper")

    @pytest.fixture
    async def source(self, server: Server) -> AsyncIterator[ZooKeeperSource]:
        opened = ZooKeeperSource(server.address)
        yield opened
        await opened.aclose()

    async def test_the_token_is_the_czxid_of_the_own_node(
        self, source: ZooKeeperSource, server: Server, resource: str
    ) -> None:
        held = await acquire(source, resource)
        with connected(server) as client:
            (name,) = client.get_children(parent(resource))
            data, stat = client.get(f"{parent(resource)}/{name}")
            assert (data, stat.czxid) == (b"one", held.value)
            changed = client.set(f"{parent(resource)}/{name}", b"another")
        assert changed.mzxid > held.value, (
            "The transaction of the last change is no token: it changes under the holder."
        )
        assert (await source.renew(held, 2)).value == held.value
        await source.release(held)

    async def test_it_is_the_lock_of_kazoo(self, source: ZooKeeperSource, server: Server, resource: str) -> None:
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
        self, server: Server, net: Network, resource: str
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

    @pytest.mark.installed
    async def test_the_sequence_ends_and_tokens_go_on(self, tmp_path: Path) -> None:
        """The trap: after 2^31 children the number repeats. A client that relies on it shares the lock with others."""
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

    async def test_a_session_lasts_as_long_as_the_server_says(self, source: ZooKeeperSource, resource: str) -> None:
        """The trap: there is a longest session, 20 ticks unless it is set otherwise, whatever is asked for."""
        for asked, granted in ((3600, 30.0), (0.01, 0.2)):
            began = time.clock_gettime(time.CLOCK_BOOTTIME)
            held = await again(partial(source.acquire, resource, holder="one", ttl=asked, wait=0, mode="exclusive"))
            assert began <= held.valid_until - granted <= time.clock_gettime(time.CLOCK_BOOTTIME)
            with suppress(Unavailable):  # the shortest hold is already over
                await source.release(held)

    async def test_nodes_belong_to_their_user(self, server: Server, resource: str) -> None:
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
