"""Shapes: all of a request but its values, so that requests that differ only in values share one statement.

``lower_*`` take a request apart into its shape and its values. Values get numbered slots (``v0``, ``v1``, …).
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from gateway.tables.catalog import Table
from gateway.tables.dialect.grammar import Condition, Embedded, Field, Node, Order, Selected
from gateway.tables.dialect.query import Embed, names_one_row, position_of
from gateway.tables.dialect.request import Form, Request
from gateway.tables.naming import conflict_target

# A field: name, then each step of its path as (arrow, is it an index?, slot of the key).
FieldShape: TypeAlias = tuple[str, tuple[tuple[str, bool, int], ...]]
# One of three: (field, operator, negated, slot of the value, slot of the language or None),
# `(and|or, negated, children)`, or `(embed, negated, number of an embedded table)`, which asks for any row there.
FilterShape: TypeAlias = tuple[Any, ...]
SelectShape: TypeAlias = tuple[FieldShape | None, str, str | None]


class OrderShape(NamedTuple):
    """A term of an order; ``embed`` is the number of the embedded table whose field it is."""

    field: FieldShape
    descending: bool
    nulls: str | None
    embed: int | None = None


class EmbedShape(NamedTuple):
    """An embedded table without its values. ``limit`` and ``offset`` are slots."""

    name: str
    hint: str | None
    label: str
    inner: bool
    select: tuple[SelectShape, ...]
    filters: tuple[FilterShape, ...]
    order: tuple[OrderShape, ...]
    limit: int | None
    offset: int | None


MOST = "most"
"""The value with the most bytes that the body of an answer may have. The code that executes the statement sets it."""

CHECKS = "checks"
"""The value that tells a statement to check that its table is unchanged, unless its transaction has done so already."""


CLAIMS = "claims"
"""The claims that a fenced statement makes in place of a write, for the statements behind it; None for a write."""


HELD = "held"
"""Which fences carry the tokens of several writes under a role: they look at none."""


class ReadShape(NamedTuple):
    """A GET without its values. ``select`` empty stands for all columns, unless there are ``embeds``: then for none.

    ``tagged``: it names one row, whose ETag is asked for as well.
    """

    filters: tuple[FilterShape, ...]
    select: tuple[SelectShape, ...]
    order: tuple[OrderShape, ...]
    limited: bool
    offset: bool
    counted: bool
    embeds: tuple[EmbedShape, ...] = ()
    form: Form = "json"
    tagged: bool = False


class WriteShape(NamedTuple):
    """A write without its values.

    ``fenced``: the statement itself checks the fence and its touched rows (the fast path). Otherwise it runs in a
    transaction that has claimed, and reports the touched rows. ``default_row``: one row of defaults only. ``guarded``:
    a row is changed only if its name so far is claimed, and otherwise nothing is. ``tagged``: it names one row, whose
    new ETag is asked for. ``located``: of the rows that the filters match, only those at given places are written.
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
    guarded: bool = False
    form: Form = "json"
    tagged: bool = False
    located: bool = False


class LockShape(NamedTuple):
    """The lock of the rows that an update or delete is about to change, without its values.

    ``columns``: those that the update sets and other tables refer to. ``keys``: columns whose values are asked for.
    ``exclusive``: no row may begin to refer to these rows.
    """

    filters: tuple[FilterShape, ...]
    columns: tuple[str, ...]
    fill_defaults: bool
    keys: tuple[str, ...]
    exclusive: bool


def lower_read(request: Request, *, counted: bool, tagged: bool = False) -> tuple[ReadShape, dict[str, object]]:
    """Return the shape of a read, and its values by parameter name."""
    query, values = request.query, dict[str, object]()
    embedded = [embed.wanted for embed in query.embeds]
    filters = tuple(_lower_filter(node, values, embedded) for node in query.filters)
    shape = ReadShape(
        filters, _lower_select(query.select, values), _lower_order(query.order, values, embedded),
        query.limit is not None, query.offset > 0, counted,
        tuple(_lower_embed(embed, values) for embed in query.embeds), request.media.form, tagged,
    )  # fmt: skip
    if query.limit is not None:
        values["limit"] = query.limit
    if query.offset:
        values["offset"] = query.offset
    values[CHECKS] = True
    return shape, values


def lower_write(
    request: Request,
    table: Table,
    columns: tuple[str, ...],
    *,
    default_row: bool,
    fenced: bool,
    guarded: bool = False,
) -> tuple[WriteShape, dict[str, object]]:
    """Return the shape of a write, and its values; the caller adds ``payload``, ``claimed`` and the values of the
    fence.
    """
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
        guarded=guarded,
        form=request.media.form if rows else "json",
        tagged=_asks_for_tag(request, table),
    )
    values[CHECKS] = True
    if fenced:
        values[CLAIMS] = None
    return shape, values


def lower_filters(filters: Sequence[Node]) -> tuple[tuple[FilterShape, ...], dict[str, object]]:
    """Return filters without their values, and the values."""
    values: dict[str, object] = {}
    return tuple(_lower_filter(node, values) for node in filters), values


def _asks_for_tag(request: Request, table: Table) -> bool:
    """Whether the answer to a write has the ETag of the one row it has written."""
    # In another time zone the same row has another text.
    wanted = (request.wants_rows or request.preconditions is not None) and request.preferences.timezone is None
    return request.method in ("PATCH", "PUT") and wanted and names_one_row(request.query, table.primary_key)


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


def _lower_filter(node: Node, values: dict[str, object], embedded: Sequence[Embedded] = ()) -> FilterShape:
    if not isinstance(node, Condition):
        return (node.operator, node.negated, tuple(_lower_filter(child, values, embedded) for child in node.children))
    if embedded and (present := _presence(node, embedded)) is not None:
        return present
    field, operator, value = _lower_field(node.field, values), node.operator, node.value
    if operator == "is":
        return (field, operator, node.negated, value, None)
    if isinstance(value, tuple):
        return (field, operator, node.negated, _slot(values, list(value)), None)
    slot = _slot(values, value.replace("*", "%") if "like" in operator else value)
    return (field, operator, node.negated, slot, None if node.language is None else _slot(values, node.language))


def _presence(node: Condition, embedded: Sequence[Embedded]) -> FilterShape | None:
    """``label=not.is.null``: whether the embedded table of that label has a row."""
    if node.field.path or node.operator != "is" or node.value not in ("null", "not_null"):
        return None
    labels = [one.label for one in embedded]
    if node.field.name not in labels:
        return None
    return ("embed", (node.value == "null") != node.negated, labels.index(node.field.name))


def _lower_embed(embed: Embed, values: dict[str, object]) -> EmbedShape:
    wanted = embed.wanted
    return EmbedShape(
        name=wanted.name,
        hint=wanted.hint,
        label=wanted.label,
        inner=wanted.inner,
        select=_lower_select(wanted.select, values),
        filters=tuple(_lower_filter(node, values) for node in embed.filters),
        order=_lower_order(embed.order, values),
        limit=None if embed.limit is None else _slot(values, embed.limit),
        offset=_slot(values, embed.offset) if embed.offset else None,
    )


def _lower_select(select: Sequence[Selected], values: dict[str, object]) -> tuple[SelectShape, ...]:
    return tuple(
        (None, "*", None) if one.field is None else (_lower_field(one.field, values), _label(one, one.field), one.cast)
        for one in select
    )


def _label(selected: Selected, field: Field) -> str:
    """Return the key in the answer: the alias, else the last key of a JSON path, else the column."""
    keys = [key for _, key in field.path if isinstance(key, str)]
    return selected.alias or (keys[-1] if keys else field.name)


def _lower_order(
    order: Sequence[Order], values: dict[str, object], embedded: Sequence[Embedded] = ()
) -> tuple[OrderShape, ...]:
    return tuple(
        OrderShape(
            _lower_field(term.field, values), term.descending, term.nulls,
            None if term.relation is None else position_of(term.relation, embedded),
        )
        for term in order
    )  # fmt: skip
