"""The change of a table's naming: which rows get other names, and how their fences are carried over."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.db.naming import Carry
from gateway.db.ownership import OWNERSHIP
from gateway.errors import ResourceUnderivable
from gateway.fencing.decision import Enforcement
from gateway.fencing.naming import RegisteredNaming, TableNaming, concerning
from gateway.fencing.resource import Template
from gateway.tables.catalog import Snapshot, Table
from gateway.tables.naming import Naming, Rule, as_registered, naming
from gateway.tables.sql.expressions import quote, string
from gateway.tables.sql.statements import name_expression


@dataclass(frozen=True, slots=True)
class TableChange:
    """A table whose configured naming is not the one in force. ``olds``: the namings that concern it.

    ``closed``: the change has begun, and was interrupted.
    """

    table: Table
    named: Naming
    olds: tuple[RegisteredNaming[TableNaming], ...]

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.table.schema}.{self.table.name}"

    @property
    def following(self) -> TableNaming:
        """The configured naming."""
        return as_registered(self.named)

    @property
    def was(self) -> str:
        """The namings in force, for people."""
        return " and ".join(sorted({str(one.naming) for one in self.olds}))

    @property
    def closed(self) -> bool:
        """Whether the table takes no writes."""
        return any(one.change is not None for one in self.olds)

    @property
    def patterns(self) -> list[str]:
        """Regular expressions of all old names."""
        return [_pattern(one.naming) for one in self.olds]

    def mapping(self) -> str:
        """Return SQL that yields the old and the new name of all rows that have a fence or a lock, or that exist."""
        return "\nUNION\n".join(part for one in self.olds for part in self._parts(one))

    def _parts(self, old: RegisteredNaming[TableNaming]) -> list[str]:
        parts = []
        if set(self.following.columns) <= set(old.naming.columns):
            parts.append(_by_name(old.naming, self.following))
        before = self._as_columns_are(old)
        if before is not None:
            names = f"{name_expression(before)} AS old, {name_expression(self.named)} AS new"
            parts.append(f"SELECT {names} FROM {quote(self.table.schema)}.{quote(self.table.name)}")  # noqa: S608
        return parts

    def _as_columns_are(self, old: RegisteredNaming[TableNaming]) -> Naming | None:
        """Return the old naming over the columns of today; None if one of its columns is gone."""
        same = old.relation == self.table.oid
        columns = []
        for wanted in old.naming.columns:
            found = (
                column
                for column in self.table.columns.values()
                if (column.number == wanted.number if same else column.name == wanted.name)
            )
            column = next(found, None)
            if column is None:
                return None
            columns.append(column)
        literals = old.naming.literals
        template = Template(str(old.naming), literals, tuple(column.name for column in columns))
        return Naming(self.table, template, tuple(columns))


def changes(
    snapshot: Snapshot,
    rules: dict[str, Rule],
    default: Rule,
    registered: Sequence[RegisteredNaming[TableNaming]],
) -> list[TableChange]:
    """Return the tables whose configured naming is not the one in force. A table that only observes has none."""
    found = []
    for table in snapshot.tables.values():
        name = f"{table.schema}.{table.name}"
        rule = rules.get(name, default)
        olds = concerning(name, table.oid, registered)
        if not olds or rule.mode is not Enforcement.ENFORCE:
            continue
        try:
            named = naming(table, rule)
        except ResourceUnderivable:
            continue
        if any(one.naming != as_registered(named) or one.change is not None for one in olds):
            found.append(TableChange(table, named, tuple(olds)))
    return found


async def close(database: Database, change: TableChange) -> None:
    """Commit that no write of the table proves a naming any more."""
    await registry.close_table(database, change.name, change.table.oid, change.following)


async def carry_over(database: Database, change: TableChange, epoch: int | None) -> None:
    """Carry the fences over, and put the configured naming in force."""
    table = f"{quote(change.table.schema)}.{quote(change.table.name)}"
    carry = Carry(change.mapping(), (), change.was, epoch)
    await registry.open_table(database, table, change.name, change.table.oid, change.following, carry)


def _by_name(old: TableNaming, new: TableNaming) -> str:
    """Return SQL that makes new names of old ones, also of rows that are deleted."""
    number = {column: position for position, column in enumerate(old.columns, 1)}
    values = [f"n.parts[{number[column]}]" for column in new.columns]
    pieces = [string(new.literals[0])]
    for value, literal in zip(values, new.literals[1:], strict=True):
        pieces += [value, string(literal)]
    prefix = string(old.literals[0])
    matched = f"regexp_match(resource, {string(_pattern(old))})" if old.columns else "ARRAY[resource]"
    only = "" if old.columns else f" AND resource = {prefix}"
    named = " UNION ".join(
        f"SELECT resource FROM fencing.{place} "  # noqa: S608 - literals are quoted
        f"WHERE starts_with(resource, {prefix}) AND resource >= {prefix}{only} AND resource <> '{OWNERSHIP}'"
        for place in ("fence", "lock")
    )
    return (
        f"SELECT n.resource AS old, {' || '.join(pieces)} AS new "  # noqa: S608 - literals are quoted
        f"FROM (SELECT resource, {matched} AS parts FROM ({named}) AS r) AS n WHERE n.parts IS NOT NULL"
    )


def _pattern(naming: TableNaming) -> str:
    """Return a regular expression of the names, with a group for each column."""
    escaped = (re.sub(r"([^A-Za-z0-9/])", r"[\1]", literal) for literal in naming.literals)
    return "^" + "([^/]*)".join(escaped) + "$"
