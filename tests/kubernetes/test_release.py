"""Releases on a real API server: installed, upgraded, refused, and removed.

Pods with nothing but their service account get Leases by the rights of the guide, and the gateway knows their tokens.
"""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import asyncpg
import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict

from gateway.client.errors import LockLost, Refused
from gateway.client.kubernetes import KubernetesSource
from tests import ROOT
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.kubernetes.cluster import CHART, VALUES, Cluster, Node, Object, only, rendered
from tests.postgres import Server
from tests.postgres_relay import relay
from tests.processes import free_port
from tests.running import config, running
from tests.sources.go_servers import trusting

CALLER = {"access_key_id": "worker", "secret_access_key": "worker-secret-key", "api_key": "worker-api-key"}
CONFIG = """
[postgres]
dsn_file = "/etc/gateway/secrets/dsn"

[s3]
endpoint = "{endpoint}"
access_key_id = "{access_key}"
secret_access_key_file = "/etc/gateway/secrets/s3-key"

[[callers]]
name = "worker"
access_key_id = "worker"
secret_access_key_file = "/etc/gateway/secrets/worker-secret"
api_key_file = "/etc/gateway/secrets/worker-key"

[[grants]]
callers = ["worker"]
actions = ["read", "write", "barrier", "administer", "audit"]
everything = true

[[tables]]
name = "public.accounts"
resource = "account/{{id}}"
"""


@dataclass
class World:
    """The surroundings of a release. ``values``: those of the chart, which differ from its defaults."""

    cluster: Cluster
    namespace: str
    node: Node
    values: dict[str, Any]
    folder: Path

    def helm(self, *arguments: str, **changed: Any) -> "CompletedProcess[str]":
        """Run Helm on the release ``fence`` with changed values, while the node runs its Jobs."""
        file = self.folder / "values.json"
        file.write_text(json.dumps(self.values | changed))
        values = () if arguments[0] == "uninstall" else ("--values", str(file))
        with self.node.running_jobs():
            return self.cluster.helm(*arguments, "--namespace", self.namespace, "--timeout", "90s", *values)

    def get(self, kind: str, name: str = "fence-fencing-gateway") -> Object:
        group = {"deployments": "apps/v1"}.get(kind)
        path = f"/apis/{group}" if group else "/api/v1"
        return self.cluster.get(f"{path}/namespaces/{self.namespace}/{kind}/{name}")

    def template(self) -> Object:
        found: Object = self.get("deployments")["spec"]["template"]
        return found

    def left(self) -> set[str]:
        """Return the names of all objects in the namespace."""
        kinds = "all,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,ingresses"
        said = self.cluster.kubectl("get", kinds, "--namespace", self.namespace, "--output", "name").stdout
        return set(said.split())


@pytest.fixture
async def world(cluster: Cluster, folder: Path, postgres_server: Server) -> AsyncIterator[World]:
    """An empty database with two roles, a store, and a namespace with their secrets."""
    name = f"chart_{uuid.uuid4().hex[:12]}"
    root = await asyncpg.connect(postgres_server.dsn())
    for statement in (
        f"CREATE ROLE {name}_owner LOGIN",
        f"CREATE ROLE {name}_gateway LOGIN",
        f"CREATE DATABASE {name}",
        f"GRANT CREATE ON DATABASE {name} TO {name}_owner",
    ):
        await root.execute(statement)
    app = await asyncpg.connect(postgres_server.dsn(name))
    await app.execute(
        f"""
        CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
        INSERT INTO accounts VALUES (1, 0);
        GRANT SELECT, INSERT, UPDATE, DELETE ON accounts TO {name}_gateway;
        """
    )
    await app.close()
    async with serve(S3Double(buckets=["reports"])) as endpoint, relay(postgres_server.dsn(name)) as way:
        address = f"127.0.0.1:{conninfo_to_dict(way.url)['port']}/{name}?sslmode=disable"
        namespace = cluster.namespace(name.replace("_", "-"))
        keys = {"worker_secret": CALLER["secret_access_key"], "worker_key": CALLER["api_key"]}
        gateway = f"postgresql://{name}_gateway@{address}"
        cluster.secret(namespace, "fencing-gateway", dsn=gateway, s3_key=SECRET_KEY, **keys)
        cluster.secret(namespace, "fencing-owner", dsn=f"postgresql://{name}_owner@{address}")
        values = {
            "config": CONFIG.format(endpoint=endpoint, access_key=ACCESS_KEY),
            "secrets": {"existing": ["fencing-gateway"]},
            "migration": {"secret": {"name": "fencing-owner"}, "grantTo": f"{name}_gateway", "backoffLimit": 0},
            "address": "127.0.0.1",
            "port": free_port(),
            "preStopSeconds": 1,
        }
        yield World(cluster, namespace, Node(cluster, namespace, folder), values, folder)
    await root.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await root.execute(f"DROP ROLE {name}_owner; DROP ROLE {name}_gateway")
    await root.close()


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_the_api_server_takes_every_object_as_it_is(cluster: Cluster, tmp_path: Path, values: Path) -> None:
    """Unknown fields are errors, and the namespace takes no pod with rights. Applied again, nothing changes."""
    namespace = cluster.namespace(f"objects-{uuid.uuid4().hex[:8]}")
    found = rendered("--values", str(values), "--namespace", namespace)
    text = "\n---\n".join(json.dumps(one) for one in found)
    apply = ("apply", "--server-side", "--validate=strict", "--namespace", namespace, "--filename", "-")
    first = cluster.kubectl(*apply, text=text)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout.splitlines()) == len(found)
    assert "Warning" not in first.stderr, first.stderr
    node = Node(cluster, namespace, tmp_path)
    for kind in ("Deployment", "Job"):
        node.admit(only(found, kind)["spec"]["template"])
    differences = cluster.kubectl("diff", "--server-side", "--namespace", namespace, "--filename", "-", text=text)
    assert differences.returncode == 0, differences.stdout + differences.stderr


async def test_a_release_from_its_installation_to_its_end(world: World) -> None:
    before = world.left()
    installed = await asyncio.to_thread(world.helm, "install", "fence", str(CHART))
    assert installed.returncode == 0, (installed.stderr, world.node.jobs)
    assert "fence-fencing-gateway" in installed.stdout
    migrated, checked = world.node.jobs
    assert "fencing schema: not installed -> " in migrated
    assert "no others" in migrated
    assert "The configuration can be used." in checked
    # The objects that the Job needed are gone with it.
    assert not {one for one in world.left() if "migration" in one}

    def serve_and_write() -> None:
        with world.node.pod(world.template()) as pod:
            pod.wait_for("startupProbe")
            pod.wait_for("readinessProbe")
            pod.wait_for("livenessProbe")
            headers = {"Authorization": f"Bearer {CALLER['api_key']}", "Fencing-Token": "7"}
            row = httpx.patch(
                f"{pod.origin}/v1/tables/accounts?id=eq.1", json={"balance": 1}, headers=headers, timeout=30
            )
            assert row.status_code == 204, row.text
            assert pod.end() == 0, pod.log.read_text()

    await asyncio.to_thread(serve_and_write)

    annotations = world.template()["metadata"]["annotations"]
    config = world.values["config"] + "\n[audit]\nretention = 500\n"
    upgraded = await asyncio.to_thread(world.helm, "upgrade", "fence", str(CHART), config=config)
    assert upgraded.returncode == 0, (upgraded.stderr, world.node.jobs)
    assert world.get("configmaps")["data"]["gateway.toml"] == config
    assert world.template()["metadata"]["annotations"] != annotations

    # A mistake is found before the release changes.
    for mistake, said in (
        (config.replace("public.accounts", "public.acounts"), "there is no table public.acounts"),
        (config + "retentoin = 1\n", "retentoin"),
    ):
        refused = await asyncio.to_thread(world.helm, "upgrade", "fence", str(CHART), config=mistake)
        assert refused.returncode != 0
        assert said in world.node.jobs[-1]
        assert world.get("configmaps")["data"]["gateway.toml"] == config

    removed = await asyncio.to_thread(world.helm, "uninstall", "fence")
    assert removed.returncode == 0, removed.stderr
    # The last Job has failed, and stays with its log.
    assert {one for one in world.left() - before if "migration" not in one} == set()


GUIDE = ROOT / "docs/guides/kubernetes.md"
RESOURCE = "public.jobs/1"


@pytest.fixture
def shop(cluster: Cluster) -> str:
    """A namespace with the rights that the guide gives to the service account ``worker``."""
    namespace = cluster.namespace(f"shop-{uuid.uuid4().hex[:8]}")
    [rights] = [
        block for block in re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "RoleBinding" in block
    ]
    own = rights.replace("namespace: shop", f"namespace: {namespace}")
    applied = cluster.kubectl("apply", "--namespace", namespace, "--filename", "-", text=own)
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
        [lease] = (await asyncio.to_thread(cluster.get, leases.removeprefix(cluster.server.endpoint)))["items"]
        # A Lease that is deleted counts from the beginning, so workers have no right to delete it.
        assert (await worker.delete(f"{leases}/{lease['metadata']['name']}")).status_code == 403
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
        "keys": f"{cluster.server.endpoint}/openid/v1/jwks",
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
        foreign = {"Authorization": f"Bearer {bearer}", "Fencing-Token": "9"}
        answer = await pod.patch("/v1/tables/jobs?id=eq.1", json={"done_by": "x"}, headers=foreign)
        assert answer.status_code == 401
        await other.release(newer)
    assert await connection.fetchval("SELECT done_by FROM jobs") == "pod-2"
    await connection.close()
    await paused.aclose()
    await other.aclose()
