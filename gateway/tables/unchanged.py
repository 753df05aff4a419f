"""Whether a table still is what a statement was planned with: asked in that very statement, so that no change escapes.

A statement takes its locks first and its snapshot then. With the locks no table changes any more, and the snapshot sees
each change that was committed before them; so what is read here is the state the statement works on. The answer is
true or an error, never false: an error undoes what triggers may have done by then.
"""

from gateway.errors import SqlError
from gateway.tables.catalog import Table
from gateway.tables.expressions import quote, string

_CHANGED = "fencing.a_table_that_has_changed"
_FOR_EACH_STATEMENT = "g.tgtype & 1 = 0"
_BEFORE_EACH_ROW = "g.tgtype & 1 <> 0 AND g.tgtype & 66 <> 0"


def unchanged(table: Table) -> str:
    """SQL for true as long as the table is as it is known here. Otherwise it raises what ``tells_of_change`` knows.

    Costs about 25 µs a statement (docs/decisions/029). What matters: that the name means this table, its kind, every
    column, the primary key, and that nothing was added that acts on its own: rules, triggers, children, policies.
    """
    return _true_or_error([
        *_same_relation(table),
        *([] if table.has_rules else ["NOT c.relhasrules"]),
        *([] if table.has_children else ["NOT c.relhassubclass"]),
        *_same_columns(table),
        *_same_key(table),
        *_no_new_triggers(table),
    ])  # fmt: skip


def same_relation(table: Table) -> str:
    """SQL like ``unchanged``, for reads: only that the name means this table, and what is behind it still is a table.

    A read of something else would answer with something else, or carry out what a view or a policy calls.
    """
    return _true_or_error(_same_relation(table))


def tells_of_change(error: SqlError) -> bool:
    """Whether a statement has found that its table has changed. Nothing is written then."""
    return error.sqlstate == "42P01" and _CHANGED in error.message


def _true_or_error(conditions: list[str]) -> str:
    # The cast of a text is a matter of execution; that of a literal would fail at once.
    otherwise = f"{string(_CHANGED)}::text::regclass IS NULL"
    return (
        f"CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE {' AND '.join(conditions)}) "
        f"THEN true ELSE {otherwise} END"
    )


def _same_relation(table: Table) -> list[str]:
    name = string(f"{quote(table.schema)}.{quote(table.name)}")
    return [
        f"c.oid = {table.oid}",
        f"c.oid = {name}::regclass",
        f"c.relkind = '{table.kind}'",
        *([] if table.row_security else ["NOT c.relrowsecurity"]),
    ]


def _same_columns(table: Table) -> list[str]:
    versions = (
        "SELECT a.xmin FROM pg_catalog.pg_attribute AS a "  # noqa: S608 - numbers
        f"WHERE a.attrelid = {table.oid} AND a.attnum > 0 ORDER BY a.attnum"
    )
    return [f"ARRAY({versions}) = {string(table.column_versions)}::xid[]"]


def _same_key(table: Table) -> list[str]:
    if table.is_view:
        return []
    if table.primary_key_index is not None:
        # A key lives and dies with its index. Any property does: it is null where there is no such index.
        return [f"pg_catalog.pg_index_has_property({table.primary_key_index}, 'clusterable') IS NOT NULL"]
    keys = f"SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = {table.oid} AND i.indisprimary"
    return [f"NOT EXISTS ({keys})"]


def _no_new_triggers(table: Table) -> list[str]:
    kinds = [
        *([] if table.has_statement_triggers else [_FOR_EACH_STATEMENT]),
        *([] if table.has_row_triggers else [_BEFORE_EACH_ROW]),
    ]
    if not kinds:
        return []
    triggers = (
        "SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid "
        f"WHERE g.tgrelid = {table.oid} AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 28 <> 0 "
        f"AND ({' OR '.join(f'({kind})' for kind in kinds)}) "
        "AND p.pronamespace <> 'fencing'::regnamespace"
    )
    return [f"NOT (c.relhastriggers AND EXISTS ({triggers}))"]
