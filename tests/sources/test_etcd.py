"""etcd's traps, each shown by a real server, and what the source makes of them."""

import asyncio
import os
import ssl
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from gateway.client.errors import LockLost, NotAcquired, Refused, Unavailable
from gateway.client.etcd import EtcdApi, EtcdSource, decoded, encoded
from gateway.client.source import Held
from tests.processes import closed_port, free_port
from tests.sources import servers
from tests.sources.conftest import started
from tests.sources.kinds import KINDS, Kind
from tests.sources.servers import Server

ETCD = next(kind for kind in KINDS if kind.name == "etcd")


@pytest.fixture
def kind() -> Kind:
    return ETCD


@pytest.fixture
def resource() -> str:
    return f"order/{uuid.uuid4().hex}"


@pytest.fixture
async def source(server: Server) -> AsyncIterator[EtcdSource]:
    opened = EtcdSource(f"http://{server.address}")
    yield opened
    await opened.aclose()


@pytest.fixture
async def api(server: Server) -> AsyncIterator[EtcdApi]:
    opened = EtcdApi([f"http://{server.address}"], timeout=5)
    yield opened
    await opened.aclose()


def queue(resource: str) -> str:
    return f"fencing/{quote(resource, safe='')}"


async def acquire(source: EtcdSource, resource: str, holder: str = "one", wait: float | None = 0) -> Held:
    return await source.acquire(resource, holder=holder, ttl=60, wait=wait, mode="exclusive")


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


async def test_the_token_is_the_create_revision_of_the_own_key(source: EtcdSource, api: EtcdApi, resource: str) -> None:
    for wait in (0, 5):
        held = await acquire(source, resource, wait=wait)
        (key,) = await keys(api, resource)
        assert held.value == int(key["create_revision"])
        assert key["value"] == encoded(b"one")
        await source.release(held)


async def test_header_revisions_must_not_be_mixed_with_create_revisions(
    source: EtcdSource, api: EtcdApi, resource: str
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
    source: EtcdSource, server: Server, resource: str
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


async def test_a_key_deleted_by_an_operator_is_a_lost_lock(source: EtcdSource, server: Server, resource: str) -> None:
    held = await acquire(source, resource)
    etcdctl(server, "del", "--prefix", f"{queue(resource)}/")
    with pytest.raises(LockLost):
        await source.renew(held, 60)
    assert not await source.holds(held)
    await source.release(held)


@pytest.mark.parametrize("gone", ["lease", "key"])
async def test_a_waiter_whose_place_is_gone_does_not_get_the_lock(
    source: EtcdSource, server: Server, api: EtcdApi, resource: str, gone: str
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
    source: EtcdSource, api: EtcdApi, server: Server, resource: str
) -> None:
    held = await acquire(source, resource)
    etcdctl(server, "put", "anything", "else")
    etcdctl(server, "compact", str(held.value + 1))
    async with asyncio.timeout(30):
        await api.until_deleted(b"anything", after=0)
    await source.release(held)


async def test_an_endpoint_that_is_gone_is_passed_over(server: Server, resource: str) -> None:
    with closed_port() as port:
        source = EtcdSource([f"http://127.0.0.1:{port}", f"http://{server.address}/"])
        held = await acquire(source, resource)
        assert await source.holds(held)
        await source.release(held)
        await source.aclose()


async def test_without_the_json_gateway_it_says_what_to_do(tmp_path: Path, resource: str) -> None:
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
def guarded(own: Server) -> Server:
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


async def test_users_and_passwords(guarded: Server) -> None:
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


async def test_tls(tmp_path: Path) -> None:
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


async def test_what_is_no_etcd_is_no_lock(resource: str) -> None:
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
