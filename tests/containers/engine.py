"""A container engine for tests: the one that runs already, or a daemon of our own on a machine without one.

Our own daemon keeps its images and its build cache below ``$XDG_CACHE_HOME/fencing-gateway``, so a second run is quick.
Without a registry, debootstrap makes the base of the image.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import ROOT

BASE, SUITE = "debian:13-slim", "trixie"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fencing-gateway"
COMPOSE = "docker-compose"
"""The program of Docker Compose 2, which is a plugin of the client or stands alone."""
PATIENCE = 600.0


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
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not check or ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}"
    return ended


@contextmanager
def running() -> Iterator[Engine]:
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
