"""The exposed tables: a frozen snapshot of the database's catalog."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.references import Graph

_INSERTABLE, _UPDATABLE, _DELETABLE = 8, 4, 16
# How similar a name must be to be suggested.
_ALIKE = 0.75
_LONGEST_NAME = 63
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

    ``oid``, ``primary_key_index`` (the oid of its index) and ``column_versions`` (an array of transaction ids, as text)
    identify this state of the table: see ``gateway.tables.sql.expressions``.
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
        """Return whether its rows can be updated."""
        return bool(self.updatable & _UPDATABLE)

    @property
    def deletable(self) -> bool:
        return bool(self.updatable & _DELETABLE)


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
            others = [known for owner, known in self.tables if owner == schema and len(name) <= _LONGEST_NAME]
            near = get_close_matches(name, others, 1, _ALIKE)
            raise DialectError(
                "PGRST205", 404, f"Could not find the table '{schema}.{name}' in the schema cache",
                hint=f"Perhaps you meant the table '{schema}.{near[0]}'" if near else None,
            )  # fmt: skip
        return found


def _table(row: Mapping[str, Any]) -> Table:
    columns = [Column(**column) for column in json.loads(row["columns"])]
    keys = json.loads(row["keys"])
    primary = next((key for key in keys if key["primary"]), None)
    return Table(
        schema=row["schema"],
        name=row["name"],
        kind=row["kind"],
        columns={column.name: column for column in columns},
        primary_key=tuple(primary["columns"]) if primary else (),
        unique_keys=tuple(tuple(key["columns"]) for key in keys if not key["primary"]),
        oid=row["oid"],
        primary_key_index=primary["index"] if primary else None,
        column_versions=row["column_versions"],
        description=row["description"],
        foreign_keys=tuple(ForeignKey(**_frozen(key)) for key in json.loads(row["foreign_keys"])),
        triggers=tuple(Trigger(**_frozen(trigger)) for trigger in json.loads(row["triggers"])),
        rules=tuple(RewriteRule(**_frozen(rule)) for rule in json.loads(row["rules"])),
        children=tuple((schema, name) for schema, name in json.loads(row["children"])),
        has_rules=row["has_rules"],
        has_children=row["has_children"],
        row_security=row["row_security"],
        updatable=row["updatable"],
        reaches_foreign=row["reaches_foreign"],
        distributed=row["distributed"],
    )


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
        raise not_implemented(f"A request for {table.schema}.{table.name}, which Citus manages,", CITUS_ADVICE)
