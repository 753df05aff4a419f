"""Canonical texts: the values that can form a resource name, and the texts that need no question to the database.

One row must have one name, in whatever form a client writes its key: ``05`` and ``5`` are one integer. So a value goes
into a name as the database would print it. A type whose equal values have several texts cannot form names.
"""

import re

from gateway.errors import ResourceUnderivable
from gateway.tables.catalog.snapshot import Column

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_BOOLEAN = re.compile(r"true|false")
_ANY_TEXT = re.compile(r".*", re.DOTALL)
_NONE = re.compile(r"(?!)")

# Types whose values are equal exactly if their texts are, under the settings that every session is pinned to. The
# expression recognises texts that are canonical already; where it matches none, only the database can tell.
_TEXTUAL = {
    "smallint": _INTEGER,
    "integer": _INTEGER,
    "bigint": _INTEGER,
    "uuid": _UUID,
    "text": _ANY_TEXT,
    "character varying": _ANY_TEXT,
    "boolean": _BOOLEAN,
    "date": _DATE,
    "time without time zone": _NONE,
    "time with time zone": _NONE,
    "timestamp without time zone": _NONE,
    "timestamp with time zone": _NONE,
    # Padded to its length, and as text without the padding.
    "bpchar": _NONE,
    "character": _NONE,
    "name": _NONE,
    "bytea": _NONE,
    "inet": _NONE,
    "cidr": _NONE,
    "macaddr": _NONE,
    "macaddr8": _NONE,
}


def canonical_text(column: Column) -> re.Pattern[str] | None:
    """Return the pattern of canonical texts of this column; None if its values form no names."""
    if not column.deterministic:
        return None
    if column.is_enum:
        return _ANY_TEXT
    if column.base_type == "numeric":
        # With a scale, all values have the same number of digits behind the point; without, 5.0 equals 5.
        return _NONE if column.has_modifier else None
    return _TEXTUAL.get(column.base_type)


def check_canonical(columns: tuple[Column, ...]) -> None:
    """Raise ``ResourceUnderivable`` where equal values of one of these columns can have different texts."""
    for column in columns:
        if canonical_text(column) is None:
            raise ResourceUnderivable(
                f"{column.name!r} is of type {column.exact_type}, where equal values can have different texts, "
                "so no resource name can be derived from it.",
                advice="Ask the operator for a rule over other columns, or name the resource in Fencing-Resource.",
            )
