"""What is known of the exposed tables: a frozen snapshot of the database's catalog."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.errors import DialectError


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is its SQL type without a modifier, ``exact_type`` with it (``numeric(10,2)``).

    ``base_type`` is the type below a domain. ``default`` is the SQL expression of what an insert puts there by itself.
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
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A table or view. ``kind`` is PostgreSQL's: r table, p partitioned, v view, m materialized view, f foreign.

    ``has_statement_triggers``: a statement has effects even if it touches no row.
    """

    schema: str
    name: str
    kind: str
    columns: Mapping[str, Column]
    primary_key: tuple[str, ...]
    unique_keys: tuple[tuple[str, ...], ...] = ()
    has_statement_triggers: bool = False

    @property
    def is_view(self) -> bool:
        return self.kind in ("v", "m")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All exposed tables at one moment, by schema and name."""

    tables: Mapping[tuple[str, str], Table]

    @classmethod
    def from_rows(cls, rows: Iterable[Any]) -> "Snapshot":
        """Build it from the rows of ``gateway.store.catalog.relations``."""
        tables = [_table(row) for row in rows]
        return cls({(table.schema, table.name): table for table in tables})

    def table(self, schema: str, name: str) -> Table:
        """The table, or PGRST205 where there is none of this name."""
        found = self.tables.get((schema, name))
        if found is None:
            raise DialectError(
                "PGRST205", 404, f"Could not find the table '{schema}.{name}' in the schema cache", details=None
            )
        return found


def _table(row: Mapping[str, Any]) -> Table:
    columns = [Column(**column) for column in json.loads(row["columns"])]
    keys = json.loads(row["keys"])
    primary = next((tuple(key["columns"]) for key in keys if key["primary"]), ())
    return Table(
        schema=row["schema"],
        name=row["name"],
        kind=row["kind"],
        columns={column.name: column for column in columns},
        primary_key=primary,
        unique_keys=tuple(tuple(key["columns"]) for key in keys if not key["primary"]),
        has_statement_triggers=row["has_statement_triggers"],
    )
