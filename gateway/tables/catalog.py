"""The exposed tables: a frozen snapshot of the database's catalog, with the foreign keys that change rows."""

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Any, TypeAlias

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import not_implemented

_INSERTABLE, _UPDATABLE, _DELETABLE = 8, 4, 16
# How similar a name must be to be suggested.
_ALIKE = 0.75
LONGEST_NAME = 63
_OF_JSON = frozenset(("columns", "keys", "foreign_keys", "triggers", "rules", "children"))
EVENTS = ("insert", "update", "delete")
_EVERYTHING = _INSERTABLE | _UPDATABLE | _DELETABLE


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is its SQL type without a modifier, ``exact_type`` with it (``numeric(10,2)``).

    ``base_type`` is the type below a domain. ``default`` is the SQL expression that an insert uses by itself.
    ``number`` is its position in the catalog. ``identity_always``: an insert that gives a value is refused.
    """

    name: str
    type: str
    exact_type: str
    base_type: str
    has_modifier: bool = False
    is_enum: bool = False
    is_json: bool = False
    deterministic: bool = True
    generated: bool = False
    identity_always: bool = False
    default: str | None = None
    nullable: bool = True
    description: str | None = None
    number: int = 0

    @property
    def is_domain(self) -> bool:
        return self.type != self.base_type


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """Columns that refer to those of another table, in pairs. ``unique``: at most one row refers to each."""

    name: str
    columns: tuple[str, ...]
    target_schema: str
    target_table: str
    target_columns: tuple[str, ...]
    unique: bool = False


@dataclass(frozen=True, slots=True)
class Trigger:
    """A user's trigger on insert, update or delete. ``when`` is before, after or instead.

    ``writes``: the text of its function may write, or is in a language that the gateway cannot read. ``events``:
    insert, update, delete. ``source``: that text, empty if it cannot be read.
    """

    name: str
    when: str
    each_row: bool
    writes: bool = True
    events: tuple[str, ...] = EVENTS
    source: str = ""


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """A user's rule on insert, update or delete, which are its ``events``. ``source`` is its definition."""

    name: str
    events: tuple[str, ...] = EVENTS
    source: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. ``kind`` is PostgreSQL's: r table, p partitioned, v view, m materialized view, f foreign.

    ``oid``, ``primary_key_index`` (its oid), ``column_versions`` (transaction ids, as text) and ``version`` (of code)
    identify this state of the table.
    ``reads_settings``: code of the table, or beyond a key of it, may read settings of a request. Triggers are apart.
    ``updatable`` is the sum of 4 for update, 8 for insert, 16 for delete. ``children``: partitions and tables that
    inherit, at any depth, by schema and name. ``reaches_foreign``: a write of it may write a foreign table, or one that
    Citus manages. It may be the table itself. ``distributed``: Citus manages this table.
    """

    schema: str
    name: str
    kind: str
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()
    oid: int = 0
    primary_key_index: int | None = None
    column_versions: str = "{}"
    description: str | None = None
    foreign_keys: tuple[ForeignKey, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    rules: tuple[RewriteRule, ...] = ()
    children: tuple[tuple[str, str], ...] = ()
    has_rules: bool = False
    has_children: bool = False
    row_security: bool = False
    updatable: int = _EVERYTHING
    reaches_foreign: bool = False
    distributed: bool = False
    version: str = "0"
    reads_settings: bool = True

    @property
    def title(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_view(self) -> bool:
        return self.kind in ("v", "m")

    @property
    def runs_code_when_read(self) -> bool:
        """Return whether a read runs code of a view or a policy, which may write."""
        return self.is_view or self.row_security

    @property
    def runs_code_when_written(self) -> bool:
        """Return whether a write runs triggers, rules, policies, or code behind a view.

        The children of a partitioned table may run some, too, and can be attached at any time.
        """
        return self.row_security or self.runs_more_than_policies

    @property
    def runs_more_than_policies(self) -> bool:
        """Return whether a write runs code that is no policy's."""
        return bool(self.kind == "function" or self.triggers or self.writes_others)

    @property
    def has_statement_triggers(self) -> bool:
        """Return whether a statement may have effects without touching a row. A view has those of its tables."""
        return self.is_view or self.has_rules or any(not trigger.each_row for trigger in self.triggers)

    @property
    def has_row_triggers(self) -> bool:
        """Return whether a row may be written otherwise than its statement says. Children may have such triggers."""
        before_rows = (trigger.each_row and trigger.when != "after" for trigger in self.triggers)
        return self.writes_others or any(before_rows)

    @property
    def writes_others(self) -> bool:
        """Return whether other tables may execute its writes: children, or the tables behind a view or a rule."""
        return self.is_view or self.has_rules or self.has_children or self.kind == "p"

    def may_change_keys(self, columns: Iterable[str]) -> bool:
        """Return whether an update that sets these columns may change values that other tables refer to."""
        keys = {name for key in (self.primary_key, *self.unique_keys) for name in key}
        generated = any(self.columns[name].generated for name in keys)
        return generated or bool(self.triggers) or self.writes_others or not keys.isdisjoint(columns)

    @property
    def insertable(self) -> bool:
        return bool(self.updatable & _INSERTABLE)

    @property
    def changeable(self) -> bool:
        return bool(self.updatable & _UPDATABLE)

    @property
    def deletable(self) -> bool:
        return bool(self.updatable & _DELETABLE)


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
        ends = {name: Relation(**fields[name]) for name in ("source", "target")}
        return cls(**{**_frozen(fields), **ends})

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All exposed tables at one moment, by schema and name. ``graph``: the foreign keys with actions, of all tables."""

    tables: Mapping[tuple[str, str], Table]
    graph: Graph = field(default_factory=Graph)

    @classmethod
    def from_rows(cls, rows: Iterable[Any], references: Any = None) -> "Snapshot":
        """Build it from the rows of ``gateway.db.catalog.relations`` and the row of ``references`` there."""
        tables = [_table(row) for row in rows]
        graph = Graph() if references is None else Graph.from_row(references)
        return cls({(table.schema, table.name): table for table in tables}, graph)

    def table(self, schema: str, name: str) -> Table:
        """Return a table. Raises PGRST205 if there is none of this name."""
        found = self.tables.get((schema, name))
        if found is None:
            others = [known for owner, known in self.tables if owner == schema and len(name) <= LONGEST_NAME]
            near = get_close_matches(name, others, 1, _ALIKE)
            raise DialectError(
                "PGRST205", 404, f"Could not find the table '{schema}.{name}' in the schema cache",
                hint=f"Perhaps you meant the table '{schema}.{near[0]}'" if near else None,
            )  # fmt: skip
        return found


def _table(row: Mapping[str, Any]) -> Table:
    """Return the table of a row, whose names are those of the fields. Values that are lists come as JSON."""
    fields = {name: json.loads(value) if name in _OF_JSON else value for name, value in row.items()}
    keys = fields.pop("keys")
    primary: Mapping[str, Any] = next((key for key in keys if key["primary"]), {"columns": (), "index": None})
    known = {
        "columns": {one["name"]: Column(**one) for one in fields["columns"]},
        "primary_key": tuple(primary["columns"]),
        "primary_key_index": primary["index"],
        "unique_keys": tuple(tuple(key["columns"]) for key in keys if not key["primary"]),
        "foreign_keys": tuple(ForeignKey(**_frozen(key)) for key in fields["foreign_keys"]),
        "triggers": tuple(Trigger(**_frozen(trigger)) for trigger in fields["triggers"]),
        "rules": tuple(RewriteRule(**_frozen(rule)) for rule in fields["rules"]),
        "children": tuple(map(tuple, fields["children"])),
    }
    return Table(**fields | known)


def _frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


CITUS_PROBLEM = "Citus manages it, so its rows and their fences could commit on two nodes, one after the other"

CITUS_ADVICE = (
    "Make it a table of this node again: SELECT undistribute_table('schema.table'). Or keep it in a database without "
    "Citus, with a gateway of its own."
)


def check_distributed(table: Table) -> None:
    """Raise ``DialectError`` for a table that Citus manages.

    Reads are refused, too: Citus would check on another node that the table is the one that was planned.
    """
    if table.distributed:
        raise not_implemented(f"A request for {table.title}, which Citus manages,", CITUS_ADVICE)
