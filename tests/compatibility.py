"""The rules for migrations (decision 092): what must not happen to a schema that gateways of a release go on using."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

_ON = re.compile(r"^(?:constraint|trigger|rule|policy) .* on (?P<relation>fencing\.\S+)$")
_INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX \S+ ON (?:ONLY )?(?P<relation>fencing\.\S+) ")
_NOT_NULL = "NOT NULL "
"""Begins the constraint that PostgreSQL 18 makes of a column without nulls. The column is judged by itself."""
# Of the definition of a column, after number, type and collation.
_REQUIRED, _DEFAULT, _IDENTITY = 3, 4, 5


def broken(before: Mapping[str, str], after: Mapping[str, str], whole_rows: AbstractSet[str]) -> list[str]:
    """Return what gateways of the release before would miss or be refused, given two catalogs of ``tests.catalogs``.

    ``whole_rows``: relations whose rows their queries receive as one value. A driver that has learnt such a type
    fails, or runs its statement again, once the type has another column.
    """
    return sorted([*_gone_or_changed(before, after), *_restricting(before, after, whole_rows)])


def _gone_or_changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name, definition in before.items():
        if name.startswith("rows "):
            continue
        if name not in after:
            yield f"{name} is gone"
        elif after[name] != definition:
            yield f"{name} is another one"


def _restricting(before: Mapping[str, str], after: Mapping[str, str], whole_rows: AbstractSet[str]) -> Iterator[str]:
    for name in after.keys() - before.keys():
        definition = after[name]
        relation = _relation(name, definition)
        if f"relation {relation}" not in before:
            continue
        if not name.startswith("column "):
            if not definition.startswith(_NOT_NULL):
                yield f"{name} restricts {relation}, or locks it for long"
            continue
        if relation in whole_rows:
            yield f"{name} changes the type of the rows of {relation}"
        parts = definition.split("\n")
        if parts[_REQUIRED] == "true" and parts[_DEFAULT] == "null" and not parts[_IDENTITY]:
            yield f"{name} needs a value"


def _relation(name: str, definition: str) -> str | None:
    """Return the table that an object belongs to; None for an object of its own."""
    if name.startswith("column "):
        return name.removeprefix("column ").rpartition(".")[0]
    found = _INDEX.match(definition) if name.startswith("index ") else _ON.match(name)
    return found and found["relation"]
