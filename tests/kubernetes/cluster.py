"""A real API server of Kubernetes, with kubectl and Helm for it. It has no nodes and no controllers: see node.py."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import yaml  # type: ignore[import-untyped]

from tests import ROOT
from tests.sources.go_servers import KubernetesServer, program, trusting

CHART = ROOT / "deploy/helm/fencing-gateway"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
TOKEN = "administrator-token"

Object: TypeAlias = dict[str, Any]


class Cluster:
    """An API server, as an administrator uses it."""

    def __init__(self, server: KubernetesServer, directory: Path) -> None:
        self.server = server
        self.api = httpx.Client(
            base_url=server.endpoint,
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=trusting(),
            timeout=30,
        )
        self._kubeconfig = directory / "kubeconfig"
        entry = {"server": server.endpoint, "insecure-skip-tls-verify": True}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": entry}],
            "users": [{"name": "test", "user": {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        self._kubeconfig.write_text(json.dumps(document))
        self._environment = {"HOME": str(directory), "KUBECONFIG": str(self._kubeconfig), "PATH": "/usr/bin:/bin"}

    def namespace(self, name: str) -> str:
        """Make a namespace that takes only pods without rights."""
        body = {"metadata": {"name": name, "labels": RESTRICTED}}
        self.api.post("/api/v1/namespaces", json=body).raise_for_status()
        return name

    def secret(self, namespace: str, name: str, **values: str) -> None:
        body = {"metadata": {"name": name}, "stringData": {key.replace("_", "-"): text for key, text in values.items()}}
        self.api.post(f"/api/v1/namespaces/{namespace}/secrets", json=body).raise_for_status()

    def get(self, path: str) -> Object:
        answer = self.api.get(path)
        answer.raise_for_status()
        found: Object = answer.json()
        return found

    def kubectl(self, *arguments: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        return self._run(program("kubectl"), *arguments, text=text)

    def helm(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self._run(program("helm"), *arguments)

    def _run(self, *command: str, text: str | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=120, check=False, env=self._environment
        )


def rendered(*arguments: str) -> list[Object]:
    """Return the objects of ``helm template``. Raises ``AssertionError`` with Helm's words if it refuses."""
    done = template(*arguments)
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


def template(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return helm_alone("template", "fence", str(CHART), *arguments)


def helm_alone(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Helm without a cluster."""
    return subprocess.run([program("helm"), *arguments], capture_output=True, text=True, timeout=120, check=False)


def objects(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


def only(found: Iterable[Object], kind: str, **labels: str) -> Object:
    """Return the one object of a kind. ``component``: with this label."""
    component = labels.get("component")
    [one] = [
        one
        for one in found
        if one["kind"] == kind and component in (None, one["metadata"]["labels"].get("app.kubernetes.io/component"))
    ]
    return one


def definitions() -> str:
    """Return the definitions of ServiceMonitor and PrometheusRule, out of the module of their operator."""
    said = subprocess.run(
        ["go", "mod", "download", "-json"],
        cwd=ROOT / "tests/programs/monitoring",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    folder = Path(json.loads(said.stdout)["Dir"]) / "example/prometheus-operator-crd"
    return "\n---\n".join(
        (folder / f"monitoring.coreos.com_{name}.yaml").read_text() for name in ("servicemonitors", "prometheusrules")
    )
