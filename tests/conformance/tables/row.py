"""Reads ``rows/*.toml``: PostgREST's answer to one request, and the content of the tables afterwards.

A row is a table of its own in TOML, and its name is the behaviour. Its keys:

- ``send``: method and path, as in ``PATCH /films?id=eq.1``. The sender encodes the characters that a URL cannot hold.
- ``headers``: of the request; a list if one is sent several times.
- ``body``: of the request, sent as JSON unless ``headers`` say otherwise.
- ``status``: of the answer.
- ``answers``: headers of the answer; ``false`` if there must be none of that name.
- ``json``: the body of the answer, compared as JSON; or
- ``text``: the body, compared as it is; or
- ``has``: values that must stand in it, by JSON pointer; ``false`` stands for null.
- ``after``: queries and their rows, as a JSON array of objects. Without it the request must change nothing.
- ``setup``: SQL to run before.
- ``reference``: the source in PostgREST: a file below ``test/spec/Feature``, ``docs`` or ``src`` of its repository,
  v14. The one at the top of a file holds for all its rows that have none.
- ``fence``: fencing headers beside the token, which PostgREST never sees; ``{Fencing-Token = false}`` for no token.
- ``examples``: values for ``$name`` in all of the above, one row for each.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

FOLDER = Path(__file__).with_name("rows")
WRITES = frozenset(("POST", "PATCH", "PUT", "DELETE"))


@dataclass(frozen=True, slots=True)
class Expected:
    """The answer that a row expects. ``answers`` by name: a value, or None for no such header."""

    status: int
    answers: Mapping[str, str | None] = field(default_factory=dict)
    json: Any = None
    text: str | None = None
    has: Mapping[str, Any] = field(default_factory=dict)
    is_json: bool = False
    """Whether ``json`` is compared at all: null is a body too."""


@dataclass(frozen=True, slots=True)
class Row:
    """One behaviour. ``target`` is the path with its query; ``after`` None: nothing may have changed."""

    name: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: str | None
    expected: Expected
    after: Mapping[str, Any] | None
    setup: str
    reference: str
    fence: Mapping[str, str | None]

    @property
    def writes(self) -> bool:
        return self.method in WRITES


_KEYS = frozenset(
    ("send", "headers", "body", "status", "answers", "json", "text", "has", "after", "setup", "reference", "fence",
     "examples")
)  # fmt: skip


def _read() -> Iterator[Row]:
    for path in sorted(FOLDER.glob("*.toml")):
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        reference = document.pop("reference", None)
        for name, given in document.items():
            unknown = given.keys() - _KEYS
            assert not unknown, f"{path.name}: {name}: what is {', '.join(unknown)}?"
            examples = given.pop("examples", None)
            for values in [None] if examples is None else examples:
                full, filled = (name, given) if values is None else _filled((name, given), values)
                yield _row(f"{path.stem}: {full}", {"reference": reference, **filled})


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """The same with the values of one example; a text that is nothing but ``$name`` may become a number."""
    if isinstance(value, str):
        whole = value.removeprefix("$")
        return values[whole] if value.startswith("$") and whole in values else Template(value).safe_substitute(values)
    if isinstance(value, dict):
        return {_filled(key, values): _filled(one, values) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(one, values) for one in value]
    return value


def _row(name: str, given: Mapping[str, Any]) -> Row:
    method, target = given["send"].split(" ", 1)
    after = given.get("after")
    return Row(
        name=name,
        method=method,
        target=target,
        headers=tuple(_headers(given)),
        body=given.get("body"),
        expected=Expected(
            status=given["status"],
            answers={key: value or None for key, value in given.get("answers", {}).items()},
            json=json.loads(given["json"]) if "json" in given else None,
            text=given.get("text"),
            has={pointer: None if value is False else value for pointer, value in given.get("has", {}).items()},
            is_json="json" in given,
        ),
        after=None if after is None else {query: json.loads(rows) for query, rows in after.items()},
        setup=given.get("setup", ""),
        reference=given["reference"],
        fence={key: value or None for key, value in given.get("fence", {}).items()},
    )


def _headers(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    headers = given.get("headers", {})
    if "body" in given and "Content-Type" not in headers:
        yield "Content-Type", "application/json"
    for name, values in headers.items():
        for value in values if isinstance(values, list) else [values]:
            yield name, value


_ALL = list(_read())

ROWS: dict[str, Row] = {row.name: row for row in _ALL}
"""By name: ``file: behaviour``."""

assert len(ROWS) == len(_ALL), f"twice: {[row.name for row in _ALL if ROWS[row.name] is not row]}"
