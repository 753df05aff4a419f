"""What no write may be, in either mode: unbounded, or bounded by something that does not bound it."""

from gateway.errors import DialectError
from gateway.tables.body import Payload
from gateway.tables.catalog import Column, Table
from gateway.tables.grammar import not_implemented
from gateway.tables.pins import pins_exactly
from gateway.tables.plan import Naming
from gateway.tables.request import Request

# Their texts are the same in all time zones.
_ZONELESS = frozenset((
    "bigint", "boolean", "bytea", "character", "character varying", "date", "integer", "numeric", "smallint", "text",
    "time without time zone", "timestamp without time zone", "uuid",
))  # fmt: skip


def check_write(wanted: Request, *, unfiltered: bool) -> None:
    """What the query string alone tells. ``unfiltered``: the table's rule lets writes do without a filter."""
    query = wanted.query
    if wanted.method == "PUT":
        if query.is_limited:
            raise DialectError("PGRST114", 400, "limit/offset querystring parameters are not allowed for PUT")
        return
    if wanted.method == "POST":
        return
    if query.is_limited:
        raise not_implemented("A limit or offset on a write, which would not narrow it,")
    # "?id" may have been meant as a filter, also where a write may do without one.
    if not query.filters and (query.has_bare_keys or not unfiltered):
        verb = "UPDATE" if wanted.method == "PATCH" else "DELETE"
        raise DialectError(
            "21000", 400, f"{verb} requires a WHERE clause", hint="Add at least one filter, such as id=eq.1."
        )


def check_rows(wanted: Request, payload: Payload) -> None:
    """What the body tells: an update has one set of values, or none and changes nothing."""
    if wanted.method == "PATCH" and len(payload.rows) > 1:
        raise DialectError(
            "PGRST102",
            400,
            "An update takes exactly one object",
            details=f"The body is an array of {len(payload.rows)} rows; which of them is meant cannot be told.",
        )


def check_columns(wanted: Request, payload: Payload | None, table: Table) -> None:
    """What the catalog tells: the columns that are named exist, and PUT names its row by the whole key."""
    if table.reaches_foreign:
        raise not_implemented("A write that may reach a foreign table, whose rows are written by another transaction,")
    named = (*(payload.columns if payload else ()), *wanted.query.on_conflict)
    for name in named:
        if name not in table.columns:
            raise DialectError(
                "PGRST204", 400, f"Could not find the '{name}' column of '{table.name}' in the schema cache"
            )
    if wanted.method == "PUT" and not (table.primary_key and pins_exactly(wanted.query.filters, table.primary_key)):
        raise DialectError("PGRST105", 405, "Filters must include all and only primary key columns with 'eq' operators")


def check_zone(wanted: Request, table: Table, named: Naming | None) -> None:
    """Resource names are made in UTC, inside the very statement that would run in the caller's time zone.

    So a zone is refused where it could show in a name: a view may compute anything from it, and points in time are
    written in it. Otherwise a row could be called by the name of another one, whose token the caller holds.
    """
    if wanted.preferences.timezone is None or named is None or not named.columns:
        return
    if table.is_view or not all(_is_zoneless(column) for column in named.columns):
        raise not_implemented("A time zone for a write of rows that are named after points in time, or through a view,")


def _is_zoneless(column: Column) -> bool:
    return column.is_enum or column.base_type in _ZONELESS
