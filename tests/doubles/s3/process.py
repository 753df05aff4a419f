"""The double as a child process, and its control interface as methods; for crash tests and the benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from urllib3 import HTTPConnectionPool
from urllib3.util import parse_url

from tests import ROOT

_CONNECTIONS = 32
"""Kept open to the control interface: one for each thread that asks at once."""


@dataclass(frozen=True, slots=True)
class RemoteRule:
    """A rule in another process; see `Rule`. The states are dicts: number, arrived, finished, struck, statuses."""

    control: HTTPConnectionPool
    number: int

    def state(self) -> dict[str, Any]:
        """How it stands now."""
        return dict(_call(self.control, "GET", f"rules/{self.number}"))

    def wait_arrived(self, timeout: float = 30) -> dict[str, Any]:
        """Wait until a request has been struck. Raises TimeoutError."""
        return self._wait("arrived", timeout)

    def wait_finished(self, timeout: float = 30) -> dict[str, Any]:
        """Wait until a struck request has been dealt with to the end. Raises TimeoutError."""
        return self._wait("finished", timeout)

    def release(self) -> None:
        """Let go what it holds."""
        _call(self.control, "POST", f"rules/{self.number}/release")

    def remove(self) -> None:
        """Take it back; what it holds is released."""
        _call(self.control, "DELETE", f"rules/{self.number}")

    def _wait(self, event: str, timeout: float) -> dict[str, Any]:
        state = _call(self.control, "GET", f"rules/{self.number}?wait={event}&timeout={timeout}")
        if not state[event]:
            raise TimeoutError(f"rule {self.number} has not {event} within {timeout} s")
        return dict(state)


class DoubleProcess:
    """A running double; a context manager that ends it. `endpoint` is where S3 is."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.process = process
        self.endpoint = endpoint
        address = parse_url(endpoint)
        assert address.host is not None
        self._control = HTTPConnectionPool(address.host, address.port, timeout=60, maxsize=_CONNECTIONS, retries=False)

    @classmethod
    def start(cls, *, port: int = 0, buckets: Iterable[str] = ()) -> Self:
        """Start it and wait until it listens."""
        options = [f"--bucket={name}" for name in buckets]
        command = [sys.executable, "-m", "tests.doubles.s3", f"--port={port}", *options]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        if not ready:
            raise RuntimeError(f"the double did not start: exit status {process.wait()}")
        return cls(process, ready[-1])

    def stop(self) -> None:
        """End it; what it holds is lost."""
        self._control.close()
        self.process.terminate()
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def rule(self, action: str, at: str = "before", **fields: Any) -> RemoteRule:
        """Set a rule; the fields are those of Match and Details, nth and times."""
        state = _call(self._control, "POST", "rules", {"action": action, "at": at, **fields})
        return RemoteRule(self._control, state["number"])

    def clear(self) -> None:
        """Take all rules back; what they hold is released."""
        _call(self._control, "DELETE", "rules")

    def behave(self, **changes: Any) -> None:
        """Change traits of Behaviour; sets are given as lists."""
        _call(self._control, "POST", "behaviour", changes)

    def log(self, after: int = 0) -> dict[str, Any]:
        """The last `sequence`, and the `mutations` after a sequence number as dicts."""
        return dict(_call(self._control, "GET", f"log?after={after}"))

    def requests(self, since: int = 0) -> list[dict[str, Any]]:
        """The requests that came when the last `sequence` was this, or later."""
        return list(_call(self._control, "GET", f"requests?since={since}"))

    def objects(self, bucket: str) -> dict[str, dict[str, Any]]:
        """Return the stored objects by key: etag, sequence, body (base64), metadata, headers."""
        return dict(_call(self._control, "GET", f"objects/{bucket}"))

    def reset(self) -> None:
        """Forget objects, logs and rules."""
        _call(self._control, "POST", "reset")


def _call(control: HTTPConnectionPool, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content)
    answer = control.request(method, f"/_/{path}", body=body)
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.data!r}")
    return json.loads(answer.data)
