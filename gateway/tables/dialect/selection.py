"""Reads what shapes an answer: the selected columns, the embedded tables, the orders, and lists of names."""

import re
from dataclasses import dataclass, field
from functools import lru_cache

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import (
    LONGEST_KEPT,
    SPACES,
    Cursor,
    Embedded,
    Field,
    Order,
    Selected,
    kept_if_short,
    not_implemented,
    read_field,
    read_name,
    read_path,
)

_ALIAS = re.compile(r":(?!:)")
_CAST = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?: [A-Za-z]+){0,3}(?:\([0-9]{1,4}(?:,[0-9]{1,4})?\))?(?:\[\])?")
_AGGREGATE = re.compile(r"(?:sum|avg|count|max|min)\(\)")
_COUNT = re.compile(r"count\(\)")


@dataclass(frozen=True, slots=True)
class Selection:
    """The selected columns of an answer. Empty ``columns`` stand for all, unless a table is embedded.

    ``terms``: the number of columns, JSON steps and embedded tables.
    """

    columns: tuple[Selected, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    terms: int = field(default=0, compare=False)


@kept_if_short
def parse_select(text: str) -> Selection:
    """``alias:column->path::cast, alias:table!hint!inner(column, …), …``."""
    if text in ("", "*"):
        return Selection()
    cursor = Cursor(text, "select parameter")
    columns: list[Selected] = []
    embedded: list[Embedded] = []
    _read_items(cursor, columns, embedded)
    cursor.finish('expecting "," or end of input')
    return Selection(tuple(columns), tuple(embedded), cursor.terms)


@kept_if_short
def parse_order(text: str) -> tuple[Order, ...]:
    """``column.desc.nullslast, table(column).asc, …``."""
    cursor = Cursor(text, "order")
    terms = [_order(cursor)]
    while cursor.literal(","):
        terms.append(_order(cursor))
    cursor.finish('expecting "," or end of input')
    return tuple(terms)


@lru_cache(maxsize=512)
def _short_names(text: str, what: str) -> tuple[str, ...]:
    return _names(text, what)


def parse_names(text: str, what: str) -> tuple[str, ...]:
    """Read a comma list of plain column names, sorted: clients send them in random order."""
    return (_short_names if len(text) <= LONGEST_KEPT else _names)(text, what)


def _names(text: str, what: str) -> tuple[str, ...]:
    cursor = Cursor(text, what)
    names = [read_name(cursor)]
    while cursor.literal(","):
        cursor.take(SPACES)
        names.append(read_name(cursor))
    cursor.finish('expecting "," or end of input')
    return tuple(sorted(set(names)))


def _read_items(cursor: Cursor, columns: list[Selected], embedded: list[Embedded] | None) -> None:
    """Read the items of one level. ``embedded`` None: this is the inside of an embedded table."""
    while True:
        item = _item(cursor, nested=embedded is None)
        if isinstance(item, Selected):
            columns.append(item)
        else:
            assert embedded is not None
            embedded.append(item)
        if not cursor.literal(","):
            return


def _item(cursor: Cursor, *, nested: bool) -> Selected | Embedded:
    cursor.count()
    cursor.take(SPACES)
    if cursor.literal("*"):
        cursor.take(SPACES)
        return Selected(None)
    if cursor.literal("..."):
        raise not_implemented("Spreading an embedded table")
    _refuse_count(cursor)
    alias, name = None, read_name(cursor)
    if cursor.take(_ALIAS):
        _refuse_count(cursor)
        alias, name = name, read_name(cursor)
    item = _embedded(cursor, name, alias, nested=nested) if cursor.next in ("(", "!") else _column(cursor, name, alias)
    cursor.take(SPACES)
    return item


def _refuse_count(cursor: Cursor) -> None:
    if cursor.take(_COUNT):
        raise _aggregate()


def _column(cursor: Cursor, name: str, alias: str | None) -> Selected:
    path = read_path(cursor)
    cast = None
    if cursor.literal("::"):
        match = cursor.take(_CAST)
        if match is None:
            cursor.fail("expecting a type name")
        cast = match[0]
    if cursor.literal("."):
        if cursor.take(_AGGREGATE):
            raise _aggregate()
        cursor.fail('expecting "sum()", "avg()", "count()", "max()" or "min()"')
    return Selected(Field(name, path), alias, cast)


def _embedded(cursor: Cursor, name: str, alias: str | None, *, nested: bool) -> Embedded:
    parameters: list[str] = []
    while cursor.literal("!"):
        if len(parameters) == 2:
            cursor.refuse("a hint and a kind of join")
        parameters.append(read_name(cursor))
    cursor.expect("(")
    if nested:
        raise not_implemented("Embedding inside an embedded table")
    columns: list[Selected] = []
    cursor.take(SPACES)
    if not cursor.literal(")"):
        _read_items(cursor, columns, None)
        cursor.expect(")")
    hints = [parameter for parameter in parameters if parameter not in ("inner", "left")]
    return Embedded(name, tuple(columns), alias, hints[0] if hints else None, "inner" in parameters)


def _aggregate() -> DialectError:
    """PostgREST has aggregates switched off unless told otherwise."""
    return DialectError("PGRST123", 400, "Use of aggregate functions is not allowed")


def _order(cursor: Cursor) -> Order:
    cursor.count()
    field, relation = read_field(cursor), None
    if not field.path and cursor.literal("("):
        relation, field = field.name, read_field(cursor)
        cursor.expect(")")
    descending = cursor.literal(".desc")
    if not descending:
        cursor.literal(".asc")
    cursor.take(SPACES)
    if cursor.literal(".nullsfirst"):
        order = Order(field, descending, "first", relation)
    elif cursor.literal(".nullslast"):
        order = Order(field, descending, "last", relation)
    else:
        order = Order(field, descending, None, relation)
    cursor.take(SPACES)
    return order
