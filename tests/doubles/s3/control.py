"""The switches over HTTP, for a double that runs as its own process. JSON in and out, under /_/: no bucket's name.

- ``GET /_/behaviour``: the traits. ``POST``: set some of them.
- ``POST /_/rules``: set a rule; the answer is its state. ``DELETE``: take all back.
- ``GET /_/rules/N?wait=arrived&timeout=5``: its state, once it has arrived (or finished), or after the timeout.
- ``POST /_/rules/N/release``: release the requests it holds. ``DELETE /_/rules/N``: take it back.
- ``GET /_/log?after=N``: the mutations after a sequence number, and the last number.
- ``GET /_/requests?since=N``: the requests that came when the last number was N, or later.
- ``GET /_/objects/BUCKET``: the stored objects. ``PUT /_/objects/BUCKET/KEY``: place an object.
- ``POST /_/reset``: forget objects, logs and rules.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.faults import Action, Details, Rule
from tests.doubles.s3.messages import Answer

if TYPE_CHECKING:
    from tests.doubles.s3.app import S3Double

PREFIX = "/_/"
_SETS = ("ignored_conditions", "refused_conditions")


async def answer(double: S3Double, scope: Mapping[str, Any], body: bytes) -> Answer:
    """Answer one request to the control interface: 200 with JSON, 400 with the reason, 404."""
    path = scope["path"].removeprefix(PREFIX).split("/", 2)
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
        case ("GET", "behaviour"):
            return dataclasses.asdict(double.behaviour)
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
        case ("PUT", "objects", bucket, key):
            return _object(double.put(bucket, key, body))
        case ("POST", "reset"):
            return double.reset()
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
