"""The check that a table still is as planned. The statement itself makes it, so that it misses no change.

A statement takes its locks first and its snapshot then. With the locks no table changes any more, and the snapshot sees
each change that was committed before them. So the check reads the state that the statement works on. The answer is true
or an error, never false: an error undoes the effects of triggers until then.
"""

from gateway.errors import SqlError
from gateway.tables.catalog.snapshot import Table
from gateway.tables.sql.expressions import quote, string

_CHANGED = "fencing.a_table_that_has_changed"


def unchanged(table: Table) -> str:
    """Return SQL that is true while the table is as cached. Otherwise it raises an error that ``tells_of_change``
    knows.

    It compares the meaning of the name, the kind, every column and the primary key. Nothing may have been added that
    acts on its own: rules, triggers, children, policies. ``fencing.check_unchanged_v1`` does it. If other tables carry
    out its writes, ``fencing.check_foreign_v1`` looks for foreign tables among them.
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
    """Return SQL like ``unchanged``, for reads: the name means this table, and it still is a table.

    A read of another object would answer with other data, or run the code of a view or a policy.
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
