"""The resources of a write: from the catalog, the table's rule, the filters and the body.

The plan only *claims* names. The database names every touched row again, and each of these names must be claimed. So a
wrong guess here can refuse a write but never let one through.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

from gateway.errors import GatewayError, ResourceMismatch, ResourceUnderivable, TokenRequired
from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.naming import NameColumn, TableNaming
from gateway.fencing.resource import Template, escape
from gateway.tables.catalog import Column, Table
from gateway.tables.dialect.body import Payload
from gateway.tables.dialect.query import pins
from gateway.tables.dialect.request import Request

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


MAX_RESOURCES = 1000
"""Resources that one write can claim."""

Values: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """The operator's rule for one table. ``template`` None: the primary key names the row.

    ``version``: the column that changes with every change of a row, which is its ETag then. ``cascades``: the fate of
    its writes that reach rows of other resources.
    """

    template: Template | None = None
    mode: Enforcement = Enforcement.ENFORCE
    equal: Equal = Equal.ACCEPT
    version: str | None = None
    cascades: Cascades = Cascades.REFUSE


@dataclass(frozen=True, slots=True)
class Naming:
    """How rows of one table are named: the template, and the column behind each of its fields."""

    table: Table
    template: Template
    columns: tuple[Column, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return self.template.fields


@dataclass(frozen=True, slots=True)
class Explicit:
    """The resources the caller names itself, if any: one for all it writes; or several, ``paired`` with tokens."""

    names: tuple[str, ...] = ()
    paired: bool = False


NOTHING_NAMED = Explicit()


@dataclass(frozen=True, slots=True)
class DerivedNames:
    """The resources a write claims, before the values in their names are canonical.

    ``rows`` holds the values of the template's fields, one tuple for each resource. If the caller names resources
    itself, these are claimed, and all rows must turn out to have one of their names. ``guarded``: the names of the rows
    before their change are unknown, so the statement must check them before it changes them.
    """

    explicit: Explicit = NOTHING_NAMED
    rows: tuple[Values, ...] = ()
    guarded: bool = False


def naming(table: Table, rule: Rule) -> Naming:
    """How rows of this table are named. Raises ``ResourceUnderivable`` where nothing names them."""
    template = rule.template or _key_template(table)
    missing = [name for name in template.fields if name not in table.columns]
    if missing:
        raise ResourceUnderivable(
            f"The resource template {template.text!r} names the column {missing[0]!r}, "
            f"which {table.title} does not have.",
            advice="Ask the operator to correct the rule of this table.",
        )
    return Naming(table, template, tuple(table.columns[name] for name in template.fields))


def naming_if_any(table: Table, rule: Rule) -> Naming | None:
    try:
        return naming(table, rule)
    except ResourceUnderivable:
        return None


def as_registered(named: Naming) -> TableNaming:
    columns = (NameColumn.of(column.name, column.exact_type, column.number) for column in named.columns)
    return TableNaming(named.template.literals, tuple(columns))


def table_resource(table: Table) -> str:
    """Return the name of the whole table, recorded if no row can be named."""
    return f"{escape(table.schema)}.{escape(table.name)}"


def derive(
    request: Request, payload: Payload | None, named: Naming, explicit: Explicit = NOTHING_NAMED
) -> DerivedNames:
    """Which resources the write claims. Raises ``ResourceUnderivable`` where that cannot be told."""
    if request.method in ("POST", "PUT"):
        assert payload is not None
        return _derive_insert(request, payload, named, explicit)
    moved = payload if request.method == "PATCH" else None
    if not explicit.names:
        return DerivedNames(rows=_pinned_rows(request, named, moved))
    if explicit.paired and _can_pin(request, named):
        return DerivedNames(explicit, _pinned_rows(request, named, moved))
    # RETURNING shows the names that rows have after an update: a trigger, too, can set the columns of a name.
    return DerivedNames(explicit, guarded=request.method == "PATCH" and bool(named.fields))


def questions(claim: DerivedNames, named: Naming) -> dict[Column, set[str]]:
    """Return the values that only the database can make canonical, by column. Usually none."""
    asked: dict[Column, set[str]] = {}
    for position, column in enumerate(named.columns if claim.rows else ()):
        known = canonical_text(column)
        for row in claim.rows:
            if known is None or not known.fullmatch(row[position]):
                asked.setdefault(column, set()).add(row[position])
    return asked


def resources(claim: DerivedNames, named: Naming, answers: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    """Return the claimed names, sorted. ``answers`` has the escaped canonical form of each questioned value, by column.

    Raise ``ResourceMalformed`` for a name that is too long. For a name that the caller's names leave out, raise
    ``ResourceMismatch``, or ``TokenRequired`` if each has a token.
    """
    if answers:
        escaped = (_escaped(row, named.fields, answers) for row in claim.rows)
    else:
        escaped = ([escape(value) for value in row] for row in claim.rows)
    names = set(map(named.template.join, escaped))
    if not claim.explicit.names:
        return tuple(sorted(names))
    for name in sorted(names.difference(claim.explicit.names)):
        raise _left_out(name, claim.explicit)
    return tuple(sorted(claim.explicit.names))


def _escaped(row: Values, fields: Values, answers: Mapping[tuple[str, str], str]) -> list[str]:
    found = ((answers.get((field, value)), value) for field, value in zip(fields, row, strict=True))
    return [escape(value) if answer is None else answer for answer, value in found]


def _left_out(name: str, explicit: Explicit) -> GatewayError:
    if explicit.paired:
        return TokenRequired(
            f"The write touches {name}, for which it carries no fencing token.",
            advice=f"Add {name}= and the token of its lock to the list in Fencing-Token.",
            facts={"resource": name},
        )
    return ResourceMismatch(f"The write touches {name}, which {explicit.names[0]} does not cover.")


def _key_template(table: Table) -> Template:
    """``schema.table/{pk}``, each part of a composite key in a segment of its own. Any column name will do."""
    if not table.primary_key:
        raise ResourceUnderivable(
            f"{table.title} has no primary key, so its rows have no names.",
            advice="Ask the operator for a rule with a resource template for this table.",
        )
    literals = (f"{table_resource(table)}/", *("/" for _ in table.primary_key[1:]), "")
    text = literals[0] + "/".join(f"{{{name}}}" for name in table.primary_key)
    return Template(text, literals, table.primary_key)


def _derive_insert(request: Request, payload: Payload, named: Naming, explicit: Explicit) -> DerivedNames:
    missing = [name for name in named.fields if payload.number and name not in payload.columns]
    if upserts(request, named.table):
        # An upsert leaves the columns of the name as they are, so all of them must be known to stay what was sent.
        if missing:
            raise _not_in_body(missing[0], named)
        return DerivedNames(explicit, _body_rows(payload, named), guarded=_may_meet_another(request, named))
    if explicit.names and (missing or not explicit.paired or not _is_canonical(named)):
        return DerivedNames(explicit)
    if missing:
        raise _not_in_body(missing[0], named)
    return DerivedNames(explicit, _body_rows(payload, named))


def _may_meet_another(request: Request, named: Naming) -> bool:
    """Whether an upsert could change a row of another name than it was sent with, and leave no trace of that.

    The row in conflict has the values that were sent in the columns of the conflict, unless a trigger has set others.
    """
    target = conflict_target(request, named.table)
    return bool(named.fields) and (named.table.has_row_triggers or not set(named.fields) <= set(target))


def upserts(request: Request, table: Table) -> bool:
    """Whether the insert updates the rows that are there already."""
    if request.method == "PUT":
        return True
    return request.preferences.resolution == "merge-duplicates" and bool(conflict_target(request, table))


def conflict_target(request: Request, table: Table) -> tuple[str, ...]:
    """Return the columns of ON CONFLICT; none without a key and without named columns: then there is no ON CONFLICT."""
    if request.method == "PUT":
        return table.primary_key
    return request.query.on_conflict or table.primary_key


def _body_rows(payload: Payload, named: Naming) -> tuple[Values, ...]:
    check_canonical(named.columns)
    if not named.fields:
        return ((),) if payload.number else ()
    columns = [_texts(payload, name, named) for name in named.fields]
    return _bounded(set(zip(*columns, strict=True)))


def _texts(payload: Payload, name: str, named: Naming) -> list[str]:
    """Return the values of one column of the body, with numbers as they were sent."""
    values = payload.column(name)
    if any(map(_is_inexact, values)):
        values = payload.exact_column(name)
    return [_text(value, name, named) for value in values]


def _is_inexact(value: Any) -> bool:
    """Whether the text of a number may have been another one: the database reads the digits that were sent."""
    return isinstance(value, float) or (type(value) is int and value == 0)


def _text(value: Any, name: str, named: Naming) -> str:
    """Return a JSON value as the database will read it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _not_in_body(name, named)


def _can_pin(request: Request, named: Naming) -> bool:
    return _is_canonical(named) and set(named.fields) <= pins(request.query.filters).keys()


def _is_canonical(named: Naming) -> bool:
    return all(canonical_text(column) is not None for column in named.columns)


def _pinned_rows(request: Request, named: Naming, moved: Payload | None) -> tuple[Values, ...]:
    """Return the names that the filters pin, and the names that an update with this body gives to the same rows."""
    if not named.fields:
        return ((),)
    pinned = pins(request.query.filters)
    missing = [name for name in named.fields if name not in pinned]
    if missing:
        raise ResourceUnderivable(
            f"The filters do not pin {missing[0]!r}, which names the resource of rows of {named.table.name}.",
            advice=f"Filter by 'eq' or 'in' on {', '.join(named.fields)}, or name the resource in Fencing-Resource.",
        )
    check_canonical(named.columns)
    before = [pinned[name] for name in named.fields]
    _check_count(prod(map(len, before)))  # before the product is made, not after
    rows = set(product(*before))
    if moved is not None and moved.number and any(name in moved.columns for name in named.fields):
        after = [
            _texts(moved, name, named) if name in moved.columns else values
            for name, values in zip(named.fields, before, strict=True)
        ]
        rows.update(product(*after))
    return _bounded(rows)


def _bounded(rows: Collection[Values]) -> tuple[Values, ...]:
    _check_count(len(rows))
    return tuple(rows)


def _check_count(count: int) -> None:
    if count > MAX_RESOURCES:
        raise ResourceUnderivable(
            f"The write belongs to {count} resources; one write claims at most {MAX_RESOURCES}.",
            advice="Split the write, or give the table a coarser resource template.",
        )


def _not_in_body(name: str, named: Naming) -> ResourceUnderivable:
    given = [column.name for column in named.columns if column.name != name]
    return ResourceUnderivable(
        f"The body does not give {name!r}, which names the resource of rows of {named.table.name}, "
        "a value in every row.",
        advice=computed_key_advice(named, given)
        or f"Send {', '.join(named.fields)} in every row, or name the resource in Fencing-Resource.",
    )


def computed_key_advice(named: Naming, given: Collection[str]) -> str | None:
    """Return the advice for a new row whose name the database computes while it inserts; None for any other row.

    ``given``: the columns for which the body has values. No lock can be on a row whose name is unknown, so naming the
    resource cannot help. A default without a call is a constant, which the caller can know.
    """
    computed = [
        column
        for column in named.columns
        if column.name not in given and column.default is not None and "(" in column.default
    ]
    if not computed:
        return None
    table = named.table.title
    otherwise = (
        f"the operator to give the table one resource: resource = {json.dumps(table_resource(named.table))} "
        f"in its rule, [[tables]] with name = {json.dumps(table)}, put in force by 'gateway naming apply'. Then lock "
        "that resource, and repeat the write without Fencing-Resource, with the token of that lock."
    )
    if any(column.identity_always for column in computed):
        return f"Only the database chooses {computed[0].name!r}, so no lock can be on the row before. Ask {otherwise}"
    sources = ", ".join(
        f"{column.name} (a new UUID)" if column.base_type == "uuid" else f"{column.name} (SELECT {column.default})"
        for column in computed
    )
    return (
        f"Choose the key before the write, so that a lock can be on the row, and send it in every row: {sources}. "
        f"Leave Fencing-Resource out. Or ask {otherwise}"
    )
