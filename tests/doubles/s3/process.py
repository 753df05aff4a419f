"""The double as a child process, and both ends of its control interface. JSON in and out, under /_/: no bucket's name.

- ``POST /_/behaviour``: set some of the traits.
- ``POST /_/rules``: set a rule; the answer is its state. ``DELETE``: take all back.
- ``GET /_/rules/N?wait=arrived&timeout=5``: its state, once it has arrived (or finished), or after the timeout.
- ``POST /_/rules/N/release``: release the requests it holds. ``DELETE /_/rules/N``: take it back.
- ``GET /_/log?after=N``: the mutations after a sequence number, and the last number.
- ``GET /_/requests?since=N``: the requests that came when the last number was N, or later.
- ``GET /_/objects/BUCKET``: the stored objects.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl

from urllib3 import HTTPConnectionPool
from urllib3.util import parse_url

from tests import ROOT
from tests.doubles.s3.faults import Action, Details, Rule
from tests.doubles.s3.messages import Answer
from tests.doubles.s3.operations import S3Error

if TYPE_CHECKING:
    from tests.doubles.s3.app import S3Double


CONTROL = "/_/"
_SETS = ("ignored_conditions", "refused_conditions")


async def control(double: S3Double, scope: Mapping[str, Any], body: bytes) -> Answer:
    """Answer one request to the control interface: 200 with JSON, 400 with the reason, 404."""
    path = scope["path"].removeprefix(CONTROL).split("/", 2)
    query = dict(parse_qsl(scope["query_string"].decode()))
    try:
        result = await _dispatch(double, scope["method"], path, query, body)
    except (KeyError, TypeError, ValueError) as error:
        return _json(400, {"error": repr(error)})
    except (LookupError, S3Error) as error:
        return _json(404, {"error": repr(error)})
    return _json(200, result)


async def _dispatch(double: S3Double, method: str, path: list[str], query: dict[str, str], body: bytes) -> Any:
    match (method, *path):
        case ("POST", "behaviour"):
            changes = json.loads(body)
            double.behave(**{key: frozenset(value) if key in _SETS else value for key, value in changes.items()})
            return dataclasses.asdict(double.behaviour)
        case (_, "rules", *rest):
            return await _rules(double, method, rest, query, body)
        case ("GET", "log"):
            log = [dataclasses.asdict(each) for each in double.applied(after=int(query.get("after", "0")))]
            return {"sequence": double.sequence, "mutations": log}
        case ("GET", "requests"):
            since = double.requests_since(int(query.get("since", "0")))
            return [dataclasses.asdict(each) for each in since]
        case ("GET", "objects", bucket):
            return {key: _object(stored) for key, stored in double.objects(bucket).items()}
    raise LookupError("/".join(path))


async def _rules(double: S3Double, method: str, path: list[str], query: dict[str, str], body: bytes) -> Any:
    match (method, *path):
        case ("POST",):
            return _state(double, _set(double, json.loads(body)))
        case ("DELETE",):
            return double.faults.clear()
        case ("GET", number):
            rule = double.faults.numbered(int(number))
            await _wait(rule, query)
            return _state(double, rule)
        case ("POST", number, "release"):
            rule = double.faults.numbered(int(number))
            rule.release()
            return _state(double, rule)
        case ("DELETE", number):
            return double.faults.remove(double.faults.numbered(int(number)))
    raise LookupError("/".join(path))


def _set(double: S3Double, wanted: dict[str, Any]) -> Rule:
    """A rule out of its JSON: action, at, the details' fields, and those of the match, nth and times beside them."""
    action = Action(wanted.pop("action"))
    at = wanted.pop("at", "before")
    names = {field.name for field in dataclasses.fields(Details)}
    details = Details(**{name: wanted.pop(name) for name in names & wanted.keys()})
    return double.fault(action, at, details, **wanted)


async def _wait(rule: Rule, query: dict[str, str]) -> None:
    events = {"arrived": rule.arrived, "finished": rule.finished}
    if "wait" in query:
        try:
            async with asyncio.timeout(float(query.get("timeout", "5"))):
                await events[query["wait"]].wait()
        except TimeoutError:
            return


def _state(double: S3Double, rule: Rule) -> dict[str, Any]:
    return {
        "number": double.faults.number(rule),
        "arrived": rule.arrived.is_set(),
        "finished": rule.finished.is_set(),
        "struck": rule.struck,
        "statuses": rule.statuses,
    }


def _object(stored: Any) -> dict[str, Any]:
    return {
        "etag": stored.etag,
        "sequence": stored.sequence,
        "size": stored.content.size,
        "body": base64.b64encode(stored.content.body).decode(),
        "metadata": dict(stored.content.metadata),
        "headers": dict(stored.content.headers),
    }


def _json(status: int, value: Any) -> Answer:
    return Answer(status, json.dumps(value, default=_plain).encode(), {"content-type": "application/json"})


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return sorted(value) if isinstance(value, frozenset) else dict(value)


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


def _call(control: HTTPConnectionPool, method: str, path: str, content: Any = None) -> Any:
    body = None if content is None else json.dumps(content)
    answer = control.request(method, f"/_/{path}", body=body)
    if answer.status != 200:
        raise RuntimeError(f"{method} {path}: {answer.status} {answer.data!r}")
    return json.loads(answer.data)
