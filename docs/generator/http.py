"""The page of the fencing API: its operations by subject, from its OpenAPI document."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from http.client import responses
from inspect import signature
from typing import Any
from unittest.mock import MagicMock

from docs.generator import cell, page, table
from gateway import api

INTRODUCTION = """\
{introduction}
A running gateway shows the same at `/v1/docs`, where operations can be tried out, and as OpenAPI at `/v1/openapi.json`.
[Locks over HTTP](../locks.md) has an example of a whole session. Unless stated otherwise, an operation may also answer
400, 401, 404 and 503; [errors](errors.md) has all codes."""

EVERYWHERE = {"400", "401", "404", "503"}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document. The description needs no parts behind the routes, so stand-ins take their places."""
    parts = {name: MagicMock() for name in signature(api.build).parameters}
    return dict(api.build(**parts).openapi())


def make() -> str:
    """Return the page."""
    described = document()
    introduction = INTRODUCTION.format(introduction=described["info"]["description"])
    return page("The fencing API", introduction, *_subjects(described), "## Objects", *_objects(described))


def _subjects(described: Mapping[str, Any]) -> Iterator[str]:
    for tag in described["tags"]:
        yield f"## {tag['name']}"
        yield tag["description"]
        for path, operations in described["paths"].items():
            for method, operation in operations.items():
                if tag["name"] in operation["tags"]:
                    yield from _operation(described, f"{method.upper()} {path}", operation)


def _operation(described: Mapping[str, Any], line: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {operation['summary']}"
    yield f"`{line}`"
    yield operation.get("description", "").strip()
    parameters = [
        (f"`{one['name']}`", one["in"], cell(_type(one["schema"])), cell(one.get("description", "")))
        for one in operation.get("parameters", [])
    ]
    if parameters:
        yield table(("parameter", "in", "type", "meaning"), parameters)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = _resolved(described, content["schema"])
        if rows := _fields(schema):
            yield table(("field", "type", "meaning"), rows)
        yield from _example("Request", schema)
    answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    bodies = [content.get("schema", {}) for answer in answers for content in answer.get("content", {}).values()]
    for body in bodies[:1]:
        yield from _example("Answer", _resolved(described, body))
    yield table(("status", "body", "meaning"), list(_answers(operation)))


def _answers(operation: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for status, answer in sorted(operation["responses"].items()):
        plain = answer["description"]
        # FastAPI takes the names of statuses from Python, whose versions differ.
        unnamed = plain == "Successful Response" or plain in responses.values()
        if status in EVERYWHERE and unnamed:
            continue
        bodies = [_body(kind, content) for kind, content in answer.get("content", {}).items()]
        meaning = "" if unnamed else plain
        yield status, ", ".join(bodies), cell(meaning)


def _body(kind: str, content: Mapping[str, Any]) -> str:
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"[{name}](#{name.lower()})" if name else f"`{kind}`"


def _objects(described: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(_named(described)):
        schema = described["components"]["schemas"][name]
        if "properties" in schema:
            yield f"### {name}"
            yield " ".join(schema.get("description", "").replace("``", "`").split())
            yield table(("field", "type", "meaning"), _fields(schema))


def _named(described: Mapping[str, Any]) -> set[str]:
    """Return the names of the objects in answers, and of the objects in these."""
    named: set[str] = set()
    waiting = [
        content["schema"]
        for path in described["paths"].values()
        for operation in path.values()
        for answer in operation["responses"].values()
        for content in answer.get("content", {}).values()
        if "schema" in content
    ]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in named:
                named.add(name)
                waiting.append(described["components"]["schemas"][name])
    return named


def _references(part: Any) -> Iterator[str]:
    match part:
        case {"$ref": str(target)}:
            yield target.rpartition("/")[2]
        case dict():
            for inner in part.values():
                yield from _references(inner)
        case list():
            for inner in part:
                yield from _references(inner)


def _resolved(described: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(described["components"]["schemas"][name]) if name else schema


def _fields(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    required = set(schema.get("required", ()))
    return [
        (f"`{name}`", cell(_type(one, required=name in required)), cell(one.get("description", "")))
        for name, one in schema.get("properties", {}).items()
    ]


def _type(schema: Mapping[str, Any], *, required: bool = True) -> str:
    """Return a type in plain words, with its default."""
    said = _kind(schema)
    if (default := schema.get("default")) not in (None, "", []):
        return f"{said}; default `{json.dumps(default)}`"
    return said if required else f"{said}; optional"


def _kind(schema: Mapping[str, Any]) -> str:
    match schema:
        case {"$ref": str(target)}:
            name = target.rpartition("/")[2]
            return f"[{name}](#{name.lower()})" if name not in _WORDS else _WORDS[name]
        case {"anyOf": list(choices)}:
            return " or ".join(dict.fromkeys(_kind(one) for one in choices))
        case {"enum": list(values)} if len(values) < 6:
            return "one of " + ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": dict(items)}:
            return f"list of {_kind(items)}"
        case {"type": "string", "format": "date-time"}:
            return "time"
        case {"type": "string", "format": "uuid"}:
            return "UUID"
        case {"type": str(kind)}:
            return {"string": "text", "integer": "whole number"}.get(kind, kind)
        case _:
            return "any"


_WORDS = {
    "LockMode": "`exclusive` or `shared`",
    "State": "[state](../record.md#incidents)",
    "Kind": "[kind of entry](../record.md#entries)",
    "EntryReason": "[reason](events.md#reasons-of-entries)",
}


def _example(title: str, schema: Mapping[str, Any]) -> Iterator[str]:
    for example in schema.get("examples", ()):
        yield f"{title}:"
        yield f"```json\n{json.dumps(example, indent=2, ensure_ascii=False)}\n```"
