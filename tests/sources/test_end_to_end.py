"""Each lock service, the gateway and the client library together: zombies are refused, lost counters are noticed."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable

import asyncpg
import httpx
import pytest

from gateway.client.client import FencedClient
from gateway.client.errors import IssuerWentBackwards, LockLost
from tests.running import API_KEY, config, running
from tests.sources.conftest import Sources
from tests.sources.kinds import KINDS, Kind
from tests.sources.network import Network
from tests.sources.servers import Server
from tests.waiting import PATIENCE

RESOURCE = "public.jobs/1"


@pytest.fixture
async def gateway(dsn: str) -> AsyncIterator[str]:
    """The origin of a gateway with a table of one row, whose lock is ``RESOURCE``."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE jobs (id bigint PRIMARY KEY, done_by text); INSERT INTO jobs VALUES (1, '')")
    await connection.close()
    caller = {"name": "writer", "api_key": API_KEY, "groups": ["admins"]}
    async with running(config(dsn, callers=[caller])) as origin:
        yield origin


def anybody(gateway: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=gateway, headers={"Authorization": f"Bearer {API_KEY}", **headers}, timeout=PATIENCE
    )


async def write(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await client.patch("/v1/tables/jobs?id=eq.1", json={"done_by": name})


async def test_a_zombie_is_refused(gateway: str, sources: Sources, server: Server, net: Network, kind: Kind) -> None:
    async with FencedClient(gateway, api_key=API_KEY) as one, FencedClient(gateway, api_key=API_KEY) as other:
        paused, awake = sources(net.address), sources(server.address)
        async with one.lock(RESOURCE, source=paused, ttl=3 * kind.ttl, on_loss="tell") as zombie:
            token, headers = zombie.token, zombie.headers
            assert (await write(zombie.http, "zombie")).is_success
            net.stand_still()
            async with (
                other.lock(RESOURCE, source=awake, ttl=60, wait=PATIENCE) as lock,
                anybody(gateway, **headers) as late,
            ):
                assert int(lock.token) > int(token)
                refused = await write(late, "zombie")
                assert (refused.status_code, refused.json()["code"]) == (412, "token-stale")
                assert (await write(lock.http, "successor")).is_success
            await zombie.lost.wait()
            with pytest.raises(LockLost):
                zombie.check()
            net.move()


def save(server: Server) -> None:
    """A snapshot of etcd, as an operator takes it."""
    _etcdctl("--endpoints", server.address, "snapshot", "save", str(server.directory / "saved"))


def restore(server: Server) -> None:
    server.kill()
    shutil.rmtree(server.directory / "data")
    _etcdctl("snapshot", "restore", str(server.directory / "saved"), "--data-dir", str(server.directory / "data"))
    server.start()


def lose_all(server: Server) -> None:
    """The disk of the server is lost: it starts from nothing."""
    server.kill()
    for kept in ("data", "appendonlydir"):
        shutil.rmtree(server.directory / kept, ignore_errors=True)
    server.start()


def _etcdctl(*arguments: str) -> None:
    subprocess.run(["etcdctl", *arguments], env={**os.environ, "ETCDCTL_API": "3"}, check=True, capture_output=True)


LOSSES: dict[str, tuple[Callable[[Server], None], Callable[[Server], None]]] = {
    "etcd": (save, restore),
    "zookeeper": (lambda _: None, lose_all),
    "redis": (lambda _: None, lose_all),
    "consul": (lambda _: None, lose_all),
    "kubernetes": (lambda _: None, lose_all),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.name in LOSSES], ids=lambda kind: kind.name)
async def test_a_counter_that_went_back_is_noticed_and_a_new_epoch_cures_it(
    gateway: str, sources: Sources, own: Server, kind: Kind
) -> None:
    before, loss = LOSSES[kind.name]
    before(own)
    async with FencedClient(gateway, api_key=API_KEY) as client, anybody(gateway) as operator:
        source = sources(own.address)
        for _ in range(5):
            async with client.lock(RESOURCE, source=source, ttl=10) as lock:
                fence, headers = lock.token, lock.headers
        await source.aclose()
        loss(own)
        with pytest.raises(IssuerWentBackwards):
            async with client.lock(RESOURCE, source=source, ttl=10, wait=PATIENCE):
                pytest.fail("The block must not begin: every write in it would be refused.")
        bumped = await operator.post(
            f"/v1/fences/{RESOURCE}/epoch", json={"expected": fence, "reason": "restored a snapshot"}
        )
        assert bumped.is_success, bumped.text
        async with client.lock(RESOURCE, source=source, ttl=10, wait=PATIENCE) as lock:
            assert lock.token.startswith("1.")
            assert (await write(lock.http, "after the restore")).is_success
            async with anybody(gateway, **headers) as late:
                assert (await write(late, "zombie of the old epoch")).status_code == 412
