"""Foreign keys that change rows: what a change of a row does to the rows that refer to it."""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

Change: TypeAlias = frozenset[str] | None
"""The columns of a row that get other values. None if the row is deleted."""

DELETED: Change = None

_ACTIONS = {"c": "CASCADE", "n": "SET NULL", "d": "SET DEFAULT"}


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, exposed or not. ``kind`` is PostgreSQL's: r table, p partitioned."""

    oid: int
    schema: str
    name: str
    kind: str

    @property
    def title(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key by which a change of rows of ``target`` changes the rows of ``source`` that refer to them.

    ``columns`` refer to ``target_columns``, in pairs. ``operators`` compare each pair, the target's value on the left,
    under ``collations`` where the two have different ones. ``on_delete`` and ``on_update`` are PostgreSQL's: a no
    action, r restrict, c cascade, n set null, d set default. ``cleared``: the columns that a delete sets. ``parent``:
    the key of a partitioned table of which this one is a part, or 0.
    """

    oid: int
    parent: int
    name: str
    source: Relation
    target: Relation
    columns: tuple[str, ...]
    target_columns: tuple[str, ...]
    operators: tuple[str, ...]
    collations: tuple[str | None, ...]
    on_delete: str
    on_update: str
    cleared: tuple[str, ...]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Reference":
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        ends = {name: Relation(**fields[name]) for name in ("source", "target")}
        return cls(**{**fields, **lists, **ends})

    def passes_on(self, change: Change, *, leaves: bool = False) -> tuple[Change] | None:
        """Return, in a tuple, what a change of a row does to the rows that refer to it. None if it does nothing.

        ``leaves``: an update of the row may take it to another partition, which old servers carry out as a delete.
        """
        if change is None or (leaves and self.on_update not in _ACTIONS and self.touched_by(change)):
            return None if self.on_delete not in _ACTIONS else (self._deletion(),)
        if self.on_update not in _ACTIONS or not self.touched_by(change):
            return None
        if self.on_update != "c":
            return (frozenset(self.columns),)
        pairs = zip(self.columns, self.target_columns, strict=True)
        return (frozenset(own for own, target in pairs if target in change),)

    def touched_by(self, change: AbstractSet[str]) -> bool:
        return not change.isdisjoint(self.target_columns)

    @property
    def actions(self) -> str:
        """Return all of its actions, as SQL spells them."""
        by_verb = (("DELETE", self.on_delete), ("UPDATE", self.on_update))
        return ", ".join(f"ON {verb} {_ACTIONS[action]}" for verb, action in by_verb if action in _ACTIONS)

    def _deletion(self) -> Change:
        return DELETED if self.on_delete == "c" else frozenset(self.cleared or self.columns)


@dataclass(frozen=True)
class Graph:
    """All foreign keys with actions. ``below``: pairs of a table and a partition or child of it, or of a view and what
    it shows, by oid.
    """

    references: tuple[Reference, ...] = ()
    below: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_row(cls, row: Any) -> "Graph":
        """Build it from the row of ``gateway.db.catalog.references``."""
        references = tuple(Reference.from_json(one) for one in json.loads(row["references"]))
        return cls(references, tuple((above, below) for above, below in json.loads(row["below"])))

    def part(self, oids: AbstractSet[int]) -> "Graph":
        """Return all that leads away from these relations."""
        return Graph(
            tuple(one for one in self.references if one.target.oid in oids),
            tuple(pair for pair in self.below if pair[0] in oids),
        )

    @cached_property
    def _below(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for above, below in self.below:
            found.setdefault(above, []).append(below)
        return found

    @cached_property
    def _by_target(self) -> dict[int, list[Reference]]:
        found: dict[int, list[Reference]] = {}
        for one in self.references:
            found.setdefault(one.target.oid, []).append(one)
        return found

    def family(self, oid: int) -> list[int]:
        """Return a relation and all below it. It comes first."""
        found = [oid]
        for one in found:
            found += [below for below in self._below.get(one, ()) if below not in found]
        return found

    def referring_to(self, oid: int) -> list[Reference]:
        """Return the keys that refer to a relation or to one below it. A key that is a part of another is left out."""
        found = [one for member in self.family(oid) for one in self._by_target.get(member, ())]
        known = {one.oid for one in found}
        return [one for one in found if one.parent not in known]
