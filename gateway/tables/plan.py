"""Which resources a write belongs to: from the catalog, the table's rule, the filters and the body.

The plan only *claims* names. Whatever is claimed, every row the statement touches is named again by the database and
must be among the claimed ones, so a wrong guess here can refuse a write but never let one through.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeAlias

from gateway.errors import ResourceMismatch, ResourceUnderivable
from gateway.fencing.resource import Template, escape
from gateway.fencing.rules import Equal, Mode
from gateway.tables.body import Payload
from gateway.tables.catalog import Column, Table
from gateway.tables.request import Request, pins

MAX_RESOURCES = 1000

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ANY_TEXT = re.compile(r".*", re.DOTALL)

# Types whose values are equal exactly if their texts are. The expression recognises a text that is canonical already;
# None: only the database can tell.
_TEXTUAL: dict[str, re.Pattern[str] | None] = {
    "smallint": _INTEGER,
    "integer": _INTEGER,
    "bigint": _INTEGER,
    "uuid": _UUID,
    "text": _ANY_TEXT,
    "character varying": _ANY_TEXT,
    "boolean": None,
    "date": None,
    "time without time zone": None,
    "timestamp without time zone": None,
    "timestamp with time zone": None,
}

Values: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """What the operator has decided for one table. ``template`` None: the primary key names the row."""

    template: Template | None = None
    mode: Mode = Mode.ENFORCE
    equal: Equal = Equal.ACCEPT


@dataclass(frozen=True, slots=True)
class Naming:
    """How rows of one table are named: the template, and the column behind each of its fields."""

    table: Table
    template: Template
    columns: tuple[Column, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return self.template.fields

    @property
    def moves_by_itself(self) -> bool:
        """Whether a row can change its name although no column of the name is set: views and generated columns."""
        return bool(self.columns) and (self.table.is_view or any(column.generated for column in self.columns))


@dataclass(frozen=True, slots=True)
class Claim:
    """The resources a write claims, before the values in their names are canonical.

    ``rows`` holds the values of the template's fields, one tuple for each resource. ``explicit`` is the name the
    caller gave; where both stand, all rows must turn out to have that name.
    """

    explicit: str | None = None
    rows: tuple[Values, ...] = ()


def naming(table: Table, rule: Rule) -> Naming:
    """How rows of this table are named. Raises ``ResourceUnderivable`` where nothing names them."""
    template = rule.template or _key_template(table)
    missing = [name for name in template.fields if name not in table.columns]
    if missing:
        raise ResourceUnderivable(
            f"The resource template {template.text!r} names the column {missing[0]!r}, "
            f"which {table.schema}.{table.name} does not have.",
            advice="Ask the operator to correct the rule of this table.",
        )
    return Naming(table, template, tuple(table.columns[name] for name in template.fields))


def table_resource(table: Table) -> str:
    """The name of the table as a whole: what is recorded where no row can be named."""
    return f"{escape(table.schema)}.{escape(table.name)}"


def derive(request: Request, payload: Payload | None, named: Naming, explicit: str | None) -> Claim:
    """Which resources the write claims.

    Raises ``ResourceUnderivable`` where that cannot be told, ``ResourceMismatch`` for a write that would move rows
    to another resource.
    """
    if request.method in ("POST", "PUT"):
        assert payload is not None
        return _derive_insert(request, payload, named, explicit)
    if request.method == "PATCH" and payload is not None and _may_move(payload, named):
        return Claim(explicit, (_one_pinned_row(request, named),))
    if explicit is not None:
        return Claim(explicit)
    return Claim(None, _pinned_rows(request, named))


def questions(claim: Claim, named: Naming) -> dict[Column, set[str]]:
    """The values that only the database can bring into canonical form, by column. Usually none."""
    asked: dict[Column, set[str]] = {}
    for position, column in enumerate(named.columns if claim.rows else ()):
        known = _TEXTUAL.get(column.base_type)
        for row in claim.rows:
            if known is None or not known.fullmatch(row[position]):
                asked.setdefault(column, set()).add(row[position])
    return asked


def resources(claim: Claim, named: Naming, answers: Mapping[tuple[str, str], str]) -> tuple[str, ...]:
    """The claimed names, sorted. ``answers`` has the escaped canonical form of each value asked about, by column name.

    Raises ``ResourceMalformed`` for a name that grows too long, ``ResourceMismatch`` where the explicit name differs.
    """
    names = {
        named.template.join([
            answers.get((column.name, value)) or escape(value)
            for column, value in zip(named.columns, row, strict=True)
        ])
        for row in claim.rows
    }  # fmt: skip
    if claim.explicit is None:
        return tuple(sorted(names))
    for name in sorted(names - {claim.explicit}):
        raise ResourceMismatch(f"The write touches {name}, which {claim.explicit} does not cover.")
    return (claim.explicit,)


def _key_template(table: Table) -> Template:
    """``schema.table/{pk}``, each part of a composite key in a segment of its own. Any column name will do."""
    if not table.primary_key:
        raise ResourceUnderivable(
            f"{table.schema}.{table.name} has no primary key, so its rows have no names.",
            advice="Ask the operator for a rule with a resource template for this table.",
        )
    literals = (f"{table_resource(table)}/", *("/" for _ in table.primary_key[1:]), "")
    text = literals[0] + "/".join(f"{{{name}}}" for name in table.primary_key)
    return Template(text, literals, table.primary_key)


def _derive_insert(request: Request, payload: Payload, named: Naming, explicit: str | None) -> Claim:
    missing = [name for name in named.fields if payload.rows and name not in payload.columns]
    if upserts(request, named.table):
        # An upsert leaves the columns of the name as they are, so all of them must be known to stay what was sent.
        if missing:
            raise _not_in_body(missing[0], named)
        return Claim(explicit, _body_rows(payload, named))
    if explicit is not None:
        return Claim(explicit)
    if missing:
        raise _not_in_body(missing[0], named)
    return Claim(None, _body_rows(payload, named))


def upserts(request: Request, table: Table) -> bool:
    """Whether the insert updates the rows that are there already."""
    if request.method == "PUT":
        return True
    return request.preferences.resolution == "merge-duplicates" and bool(conflict_target(request, table))


def conflict_target(request: Request, table: Table) -> tuple[str, ...]:
    """The columns of ON CONFLICT; empty where the table has no key and none were named: then there is none."""
    if request.method == "PUT":
        return table.primary_key
    return request.query.on_conflict or table.primary_key


def _body_rows(payload: Payload, named: Naming) -> tuple[Values, ...]:
    _check_textual(named)
    rows = {tuple(_text(row.get(name), name, named) for name in named.fields) for row in payload.rows}
    return _bounded(rows)


def _text(value: Any, name: str, named: Naming) -> str:
    """A JSON value as the database will read it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise _not_in_body(name, named)


def _may_move(payload: Payload, named: Naming) -> bool:
    return named.moves_by_itself or any(name in payload.columns for name in named.fields)


def _one_pinned_row(request: Request, named: Naming) -> Values:
    """The one name all matched rows have now; the touched-row check then shows that they have kept it."""
    _check_textual(named)
    pinned = pins(request.query.filters)
    values = [pinned.get(name, ()) for name in named.fields]
    if any(len(value) != 1 for value in values):
        raise ResourceMismatch(
            "The write sets columns that name the resource; moving a row to another resource is not supported yet.",
            advice=f"Leave out {', '.join(named.fields)} from the body, or filter by 'eq' on each of them.",
        )
    return tuple(value[0] for value in values)


def _pinned_rows(request: Request, named: Naming) -> tuple[Values, ...]:
    if not named.fields:
        return ((),)
    pinned = pins(request.query.filters)
    missing = [name for name in named.fields if name not in pinned]
    if missing:
        raise ResourceUnderivable(
            f"The filters do not pin {missing[0]!r}, which names the resource of rows of {named.table.name}.",
            advice=f"Filter by 'eq' or 'in' on {', '.join(named.fields)}, or name the resource in Fencing-Resource.",
        )
    _check_textual(named)
    lists = [pinned[name] for name in named.fields]
    _check_count(lists)
    return _bounded(set(product(*lists)))


def _check_count(lists: Sequence[Sequence[str]]) -> None:
    """Refuse before the product is made, not after."""
    count = 1
    for values in lists:
        count *= len(values)
    if count > MAX_RESOURCES:
        raise _too_many(count)


def _bounded(rows: Iterable[Values]) -> tuple[Values, ...]:
    found = tuple(rows)
    if len(found) > MAX_RESOURCES:
        raise _too_many(len(found))
    return found


def _too_many(count: int) -> ResourceUnderivable:
    return ResourceUnderivable(
        f"The write belongs to {count} resources; one write claims at most {MAX_RESOURCES}.",
        advice="Split the write, or give the table a coarser resource template.",
    )


def _not_in_body(name: str, named: Naming) -> ResourceUnderivable:
    return ResourceUnderivable(
        f"The body does not give {name!r}, which names the resource of rows of {named.table.name}, "
        "a value in every row.",
        advice=f"Send {', '.join(named.fields)} in every row, or name the resource in Fencing-Resource.",
    )


def _check_textual(named: Naming) -> None:
    for column in named.columns:
        if not _is_textual(column):
            raise ResourceUnderivable(
                f"{column.name!r} is of type {column.exact_type}, where equal values can have different texts, "
                "so no resource name can be derived from it.",
                advice="Ask the operator for a rule over other columns, or name the resource in Fencing-Resource.",
            )


def _is_textual(column: Column) -> bool:
    if not column.deterministic:
        return False
    if column.base_type == "numeric":
        return column.has_modifier
    return column.is_enum or column.base_type in _TEXTUAL
