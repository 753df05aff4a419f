"""SQL for the ETag of a row: the version column the operator has named, or else a digest of the whole row.

Whatever is selected, a row has one ETag. Sessions are pinned to one time zone and one form of dates, intervals, floats
and bytes, so equal rows have equal texts, and every change of a value changes the text.
"""

from gateway.tables.catalog import Table
from gateway.tables.expressions import quote, reference

VERSION_TYPES = frozenset((
    "smallint", "integer", "bigint", "uuid", "timestamp without time zone", "timestamp with time zone",
))  # fmt: skip
"""Types of columns that can be versions: short, and with one text for each value."""

_DIGITS = 32


def version_of(table: Table, column: str | None) -> str | None:
    """The column the operator has named, if the table has it and it can be a version."""
    if column is None or column not in table.columns or table.columns[column].base_type not in VERSION_TYPES:
        return None
    return column


def tag(table: Table, version: str | None) -> str:
    """The ETag of a row of the table without its quotes. ``version`` None: a digest.

    A version stands in it as it does in a JSON answer: whoever has read a list of rows knows their ETags as well.
    Where it is NULL, the digest stands in for it.
    """
    row = f"({quote(table.name)}.*)::text"
    digest = f"left(encode(sha256(convert_to({row}, 'UTF8')), 'hex'), {_DIGITS})"
    if version is None:
        return digest
    return f"coalesce(to_jsonb({reference(table.name, version)}) #>> '{{}}', {digest})"
