"""Shapes: all of a request but its values, so that requests that differ only in values share one statement.

``lower_*`` take a request apart into its shape and its values. Values get numbered slots (``v0``, ``v1``, …).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from gateway.tables.catalog import Table
from gateway.tables.grammar import Condition, Field, Node, Order, Selected
from gateway.tables.plan import conflict_target
from gateway.tables.request import Request

# A field: name, then each step of its path as (arrow, is it an index?, slot of the key).
FieldShape: TypeAlias = tuple[str, tuple[tuple[str, bool, int], ...]]
# (field, operator, negated, slot of the value) or (and|or, negated, children).
FilterShape: TypeAlias = tuple[Any, ...]
SelectShape: TypeAlias = tuple[FieldShape | None, str, str | None]
OrderShape: TypeAlias = tuple[FieldShape, bool, str | None]


class ReadShape(NamedTuple):
    """A GET without its values."""

    filters: tuple[FilterShape, ...]
    select: tuple[SelectShape, ...]
    order: tuple[OrderShape, ...]
    limited: bool
    offset: bool
    counted: bool


class WriteShape(NamedTuple):
    """A write without its values.

    ``fenced``: the statement itself checks the fence and its touched rows (the fast path); otherwise it runs in a
    transaction that has claimed, and reports what it touched. ``default_row``: one row of nothing but defaults.
    """

    action: Literal["POST", "PATCH", "PUT", "DELETE"]
    fenced: bool
    columns: tuple[str, ...]
    default_row: bool
    fill_defaults: bool
    conflict: tuple[str, tuple[str, ...]] | None
    filters: tuple[FilterShape, ...]
    rows: bool
    select: tuple[SelectShape, ...]
    order: tuple[OrderShape, ...]
    location: bool


def lower_read(request: Request, *, counted: bool) -> tuple[ReadShape, dict[str, object]]:
    """The shape of a read, and its values by parameter name."""
    query, values = request.query, dict[str, object]()
    filters = tuple(_lower_filter(node, values) for node in query.filters)
    shape = ReadShape(
        filters, _lower_select(query.select, values), _lower_order(query.order, values),
        query.limit is not None, query.offset > 0, counted,
    )  # fmt: skip
    if query.limit is not None:
        values["limit"] = query.limit
    if query.offset:
        values["offset"] = query.offset
    return shape, values


def lower_write(
    request: Request, table: Table, columns: tuple[str, ...], *, default_row: bool, fenced: bool
) -> tuple[WriteShape, dict[str, object]]:
    """The shape of a write, and its values; the caller adds ``payload``, ``claimed`` and the values of the fence."""
    query, preferences = request.query, request.preferences
    values: dict[str, object] = {}
    rows = preferences.returns == "representation"
    shape = WriteShape(
        action=request.method,  # type: ignore[arg-type]  # only writes come here
        fenced=fenced,
        columns=columns,
        default_row=default_row,
        fill_defaults=preferences.missing == "default" and query.columns is not None,
        conflict=_conflict(request, table),
        filters=tuple(_lower_filter(node, values) for node in query.filters),
        rows=rows,
        select=_lower_select(query.select, values) if rows else (),
        order=_lower_order(query.order, values) if rows else (),
        location=request.method == "POST" and preferences.returns == "headers-only",
    )
    return shape, values


def _conflict(request: Request, table: Table) -> tuple[str, tuple[str, ...]] | None:
    target = conflict_target(request, table)
    if request.method == "PUT":
        return ("merge", target)
    if request.method != "POST" or request.preferences.resolution is None or not target:
        return None
    return ("merge" if request.preferences.resolution == "merge-duplicates" else "ignore", target)


def _slot(values: dict[str, object], value: object) -> int:
    slot = len(values)
    values[f"v{slot}"] = value
    return slot


def _lower_field(field: Field, values: dict[str, object]) -> FieldShape:
    if not field.path:
        return (field.name, ())
    return field.name, tuple((arrow, isinstance(key, int), _slot(values, key)) for arrow, key in field.path)


def _lower_filter(node: Node, values: dict[str, object]) -> FilterShape:
    if not isinstance(node, Condition):
        return (node.operator, node.negated, tuple(_lower_filter(child, values) for child in node.children))
    field, operator, value = _lower_field(node.field, values), node.operator, node.value
    if operator == "is":
        return (field, operator, node.negated, value)
    if isinstance(value, tuple):
        return (field, operator, node.negated, _slot(values, list(value)))
    return (field, operator, node.negated, _slot(values, value.replace("*", "%") if "like" in operator else value))


def _lower_select(select: Sequence[Selected], values: dict[str, object]) -> tuple[SelectShape, ...]:
    return tuple(
        (None, "*", None) if one.field is None else (_lower_field(one.field, values), _label(one, one.field), one.cast)
        for one in select
    )


def _label(selected: Selected, field: Field) -> str:
    """The key in the answer: the alias, else the last key of a JSON path, else the column."""
    keys = [key for _, key in field.path if isinstance(key, str)]
    return selected.alias or (keys[-1] if keys else field.name)


def _lower_order(order: Sequence[Order], values: dict[str, object]) -> tuple[OrderShape, ...]:
    return tuple((_lower_field(term.field, values), term.descending, term.nulls) for term in order)
