"""Whether a table still is what a statement was planned with: asked in that very statement, so that no change escapes.

A statement takes its locks first and its snapshot then. With the locks no table changes any more, and the snapshot sees
each change that was committed before them; so what is read here is the state the statement works on. The answer is
true or an error, never false: an error undoes what triggers may have done by then.
"""

from gateway.errors import SqlError
from gateway.tables.catalog.snapshot import Table
from gateway.tables.sql.expressions import quote, string

_CHANGED = "fencing.a_table_that_has_changed"


def unchanged(table: Table) -> str:
    """SQL for true as long as the table is as it is known here. Otherwise it raises what ``tells_of_change`` knows.

    What matters: that the name means this table, its kind, every column, the primary key, and that nothing was added
    that acts on its own: rules, triggers, children, policies. ``fencing.check_unchanged_v1`` looks.
    If other tables carry out its writes, ``fencing.check_foreign_v1`` looks whether one of them is a foreign table.
    """
    checked = _called(
        "check_unchanged_v1",
        *_relation(table)[:3],
        _boolean(table.has_rules),
        _boolean(table.has_children),
        _boolean(table.row_security),
        f"{string(table.column_versions)}::xid[]",
        _boolean(not table.is_view),
        "NULL" if table.primary_key_index is None else str(table.primary_key_index),
        _boolean(table.has_statement_triggers),
        _boolean(table.has_row_triggers),
    )
    if not table.writes_others:
        return checked
    return f"{checked} AND {_called('check_foreign_v1', str(table.oid), _boolean(table.reaches_foreign))}"


def same_relation(table: Table) -> str:
    """SQL like ``unchanged``, for reads: only that the name means this table, and what is behind it still is a table.

    A read of something else would answer with something else, or carry out what a view or a policy calls.
    """
    return _called("check_relation_v1", *_relation(table))


def tells_of_change(error: SqlError) -> bool:
    """Whether a statement has found that its table has changed. Nothing is written then."""
    return error.sqlstate == "42P01" and _CHANGED in error.message


def _relation(table: Table) -> list[str]:
    name = string(f"{quote(table.schema)}.{quote(table.name)}")
    return [str(table.oid), name, f"'{table.kind}'", _boolean(table.row_security)]


def _called(function: str, *arguments: str) -> str:
    return f"fencing.{function}({', '.join(arguments)})"


def _boolean(value: bool) -> str:  # noqa: FBT001 - it is all this is about
    return "true" if value else "false"
