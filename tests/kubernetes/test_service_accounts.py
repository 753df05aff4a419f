"""Pods with nothing but their service account: Leases by the rights of the guide, the gateway by identity tokens."""

import asyncio
import re
import uuid
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.client.errors import LockLost, Refused
from gateway.client.kubernetes import KubernetesSource
from tests import ROOT
from tests.kubernetes.cluster import Cluster
from tests.running import config, running
from tests.sources.go_servers import trusting

GUIDE = ROOT / "docs/guides/kubernetes.md"
RESOURCE = "public.jobs/1"


@pytest.fixture
def shop(cluster: Cluster) -> str:
    """A namespace with the rights that the guide gives to the service account ``worker``."""
    namespace = cluster.namespace(f"shop-{uuid.uuid4().hex[:8]}")
    [rights] = [
        block for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "RoleBinding" in block
    ]
    applied = cluster.kubectl(
        "apply",
        "--namespace",
        namespace,
        "--filename",
        "-",
        text=rights.replace("namespace: shop", f"namespace: {namespace}"),
    )
    assert applied.returncode == 0, applied.stderr
    made = cluster.kubectl("create", "serviceaccount", "gateway", "--namespace", namespace)
    assert made.returncode == 0, made.stderr
    return namespace


def token(cluster: Cluster, namespace: str, account: str, *more: str) -> str:
    made = cluster.kubectl("create", "token", account, "--namespace", namespace, *more)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def a_source(cluster: Cluster, namespace: str, bearer: str) -> KubernetesSource:
    return KubernetesSource(url=cluster.server.endpoint, token=bearer, tls=trusting(), namespace=namespace, poll=0.1)


async def test_the_rights_of_the_guide_are_enough_and_no_more(cluster: Cluster, shop: str) -> None:
    bearer = await asyncio.to_thread(token, cluster, shop, "worker")
    source = a_source(cluster, shop, bearer)
    for expected in (1, 2):
        held = await source.acquire("order/5", holder="pod", ttl=10, wait=0, mode="exclusive")
        assert held.value == expected
        assert await source.holds(await source.renew(held, 10))
        await source.release(held)
    with pytest.raises(LockLost):
        await source.renew(held, 10)
    elsewhere = a_source(cluster, "default", bearer)
    with pytest.raises(Refused, match=f"system:serviceaccount:{shop}:worker.*cannot get"):
        await elsewhere.acquire("order/5", holder="pod", ttl=10, wait=0, mode="exclusive")
    leases = f"{cluster.server.endpoint}/apis/coordination.k8s.io/v1/namespaces/{shop}/leases"
    known = {"Authorization": f"Bearer {bearer}"}
    async with httpx.AsyncClient(headers=known, verify=trusting(), timeout=30) as worker:
        name = (await asyncio.to_thread(cluster.get, f"/apis/coordination.k8s.io/v1/namespaces/{shop}/leases"))[
            "items"
        ][0]
        # A Lease that is deleted counts from the beginning, so workers have no right to delete it.
        assert (await worker.delete(f"{leases}/{name['metadata']['name']}")).status_code == 403
        assert (await worker.get(leases)).status_code == 403
        assert (await worker.get(f"{cluster.server.endpoint}/api/v1/namespaces/{shop}/secrets")).status_code == 403
    await source.aclose()
    await elsewhere.aclose()


async def test_a_zombie_pod_is_refused(cluster: Cluster, shop: str, dsn: str, tmp_path: Path) -> None:
    """Its only secret is the token of its account: it takes the Lease with one, and writes with one for the gateway."""
    issuer = "https://kubernetes.default.svc"
    own, bearer, identity = await asyncio.gather(
        asyncio.to_thread(token, cluster, shop, "gateway"),
        asyncio.to_thread(token, cluster, shop, "worker"),
        asyncio.to_thread(token, cluster, shop, "worker", "--audience", "gateway"),
    )
    (tmp_path / "token").write_text(own)
    kubernetes = {
        "name": "kubernetes",
        "issuer": issuer,
        "audiences": ["gateway"],
        "keys_url": f"{cluster.server.endpoint}/openid/v1/jwks",
        "authorities": str(cluster.server.directory / "certificates/apiserver.crt"),
        "token_path": str(tmp_path / "token"),
    }
    grant = {
        "callers": [f"kubernetes:system:serviceaccount:{shop}:worker"],
        "actions": ["write", "lock"],
        "tables": ["public.jobs"],
        "resources": ["public.jobs/*"],
    }
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE TABLE jobs (id bigint PRIMARY KEY, done_by text); INSERT INTO jobs VALUES (1, '')")
    paused, other = (a_source(cluster, shop, bearer) for _ in range(2))
    async with (
        running(config(dsn, callers=[], issuers=[kubernetes], grants=[grant])) as origin,
        httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {identity}"}, timeout=30) as pod,
    ):

        async def write(value: int, name: str) -> httpx.Response:
            headers = {"Fencing-Token": str(value), "Fencing-Holder": name}
            return await pod.patch("/v1/tables/jobs?id=eq.1", json={"done_by": name}, headers=headers)

        zombie = await paused.acquire(RESOURCE, holder="pod-1", ttl=1, wait=0, mode="exclusive")
        first = await write(zombie.value, "pod-1")
        assert first.status_code == 204, first.text
        newer = await other.acquire(RESOURCE, holder="pod-2", ttl=30, wait=30, mode="exclusive")
        assert (await write(newer.value, "pod-2")).status_code == 204
        late = await write(zombie.value, "pod-1")
        assert (late.status_code, late.json()["code"]) == (412, "token-stale")
        # A token for another audience is none for the gateway.
        answer = await pod.patch(
            "/v1/tables/jobs?id=eq.1",
            json={"done_by": "x"},
            headers={"Authorization": f"Bearer {bearer}", "Fencing-Token": "9"},
        )
        assert answer.status_code == 401
        await other.release(newer)
    assert await connection.fetchval("SELECT done_by FROM jobs") == "pod-2"
    await connection.close()
    await paused.aclose()
    await other.aclose()
