"""docker-compose.yml with the image of deploy/Dockerfile, as a stranger starts it, and a zombie that is refused there.

The engine is the one that runs already, or a daemon of our own. That keeps its images and its build cache below
``$XDG_CACHE_HOME/fencing-gateway``, so a second run is quick. The image is built as `make image` does. Without a
registry, debootstrap makes its base, and other images stand in for those of PostgreSQL and the store: PostgreSQL of
Debian, and versitygw.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.config import Config as Settings

from gateway.config import load
from tests import ROOT
from tests.guides.test_pages import PROGRAMS, over_tls
from tests.processes import free_port
from tests.stores.versitygw import MODULE

BASE, SUITE = "debian:13-slim", "trixie"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fencing-gateway"
COMPOSE = "docker-compose"
"""The program of Docker Compose 2, which is a plugin of the client or stands alone."""
LONG = 600.0
"""Seconds for a command of the engine, such as a build."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The client of an engine. ``compose`` is the command of Compose 2, or empty."""

    environment: Mapping[str, str]
    compose: tuple[str, ...] = ()
    client: str = field(default="docker")

    def run(self, *arguments: str, check: bool = True, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the client. ``more``: what its environment has beside ours."""
        return _run((self.client, *arguments), {**self.environment, **more}, check=check)

    def composed(self, *arguments: str, check: bool = True, **more: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of Compose."""
        return _run((*self.compose, *arguments), {**self.environment, **more}, check=check)


def _run(
    command: tuple[str, ...], environment: Mapping[str, str], *, check: bool
) -> "subprocess.CompletedProcess[str]":
    ended = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert not check or ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended


@contextmanager
def an_engine() -> Iterator[Engine]:
    """Find an engine, or start one. Skips the test where there is none."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    if shutil.which("docker") is None:
        pytest.skip("there is no docker: apt-get install docker.io")
    # A client of another version may need a plugin to build. The daemon's own client builds by itself.
    beside = Path(shutil.which("dockerd") or "/").parent.parent / "bin" / "docker"
    client = str(beside) if beside.exists() else "docker"
    if subprocess.run((client, "info"), env=environment, capture_output=True, check=False).returncode == 0:
        yield Engine(environment, _compose(client, environment), client)
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("no docker daemon answers, and none can be started: that needs dockerd and root")
    with tempfile.TemporaryDirectory(prefix="engine") as name:
        folder, data = Path(name), CACHE / "docker"
        data.mkdir(parents=True, exist_ok=True)
        address = f"unix://{folder}/socket"
        own = ("--host", address, "--exec-root", str(folder / "exec"), "--pidfile", str(folder / "pid"))
        with (folder / "log").open("wb") as log:
            daemon = subprocess.Popen(
                ("dockerd", *own, "--data-root", str(data), "--bridge", "none"), stdout=log, stderr=log
            )
        try:
            environment["DOCKER_HOST"] = address
            give_up = time.monotonic() + 60
            while subprocess.run((client, "info"), env=environment, capture_output=True, check=False).returncode:
                if daemon.poll() is not None or time.monotonic() > give_up:
                    pytest.skip(f"dockerd does not start here: {(folder / 'log').read_text()[-500:]}")
                time.sleep(0.2)
            yield Engine(environment, _compose(client, environment), client)
        finally:
            daemon.terminate()
            daemon.wait(60)


def _compose(client: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    candidates = ((client, "compose"), (str(Path.home() / "go/bin" / COMPOSE),), (COMPOSE,))
    for command in candidates:
        if shutil.which(command[0]) is None:
            continue
        found = subprocess.run((*command, "version"), env=environment, capture_output=True, text=True, check=False)
        # Version 1 has another file format and no `up --wait`.
        if found.returncode == 0 and found.stdout.startswith("Docker Compose version"):
            return command
    return ()


def base(engine: Engine) -> None:
    """Have the base of the image: cached, from a registry, or made by debootstrap."""
    if engine.run("image", "inspect", BASE, check=False).returncode == 0:
        return
    if engine.run("pull", "--quiet", BASE, check=False).returncode == 0:
        return
    if shutil.which("debootstrap") is None:
        pytest.skip("no registry can be reached, and there is no debootstrap")
    with tempfile.TemporaryDirectory(prefix="base") as name:
        root, archive = Path(name) / "root", Path(name) / "base.tar"
        made = subprocess.run(
            ("debootstrap", "--variant=minbase", SUITE, str(root)), capture_output=True, text=True, check=False
        )
        if made.returncode:
            pytest.skip(f"debootstrap fails: {made.stdout[-300:]}")
        subprocess.run(
            ("tar", "-C", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(archive), "."), check=True
        )
        engine.run("import", str(archive), BASE)


def build(engine: Engine, tag: str, *more: str) -> None:
    """Build the image of the gateway as `make image` does."""
    bundle = os.environ.get("PIP_CERT", "/dev/null")
    secret = ("--secret", f"id=certificates,src={bundle}")
    engine.run("build", "--network", "host", *secret, "--file", "deploy/Dockerfile", "--tag", tag, *more, ".")


pytestmark = pytest.mark.installed

PATIENCE = 60.0
SECRET = "not-for-an-image"
"""In a file of the folder that the image is built from."""


@dataclass(frozen=True, slots=True)
class Project:
    """The services of docker-compose.yml, running."""

    engine: Engine
    name: str
    override: Path
    port: int

    def compose(self, *arguments: str, check: bool = True) -> str:
        files = ("-f", str(ROOT / "docker-compose.yml"), "-f", str(self.override))
        given = ("--project-name", self.name, "--project-directory", str(ROOT), *files)
        return self.engine.composed(*given, *arguments, check=check, GATEWAY_PORT=str(self.port)).stdout

    def up(self) -> None:
        self.compose("up", "--wait", "--no-build", "--pull", "never")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def container(self, service: str = "gateway") -> str:
        return self.compose("ps", "--all", "--quiet", service).strip()

    def state(self, service: str = "gateway") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.run("inspect", self.container(service)).stdout)[0]["State"]
        return found

    def until(self, health: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while self.state().get("Health", {}).get("Status") != health:
            assert time.monotonic() < give_up, self.state()
            time.sleep(0.3)


@pytest.fixture(scope="module")
def machine() -> Iterator[Engine]:
    with an_engine() as running:
        base(running)
        yield running


@pytest.fixture(scope="module")
def image(machine: Engine) -> str:
    tag = "fencing-gateway:test"
    stray = ROOT / "build" / "secret"
    stray.parent.mkdir(exist_ok=True)
    stray.write_text(SECRET)
    try:
        build(machine, tag, "--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=abc")
    finally:
        stray.unlink()
    return tag


@pytest.fixture(scope="module")
def project(machine: Engine, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    if not machine.compose:
        pytest.skip("there is no Docker Compose 2")
    override = tmp_path_factory.mktemp("compose") / "override.json"
    services: dict[str, Any] = {name: {"image": image} for name in ("gateway", "migrate", "bucket")}
    services |= {name: {"image": tag} for name, tag in stand_ins(machine).items()}
    override.write_text(json.dumps({"services": services}))
    project = Project(machine, f"fencing-test-{os.getpid()}", override, free_port())
    try:
        project.up()
        yield project
    finally:
        print(project.compose("logs", "--no-color", check=False)[-5000:])
        project.compose("down", "--volumes", "--timeout", "1", check=False)


def stand_ins(machine: Engine) -> dict[str, str]:
    """Images for the services that are not ours, if theirs cannot be had."""
    services = json.loads(machine.composed("-f", str(ROOT / "docker-compose.yml"), "config", "--format", "json").stdout)
    foreign = {name: services["services"][name]["image"] for name in ("postgres", "s3")}
    if all(machine.run("pull", "--quiet", one, check=False).returncode == 0 for one in foreign.values()):
        return foreign
    versitygw = shutil.which("versitygw") or str(Path.home() / "go/bin/versitygw")
    if not Path(versitygw).exists():
        pytest.skip(f"no registry can be reached, and there is no versitygw: go install {MODULE}")
    with tempfile.TemporaryDirectory() as name:
        context = Path(name) / "context"
        shutil.copytree(ROOT / "tests/containers/stand_ins", context)
        shutil.copy(versitygw, context / "versitygw")
        for service in foreign:
            tag = f"fencing-gateway-test:{service}"
            machine.run("build", "--network", "host", "--quiet", "--target", service, "--tag", tag, str(context))
    return {service: f"fencing-gateway-test:{service}" for service in foreign}


@pytest.fixture(scope="module")
def caller() -> dict[str, str]:
    caller = load(ROOT / "deploy/compose.toml").callers[0]
    return {
        "api_key": caller.api_key[0].get_secret_value(),
        **caller.pairs[0]._asdict(),
    }


def patch(project: Project, caller: dict[str, str], token: int, note: str) -> httpx.Response:
    return httpx.patch(
        f"{project.url}/v1/tables/accounts?id=eq.1",
        json={"note": note},
        headers={
            "Authorization": f"Bearer {caller['api_key']}",
            "Fencing-Token": str(token),
            "Prefer": "return=representation",
        },
        timeout=PATIENCE,
    )


def bucket(project: Project, caller: dict[str, str], token: int) -> Any:
    client = boto3.client(
        "s3",
        endpoint_url=project.url,
        region_name="us-east-1",
        aws_access_key_id=caller["access_key_id"],
        aws_secret_access_key=caller["secret_access_key"],
        config=Settings(s3={"addressing_style": "path"}, retries={"max_attempts": 1, "mode": "standard"}),
    )
    client.meta.events.register(
        "before-sign.s3", lambda request, **_: request.headers.add_header("Fencing-Token", str(token))
    )
    return client


def test_the_services_start_and_are_healthy(project: Project) -> None:
    assert project.state()["Health"]["Status"] == "healthy"
    assert [project.state(name)["ExitCode"] for name in ("migrate", "bucket")] == [0, 0]
    assert project.engine.run("exec", project.container(), "gateway", "health").stdout == "ready\n"


def test_a_zombie_is_refused_on_both_planes_also_after_a_kill(project: Project, caller: dict[str, str]) -> None:
    assert patch(project, caller, 8, "new").status_code == 200
    bucket(project, caller, 8).put_object(Bucket="reports", Key="accounts/1/a.txt", Body=b"new")
    assert patch(project, caller, 7, "stale").status_code == 412
    with pytest.raises(Exception, match="StaleFencingToken"):
        bucket(project, caller, 7).put_object(Bucket="reports", Key="accounts/1/a.txt", Body=b"stale")

    project.engine.run("kill", "--signal", "KILL", project.container())
    project.up()
    project.until("healthy")
    assert patch(project, caller, 7, "stale").status_code == 412
    with pytest.raises(Exception, match="StaleFencingToken"):
        bucket(project, caller, 7).put_object(Bucket="reports", Key="accounts/1/a.txt", Body=b"stale")
    answer = bucket(project, caller, 8).get_object(Bucket="reports", Key="accounts/1/a.txt")
    assert answer["Body"].read() == b"new"


def test_a_stop_lets_an_upload_end(project: Project, caller: dict[str, str]) -> None:
    begun, stopped = threading.Event(), threading.Event()
    body = httpx.Client(timeout=PATIENCE)
    row = json.dumps({"note": "x" * 100_000}).encode()

    def pieces() -> Iterator[bytes]:
        yield row[:50_000]
        begun.set()
        stopped.wait(PATIENCE)
        time.sleep(1)
        yield row[50_000:]

    answers: list[httpx.Response] = []

    def upload() -> None:
        headers = {
            "Authorization": f"Bearer {caller['api_key']}",
            "Fencing-Token": "9",
            "Content-Type": "application/json",
        }
        url = f"{project.url}/v1/tables/accounts?id=eq.1"
        answers.append(body.patch(url, content=pieces(), headers=headers))

    uploading = threading.Thread(target=upload)
    uploading.start()
    assert begun.wait(PATIENCE)
    time.sleep(1)
    project.engine.run("kill", "--signal", "TERM", project.container())
    stopped.set()
    uploading.join(PATIENCE)
    assert answers[0].status_code in (200, 204), answers[0].text
    give_up = time.monotonic() + PATIENCE
    while project.state()["Status"] == "running":
        assert time.monotonic() < give_up
        time.sleep(0.2)
    assert project.state()["ExitCode"] == 0
    project.up()


def test_it_is_unhealthy_while_no_write_is_possible(project: Project) -> None:
    project.compose("pause", "postgres")
    try:
        project.until("unhealthy")
        # Of a liveness probe, which must not restart a gateway for a database that is away.
        assert project.engine.run("exec", project.container(), "gateway", "health", "--alive").returncode == 0
    finally:
        project.compose("unpause", "postgres")
    project.until("healthy")


INSIDE = """
import json, os, pathlib

def can_write(path):
    try:
        with open(path, "a"):
            return True
    except OSError:
        return False

PLACES = ("/x", "/tmp/x", "/etc/passwd", "/etc/gateway/gateway.toml", "/opt/gateway/x", "/var/x", "/run/x", "/home/x")
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/1/status").read_text().splitlines())
print(json.dumps({
    "user": [os.getuid(), os.getgid()],
    "rights": {name: status[name].strip() for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp")},
    "written": [path for path in PLACES if can_write(path)],
    "programs": sorted(path.name for path in pathlib.Path("/usr/bin").iterdir()),
}))
"""
"""Tells what a process in the container may do: its user and rights, the places it can write, the programs it finds."""


def test_its_process_can_do_nothing_but_serve(project: Project) -> None:
    """An intruder in the container has no rights, no writable place and no programs."""
    found = json.loads(project.engine.run("exec", project.container(), "python", "-c", INSIDE).stdout)
    assert found["user"] == [65532, 65532]
    rights = found["rights"]
    assert {rights[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert (rights["NoNewPrivs"], rights["Seccomp"]) == ("1", "2")
    assert found["written"] == []
    assert all(name.startswith("python3") for name in found["programs"])


@contextmanager
def unpacked(machine: Engine, image: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        archive, root = Path(name) / "image.tar", Path(name) / "root"
        container = machine.run("create", image).stdout.strip()
        try:
            machine.run("export", "--output", str(archive), container)
        finally:
            machine.run("rm", container)
        shutil.unpack_archive(archive, root, filter="tar")
        yield root


CONFIGURATION = """
[server]
listen = "0.0.0.0:{port}"

[postgres]
dsn_file = "/run/secrets/dsn"
"""


@pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL of the system, and the embedded one answers at a socket alone")
def test_the_commands_of_the_guide(machine: Engine, image: str) -> None:
    """They run as they are, but in the network of the host: the daemon of a test has no other."""
    page = (ROOT / "docs/guides/containers.md").read_text()
    (commands,) = re.findall(r"## Running it\n\n```sh\n(.*?)```", page, re.DOTALL)
    name, port = f"fencing-test-{os.getpid()}", free_port()
    here = {
        "docker run": f"{machine.client} run --network host",
        "--name gateway --publish 8080:8080": f"--name {name}",
        " fencing-gateway": f" {image}",
    }
    for shown, ours in here.items():
        assert shown in commands
        commands = commands.replace(shown, ours)
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as folder:
        directory = Path(folder)
        with over_tls(directory, PROGRAMS[-1].parent) as variables:
            (directory / "gateway.toml").write_text(CONFIGURATION.format(port=port))
            (directory / "secrets").mkdir()
            (directory / "secrets/dsn").write_text(variables["DATABASE"])
            owner = variables["DATABASE"].replace("gateway@", "owner@")
            environment = {**machine.environment, "OWNER": owner}
            try:
                subprocess.run(["bash", "-euc", commands], cwd=directory, env=environment, check=True, timeout=LONG)
                give_up = time.monotonic() + PATIENCE
                while not ready(port):
                    assert time.monotonic() < give_up, machine.run("logs", name).stderr
                    time.sleep(0.1)
                machine.run("stop", name)
                assert json.loads(machine.run("inspect", name).stdout)[0]["State"]["ExitCode"] == 0
            finally:
                machine.run("rm", "--force", name, check=False)


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE).status_code == 204
    except httpx.TransportError:
        return False


def test_the_image_has_what_it_says_and_no_more(machine: Engine, image: str) -> None:
    described = json.loads(machine.run("inspect", image).stdout)[0]
    configured = described["Config"]
    assert (configured["User"], configured["StopSignal"]) == ("65532:65532", "SIGTERM")
    assert configured["Healthcheck"]["Test"] == ["CMD", "gateway", "health"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in configured["Labels"].items()}
    assert (labels["version"], labels["revision"], labels["licenses"]) == ("1.2.3", "abc", "Apache-2.0")
    assert described["Size"] < 280_000_000
    with unpacked(machine, image) as root:
        files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
        assert not [path for path in files if path.stat().st_mode & 0o6000]
        assert not [
            path for path in files if path.name in ("sh", "bash", "dash", "apt-get", "dpkg", "pip", "gcc", "perl")
        ]
        assert not [path for path in files if SECRET.encode() in path.read_bytes()[:1000]]
        assert not list(root.glob("opt/gateway/lib/python3*/site-packages/pip"))
        programs = {path.name for path in root.glob("opt/gateway/bin/*") if not path.name.startswith("python")}
        assert programs <= {"gateway", "__pycache__"}
        own = root / "usr/lib/python3.13/json/__pycache__"
        assert list(own.glob("__init__.*.pyc")), "a read-only file system keeps no bytecode of a first start"
        bill = json.loads((root / "opt/gateway/sbom.cdx.json").read_text())
        licences = {path.parent.name for path in root.glob("usr/share/doc/*/copyright")}
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    named = {component["name"]: component for component in bill["components"]}
    assert {"asyncpg", "uvicorn", "libc6", "libssl3t64", "python3.13", "ca-certificates"} <= named.keys()
    assert named["libc6"]["purl"].startswith("pkg:deb/debian/libc6@")
    assert len(named["libc6"]["hashes"][0]["content"]) == 64
    assert bill["metadata"]["component"]["name"] == "fencing-gateway"
    assert {"libc6", "python3.13", "ca-certificates"} <= licences


def test_neither_its_history_nor_its_environment_has_a_secret(machine: Engine, image: str) -> None:
    said = machine.run("history", "--no-trunc", "--format", "{{.CreatedBy}}", image).stdout
    said += json.dumps(json.loads(machine.run("inspect", image).stdout)[0]["Config"]["Env"])
    assert not [word for word in ("PASSWORD", "SECRET", "API_KEY", "-----BEGIN", SECRET) if word in said]
