"""Relationships between tables: what the name and hint of an embedded table mean, by the foreign keys of the catalog.

The rules are PostgREST's. A related table is in the schema of the requested table. Views have no foreign keys, so they
embed nothing and are never embedded.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, TypeAlias

from gateway.errors import DialectError
from gateway.tables.catalog import LONGEST_NAME, ForeignKey, Table

Pairs: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Junction:
    """A table whose primary key holds foreign keys to two others. The pairs lead from each of these to it."""

    table: Table
    constraints: tuple[str, str]
    origin: Pairs
    target: Pairs


@dataclass(frozen=True, slots=True)
class Relationship:
    """A relationship between two tables. ``pairs``: equal columns, of the origin and of the target."""

    origin: Table
    target: Table
    cardinality: Literal["many-to-one", "one-to-one", "one-to-many", "many-to-many"]
    constraint: str = ""
    pairs: Pairs = ()
    junction: Junction | None = None

    @property
    def to_one(self) -> bool:
        return self.cardinality in ("many-to-one", "one-to-one")

    @property
    def between(self) -> tuple[Table, ...]:
        return (self.junction.table,) if self.junction else ()

    @property
    def hint(self) -> str:
        """Return the hint that tells it from other relationships to the same table."""
        return self.junction.table.name if self.junction else self.constraint

    def leads_over(self, column: str) -> bool:
        """Return whether exactly this column of the origin refers to the target."""
        return len(self.pairs) == 1 and self.pairs[0][0] == column

    def leads_to(self, column: str) -> bool:
        """Return whether it refers to exactly this column of the target."""
        return len(self.pairs) == 1 and self.pairs[0][1] == column


class Relations:
    """All relationships between the exposed tables."""

    def __init__(self, tables: Mapping[tuple[str, str], Table]) -> None:
        self._tables = tables

    def find(self, origin: Table, name: str, hint: str | None) -> Relationship:
        """Return the relationship that is meant. Raises PGRST200 if there is none, PGRST201 if there are several."""
        known = list(self._of(origin))
        found = [one for one in known if _is_meant(one, name, hint)]
        if not found:
            raise _no_relationship(origin, name, hint, [one.target.name for one in known])
        if len(found) > 1:
            raise _ambiguous(origin, name, found)
        return found[0]

    def _of(self, origin: Table) -> Iterator[Relationship]:
        for key in origin.foreign_keys:
            target = self._target(key)
            if target is not None and target.schema == origin.schema:
                kind: Literal["one-to-one", "many-to-one"] = "one-to-one" if key.unique else "many-to-one"
                yield Relationship(origin, target, kind, key.name, _pairs(key))
        for table in self._tables.values():
            for key in table.foreign_keys:
                if (key.target_schema, key.target_table) == (origin.schema, origin.name):
                    yield from self._back_along(key, origin, table)

    def _back_along(self, key: ForeignKey, origin: Table, table: Table) -> Iterator[Relationship]:
        """Yield relationships against a foreign key: to the table that has it, and through that table to others."""
        if table.schema == origin.schema:
            kind: Literal["one-to-one", "one-to-many"] = "one-to-one" if key.unique else "one-to-many"
            yield Relationship(origin, table, kind, key.name, _turned(_pairs(key)))
        for other in table.foreign_keys:
            target = self._target(other)
            if other.name == key.name or key.unique or other.unique or target is None:
                continue
            if target.schema == origin.schema and {*key.columns, *other.columns} <= set(table.primary_key):
                names = (key.name, other.name)
                junction = Junction(table, names, _turned(_pairs(key)), _turned(_pairs(other)))
                yield Relationship(origin, target, "many-to-many", junction=junction)

    def _target(self, key: ForeignKey) -> Table | None:
        return self._tables.get((key.target_schema, key.target_table))


def _pairs(key: ForeignKey) -> Pairs:
    return tuple(zip(key.columns, key.target_columns, strict=True))


def _turned(pairs: Pairs) -> Pairs:
    return tuple((second, first) for first, second in pairs)


def _is_meant(one: Relationship, name: str, hint: str | None) -> bool:
    """Apply PostgREST's rules: a name means a table, or the constraint or single column of a foreign key.

    For a table related to itself, its name means the to-many side, and the column means the to-one side.
    """
    named = name == one.target.name
    if (one.target.schema, one.target.name) == (one.origin.schema, one.origin.name):
        if one.cardinality == "one-to-many":
            return named and (hint is None or one.leads_to(hint))
        return one.cardinality == "many-to-one" and hint is None and one.leads_over(name)
    if hint is None:
        return named or name == one.constraint or one.leads_over(name)
    return named and (hint == one.hint or one.leads_over(hint) or one.leads_to(hint))


def _no_relationship(origin: Table, name: str, hint: str | None, known: list[str]) -> DialectError:
    shown = name[:100]
    using = "" if hint is None else f" using the hint '{hint[:100]}'"
    close = get_close_matches(name, known, n=1) if len(name) <= LONGEST_NAME and name not in known else []
    return DialectError(
        "PGRST200",
        400,
        f"Could not find a relationship between '{origin.name}' and '{shown}' in the schema cache",
        details=f"Searched for a foreign key relationship between '{origin.name}' and '{shown}'{using} "
        f"in the schema '{origin.schema}', but no matches were found.",
        hint=f"Perhaps you meant '{close[0]}' instead of '{shown}'." if close else None,
    )


def _ambiguous(origin: Table, name: str, found: list[Relationship]) -> DialectError:
    """Return PGRST201. PostgREST has an array in ``details``. Here it is JSON text, because clients expect a string."""
    choices = ", ".join(f"'{one.target.name}!{one.hint}'" for one in found)
    return DialectError(
        "PGRST201",
        300,
        f"Could not embed because more than one relationship was found for '{origin.name}' and '{name}'",
        details=json.dumps([_described(one) for one in found], ensure_ascii=False),
        hint=f"Try changing '{name}' to one of the following: {choices}. "
        "Find the desired relationship in the 'details' key.",
    )


def _described(one: Relationship) -> dict[str, str]:
    if one.junction is not None:
        first, second = one.junction.constraints
        using = (
            f"{one.junction.table.name} using {first}{_listed(one.junction.origin, 1)} "
            f"and {second}{_listed(one.junction.target, 1)}"
        )
    else:
        using = (
            f"{one.constraint} using {one.origin.name}{_listed(one.pairs, 0)} "
            f"and {one.target.name}{_listed(one.pairs, 1)}"
        )
    return {
        "cardinality": one.cardinality,
        "embedding": f"{one.origin.name} with {one.target.name}",
        "relationship": using,
    }


def _listed(pairs: Pairs, side: int) -> str:
    return f"({', '.join(pair[side] for pair in pairs)})"
