"""How the examples are played: machines as processes, what they say line by line, and what the gateway says afterwards.

Nothing of this is needed to use the gateway; that is in the other files of each folder.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx

from gateway.demo import embedded

API_KEY, ACCESS_KEY, SECRET_KEY = "demo-key", "demo", "demo-secret"
"""The caller of ``gateway demo``."""

GATEWAY = [sys.executable, "-m", "gateway"]
_PROCESS = re.compile(r"process (\d+)")


@dataclass(frozen=True, slots=True)
class Stage:
    """The gateway of an example, and the database behind it. ``ttl``: seconds that a lease lasts without a renewal."""

    url: str
    database: str
    zombie: bool
    ttl: float

    def get(self, path: str, **parameters: str | int) -> Any:
        """Return the gateway's answer as JSON. Reads need no token."""
        headers = {"Authorization": f"Bearer {API_KEY}"}
        answer = httpx.get(self.url + path, params=parameters or None, headers=headers, timeout=30, trust_env=False)
        return answer.raise_for_status().json()

    def s3(self) -> Any:
        """A plain S3 client, for looking at what is there."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def content(self, key: str) -> str:
        """Return an object of the bucket, as text."""
        body: bytes = self.s3().get_object(Bucket="reports", Key=key)["Body"].read()
        return body.decode().strip()

    @contextmanager
    def refusals(self, resource: str, number: int = 1) -> Iterator[None]:
        """Show what is on record of so many writes that are refused meanwhile under this lock, oldest first.

        The gateway reads the refusals of a guard from the database, within a second.
        """

        def listed() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.get("/v1/rejections", resource=resource, limit=100)["rejections"]
            return found

        before = {one["id"] for one in listed()}
        yield
        give_up = time.monotonic() + 30
        while len(new := [one for one in listed() if one["id"] not in before]) < number:
            if time.monotonic() > give_up:
                raise SystemExit(f"{len(new)} refused writes are on record, and not {number}.")
            time.sleep(0.1)
        say(f"On record (GET /v1/rejections?resource={resource}):")
        for one in sorted(new, key=lambda one: one["at"]):
            who = f"{one['holder'] or one['caller']}, token {one['token']}"
            # A guard tells of a table alone.
            written = f"{one['method']} {one['target']}" if one["method"] else one["target"]
            say(f"  {written} by {who}: refused, {one['raised_by']} held {one['fence']}")


@dataclass(slots=True)
class Machine:
    """A process that plays a machine. Its lines are printed with its name before each."""

    name: str
    process: "subprocess.Popen[str]"
    _job: int = 0

    def hear(self, what: str) -> None:
        """Wait until it says a line with this in it."""
        while (line := self._line()) is not None:
            if what in line:
                return
        raise SystemExit(f"{self.name} ended and never said {what!r}")

    def end(self) -> int:
        """Wait for its end; the exit code."""
        while self._line() is not None:
            pass
        code = self.process.wait(30)
        say(f"{self.name}: exit code {code}")
        return code

    def pause(self) -> None:
        """Stop the whole machine: `gateway run` first, so that it cannot look, then the job and all that it started."""
        os.kill(self.process.pid, signal.SIGSTOP)
        if self._job:
            os.killpg(self._job, signal.SIGSTOP)

    def resume_job(self) -> None:
        """Let the job go on, a moment before `gateway run`, which would stop it."""
        os.killpg(self._job, signal.SIGCONT)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Tell it to end, and wait for that."""
        self.process.terminate()
        self.end()

    def kill(self) -> None:
        """Leave nothing behind, whatever has gone wrong."""
        self.process.kill()
        if self._job:
            with suppress(ProcessLookupError):
                os.killpg(self._job, signal.SIGKILL)

    def _line(self) -> str | None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return None
        if found := _PROCESS.search(line):
            self._job = int(found[1])
        if line.strip():
            say(f"{self.name}: {line.rstrip()}")
        return line


@contextmanager
def machine(stage: Stage, name: str, command: list[str], **environment: str) -> Iterator[Machine]:
    """Start a machine; whatever of it is still there at the end is killed."""
    known = {"GATEWAY_URL": stage.url, "GATEWAY_API_KEY": API_KEY, "GATEWAY_POSTGRES": stage.database, "MACHINE": name}
    process = subprocess.Popen(
        command,
        env={**_with_our_programs(os.environ), **known, "PYTHONUNBUFFERED": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = Machine(name, process)
    with process:
        try:
            yield started
        finally:
            started.kill()


def stage(description: str | None) -> Stage:
    """Read the command line, and see whether the gateway is there."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--zombie", action="store_true", help="pause the holder past its lease, and wake it up again")
    parser.add_argument("--ttl", type=float, default=6, metavar="SECONDS", help="how long a lease lasts (%(default)s)")
    given = parser.parse_args()
    missing = [name for name in ("GATEWAY_URL", "GATEWAY_POSTGRES") if name not in os.environ]
    if missing:
        raise SystemExit(f"No {' and no '.join(missing)}: paste the line with export that `gateway demo` prints.")
    found = Stage(os.environ["GATEWAY_URL"], os.environ["GATEWAY_POSTGRES"], given.zombie, given.ttl)
    try:
        found.get("/v1/health")
    except httpx.HTTPError as error:
        raise SystemExit(f"No gateway at {found.url}: start one with `gateway demo`. ({error})") from error
    return found


def say(line: str) -> None:
    print(line, flush=True)


def _with_our_programs(environment: Mapping[str, str]) -> dict[str, str]:
    """``gateway``, ``aws`` and ``psql`` are found in the environment of this Python, even if it was not activated."""
    ours = (str(Path(sys.executable).parent), str(Path(embedded.psql()).parent))
    return {**environment, "PATH": os.pathsep.join((*ours, environment.get("PATH", os.defpath)))}
