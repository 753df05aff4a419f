"""A real API server of Kubernetes with kubectl and Helm, and a node by hand.

The API server has no nodes and no controllers. The node runs the containers of pods as processes here, and the Jobs
that the API server has. It reads ConfigMaps and Secrets from there, as a kubelet does. Arguments, environment, files,
probes, the user and the end of a pod are those of its spec. There is no image: the command is the gateway of this
checkout. Files are in a folder of their own, so each path of a mount is replaced by the path in there.
"""

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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


PATIENCE = 90.0
_LOOK = 0.1


@dataclass
class Pod:
    """A running container with its spec."""

    spec: Object
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def container(self) -> Object:
        [container] = self.spec["containers"]
        found: Object = container
        return found

    @property
    def origin(self) -> str:
        [port] = self.container["ports"]
        scheme = self.container["livenessProbe"].get("httpGet", {}).get("scheme", "HTTP").lower()
        return f"{scheme}://127.0.0.1:{port['containerPort']}"

    def probe(self, name: str) -> bool:
        """Return whether a probe succeeds: ``livenessProbe``, ``readinessProbe`` or ``startupProbe``."""
        asked = self.container[name]["httpGet"]
        assert asked["port"] == self.container["ports"][0]["name"]
        try:
            timeout = self.container[name]["timeoutSeconds"]
            answer = httpx.get(f"{self.origin}{asked['path']}", verify=trusting(), timeout=timeout)
        except httpx.TransportError:
            return False
        return 200 <= answer.status_code < 400

    def wait_for(self, name: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while not self.probe(name):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < give_up, self.log.read_text()
            time.sleep(_LOOK)

    def end(self) -> int:
        """End it as a kubelet does, and return the exit code; -9 if it took longer than its grace period."""
        give_up = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        time.sleep(self.container["lifecycle"]["preStop"]["sleep"]["seconds"])
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(give_up - time.monotonic())
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Node:
    """Runs pods of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self.jobs: list[str] = []
        """The output of each container of a Job, in order."""
        self._cluster, self._namespace, self._directory = cluster, namespace, directory

    @contextmanager
    def running_jobs(self) -> Iterator[None]:
        """Run each Job that comes, and say in its status how it ended."""
        ended = threading.Event()

        def look() -> None:
            seen = set()
            while not ended.wait(_LOOK):
                for job in self._cluster.get(f"/apis/batch/v1/namespaces/{self._namespace}/jobs")["items"]:
                    if job["metadata"]["uid"] not in seen and not job["status"].get("conditions"):
                        seen.add(job["metadata"]["uid"])
                        self._run_job(job)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _run_job(self, job: Object) -> None:
        template = job["spec"]["template"]
        self.admit(template)
        succeeded = True
        for container in (*template["spec"].get("initContainers", ()), *template["spec"]["containers"]):
            with self._process(template["spec"], container) as (process, log):
                succeeded = process.wait(PATIENCE) == 0
            self.jobs.append(log.read_text())
            if not succeeded:
                break
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        kinds = ("SuccessCriteriaMet", "Complete") if succeeded else ("FailureTarget", "Failed")
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Ended"}
            for kind in kinds
        ]
        status: Object = {"startTime": now, "conditions": conditions, "uncountedTerminatedPods": {}}
        status |= {"completionTime": now, "succeeded": 1} if succeeded else {"failed": 1}
        path = f"/apis/batch/v1/namespaces/{self._namespace}/jobs/{job['metadata']['name']}/status"
        self._cluster.api.put(path, json={**job, "status": status}).raise_for_status()

    def admit(self, template: Object) -> None:
        """Let the API server judge a pod of this template, by its schema and by the policy of the namespace."""
        body = {"metadata": {**template["metadata"], "generateName": "pod-"}, "spec": template["spec"]}
        answer = self._cluster.api.post(f"/api/v1/namespaces/{self._namespace}/pods?dryRun=All", json=body)
        assert answer.status_code == 201, answer.text

    @contextmanager
    def pod(self, template: Object) -> Iterator[Pod]:
        """Run the one container of a pod."""
        self.admit(template)
        [container] = template["spec"]["containers"]
        with self._process(template["spec"], container) as (process, log):
            yield Pod(template["spec"], process, log)

    @contextmanager
    def _process(self, spec: Object, container: Object) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
        root = Path(tempfile.mkdtemp(prefix="pod", dir=self._directory))
        root.chmod(0o755)
        user = container.get("securityContext", {}).get("runAsUser", spec["securityContext"]["runAsUser"])
        paths = {mount["mountPath"]: root / mount["mountPath"].strip("/") for mount in container["volumeMounts"]}
        moved = re.compile(
            "|".join(f"{re.escape(path)}(?=/|$)" for path in sorted(paths, reverse=True) if path != "/tmp")
        )

        def here(text: str) -> str:
            return moved.sub(lambda found: str(paths[found[0]]), text)

        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        for mount in container["volumeMounts"]:
            folder = paths[mount["mountPath"]]
            folder.mkdir(parents=True)
            for name, content, mode in self._files(volumes[mount["name"]]):
                (folder / name).write_text(here(content))
                (folder / name).chmod(mode)
                if _as_user(user):
                    shutil.chown(folder / name, group=spec["securityContext"]["fsGroup"])
        if _as_user(user):
            shutil.chown(paths["/tmp"], user=user, group=user)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TMPDIR": str(paths["/tmp"])}
        environment |= {one["name"]: here(self._value(one)) for one in container["env"]}
        arguments = [
            here(re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], argument))
            for argument in container["args"]
        ]
        log = root / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*_as_user(user), sys.executable, "-m", "gateway", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        with process:
            try:
                yield process, log
            finally:
                process.kill()

    def _files(self, volume: Object) -> Iterator[tuple[str, str, int]]:
        """Yield the files of a volume: name, content and mode."""
        if "configMap" in volume:
            source = volume["configMap"]
            found = self._cluster.get(f"/api/v1/namespaces/{self._namespace}/configmaps/{source['name']}")
            for name, content in found["data"].items():
                yield name, content, source["defaultMode"]
        elif "secret" in volume:
            source = volume["secret"]
            yield from self._secret(source["secretName"], source.get("items"), source["defaultMode"])
        elif "projected" in volume:
            for source in volume["projected"]["sources"]:
                yield from self._secret(source["secret"]["name"], None, volume["projected"]["defaultMode"])
        else:
            assert "emptyDir" in volume

    def _secret(self, name: str, items: list[Object] | None, mode: int) -> Iterator[tuple[str, str, int]]:
        data = self._cluster.get(f"/api/v1/namespaces/{self._namespace}/secrets/{name}")["data"]
        for item in items or [{"key": key, "path": key} for key in data]:
            yield item["path"], base64.b64decode(data[item["key"]]).decode(), mode

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        source: Any = variable["valueFrom"]["secretKeyRef"]
        [(_, content, _)] = self._secret(source["name"], [{"key": source["key"], "path": "-"}], 0)
        return content


@cache
def _as_user(user: int) -> list[str]:
    """Return what starts a program as this user, who can read everything and write nothing but its own.

    Nothing where that cannot be done: without the rights of root.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    reading = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *reading]
    return command if subprocess.run([*command, "true"], check=False).returncode == 0 else []
