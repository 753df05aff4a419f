"""The pages of the fencing API, from its OpenAPI document: its operations by subject, and its objects."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from http.client import responses
from typing import Any

from docs.generator import grouped, markdown, page
from gateway.api import ROUTES, openapi

INTRODUCTION = """\
{introduction}
A running gateway shows the same at `/v1/docs`, where operations can be tried out, and as OpenAPI at `/v1/openapi.json`.
`/v1/docs` has an example of each body, and [Locks](../locks.md#requests) a whole session.

An operation may also answer 400, 401, 404, 408, 413 and 503, and 403 if the caller lacks a grant. An error has a
[Problem](#problem) as its body, and [errors](errors.md) has all codes. Names without a place are fields of the body."""

OBJECTS = "http-objects.md"

EVERYWHERE = {"400", "401", "403", "404", "408", "413", "503"}
COMMON = {openapi.LACKS, *responses.values()}


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return openapi.document(ROUTES)


def make() -> str:
    """Return the page."""
    described = document()
    introduction = INTRODUCTION.format(introduction=described["info"]["description"])
    shared = _shared(described)
    operations = page(
        "The fencing API",
        introduction,
        "## Common parameters",
        "Operations name them after *Also*. All are in the query.",
        *_explained([(f"`{name}`", kind, meaning) for name, (_, kind, meaning) in shared.items()]),
        f"*The filters* are {', '.join(f'`{name}`' for name in FILTERS)}, and `resource`: only entries about it. An "
        "entry must match all.",
        *_subjects(described, shared),
    )
    return re.sub(r"\]\(#(\w+)\)", rf"]({OBJECTS}#\1)", operations)


def make_objects() -> str:
    """Return the page of the objects in bodies and answers."""
    about = "The objects in the bodies and answers of [the fencing API](http.md)."
    return page("Objects of the fencing API", about, *_objects(document()))


Row = tuple[str, str, str]

ABOUT = "Only entries about this resource."
"""The meaning of the filter `resource`, which is no common parameter: elsewhere a resource is the subject."""

CLOCK = "By the database's clock."
"""The introduction says it of all times."""

FILTERS = ("prefix", "holder", "caller", "reason", "plane", "rule", "enforced", "token", "since", "until")
"""The parameters that lists, exports and streams of the record share."""


def _operations(described: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            yield f"{method.upper()} {path}", operation


def _parameters(operation: Mapping[str, Any]) -> dict[str, Row]:
    return {
        one["name"]: (
            f"`{one['name']}` ({one['in']})",
            markdown(_type(one["schema"]).replace(" or null", "")),
            markdown(one.get("description", "")),
        )
        for one in operation.get("parameters", [])
        if one["in"] != "path" or "description" in one
    }


def _shared(described: Mapping[str, Any]) -> dict[str, Row]:
    """Return the parameters that three operations or more have alike: of two kinds the more frequent one."""
    rows = Counter(
        (name, row)
        for _, operation in _operations(described)
        for name, row in _parameters(operation).items()
        if "(query)" in row[0]
    )
    found: dict[str, Row] = {}
    for (name, row), count in rows.most_common():
        if count > 2:
            found.setdefault(name, row)
    return found


def _subjects(described: Mapping[str, Any], shared: dict[str, Row]) -> Iterator[str]:
    for tag in described["tags"]:
        yield f"## {tag['name']}"
        yield tag["description"]
        said: dict[tuple[str, ...], str] = {}
        for line, operation in _operations(described):
            if tag["name"] in operation["tags"]:
                yield f"### {operation['summary']}"
                yield f"`{line}`{_success(operation)}"
                parameters = _parameters(operation)
                alike = [name for name, row in parameters.items() if name in shared and _alike(row, shared[name])]
                own = [row for name, row in parameters.items() if name not in alike and row[2] != ABOUT]
                content = tuple(_content(described, operation, own))
                # Two operations of one subject, such as those for entries and for refused writes, may say the same.
                first = said.setdefault(content, line)
                yield from content if first == line or not any(content) else (f"As `{first}`.",)
                if alike:
                    yield grouped(alike, FILTERS, "*the filters*")
                yield _refusals(operation)


def _alike(row: Row, common: Row) -> bool:
    return row[1] == common[1] and row[2] in ("", common[2])


def _content(described: Mapping[str, Any], operation: Mapping[str, Any], rows: list[Row]) -> Iterator[str]:
    """Yield the description, and a list of the parameters and fields of an operation."""
    yield operation.get("description", "").strip()
    for content in operation.get("requestBody", {}).get("content", {}).values():
        rows = [*rows, *_fields(_resolved(described, content["schema"]))]
    yield from _explained(rows)


def _explained(rows: list[Row]) -> Iterator[str]:
    """Yield a list: what has a meaning one by one, and then the others by their types."""
    plain: dict[str, list[str]] = {}
    lines = []
    for name, kind, meaning in rows:
        if meaning and meaning != CLOCK:
            told = kind.replace(" or null", "") if "null" in meaning else kind
            lines.append(f"- {name} {told}: {meaning}")
        else:
            plain.setdefault(kind, []).append(name)
    lines += [f"- {', '.join(names)}: {kind}" for kind, names in plain.items()]
    if lines:
        yield "\n".join(lines)


def _success(operation: Mapping[str, Any]) -> str:
    """Return the successful answers with their bodies, as the end of a line."""
    answers = [
        " ".join([status, *(_body(kind, one) for kind, one in answer.get("content", {}).items())])
        for status, answer in sorted(operation["responses"].items())
        if status.startswith("2")
    ]
    return f": {' or '.join(answers)}" if answers else ""


def _refusals(operation: Mapping[str, Any]) -> str:
    """Return a list of the answers that need words, and at its end those that errors explain."""
    lines, others = [], []
    for status, answer in sorted(operation["responses"].items()):
        plain = answer["description"]
        # The names of statuses come from Python, whose versions differ.
        if plain != "Successful Response" and plain not in COMMON:
            lines.append(f"- {status}: {plain}")
        elif not status.startswith("2") and status not in EVERYWHERE:
            others.append(status)
    codes = f" {', '.join(others)}" if others else ""
    if not lines:
        return f"It may answer{codes}." if codes else ""
    return "\n".join([f"It may answer{codes and f'{codes}, and'}:\n", *lines])


def _body(kind: str, content: Mapping[str, Any]) -> str:
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return f"[{name}](#{name.lower()})" if name else f"`{kind}`"


def _objects(described: Mapping[str, Any]) -> Iterator[str]:
    named = {name: described["components"]["schemas"][name] for name in sorted(_named(described))}
    named = {name: schema for name, schema in named.items() if "properties" in schema}
    for name, schema in named.items():
        yield f"## {name}"
        yield " ".join(schema.get("description", "").replace("``", "`").split())
        yield from _explained(_fields(schema))


def _named(described: Mapping[str, Any]) -> set[str]:
    """Return the names of the objects in answers and in bodies, and of the objects in these."""
    named: set[str] = set()
    waiting = [
        content["schema"]
        for path in described["paths"].values()
        for operation in path.values()
        for answer in operation["responses"].values()
        for content in answer.get("content", {}).values()
        if "schema" in content
    ]
    waiting += [
        _resolved(described, content["schema"])
        for _, operation in _operations(described)
        for content in operation.get("requestBody", {}).get("content", {}).values()
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


def _fields(schema: Mapping[str, Any]) -> list[Row]:
    required = set(schema.get("required", ()))
    return [
        (f"`{name}`", markdown(_type(one, required=name in required)), markdown(one.get("description", "")))
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
            return {"string": "text"}.get(kind, kind)
        case _:
            return "any"


_WORDS = {
    "LockMode": "`exclusive` or `shared`",
    "State": "[state](../record.md#incidents)",
    "Kind": "[kind of entry](../record.md#entries)",
    "EntryReason": "[reason](events.md#reasons-of-entries)",
}
