"""The query string of a request: filters, selected columns, embedded tables, orders and limits.

A key that is not reserved is a filter on the column of that name. With the label of an embedded table before it
(``directors.name``), a key is about that table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote_plus

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import (
    MAX_TERMS,
    SIMPLE_NAME,
    SPACES,
    Condition,
    Cursor,
    Embedded,
    Field,
    Node,
    Order,
    Selected,
    kept_if_short,
    not_implemented,
    parse_error,
    parse_filter,
    parse_tree,
    read_field,
    read_name,
    read_path,
    terms,
)

MAX_BYTES = 64 * 1024
"""Bytes of a query string."""
RESERVED = frozenset(("select", "columns", "on_conflict", "order", "limit", "offset"))

# These may stand behind the label of an embedded table. "not" before the last two negates.
_OF_A_LEVEL = frozenset(("order", "limit", "offset", "and", "or"))
_TREES = frozenset(("and", "or"))
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})?")
_INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class Embed:
    """An embedded table, with what the query string asks of its rows."""

    wanted: Embedded
    filters: tuple[Node, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """The query string. ``columns`` and ``on_conflict`` are sorted.

    ``select`` empty stands for all columns, unless ``embeds`` is not empty: then for none.
    """

    filters: tuple[Node, ...] = ()
    select: tuple[Selected, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] = ()
    is_limited: bool = False
    """Whether ``limit`` or ``offset`` was sent at all."""
    embeds: tuple[Embed, ...] = ()

    def capped(self, most: int) -> "Query":
        """Return the same query for no more than ``most`` rows, and no more than these inside each of them."""
        embeds = tuple(replace(embed, limit=_least(embed.limit, most)) for embed in self.embeds)
        return replace(self, limit=_least(self.limit, most), embeds=embeds)


@dataclass(slots=True)
class _Level:
    filters: list[Node] = field(default_factory=list)
    reserved: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Parameters:
    root: _Level = field(default_factory=_Level)
    embedded: dict[tuple[str, ...], _Level] = field(default_factory=dict)
    terms: int = 0

    def level(self, path: tuple[str, ...]) -> _Level:
        return self.embedded.setdefault(path, _Level()) if path else self.root

    def add(self, path: tuple[str, ...], node: Node) -> None:
        self.level(path).filters.append(node)
        self.count(terms(node))

    def count(self, more: int) -> None:
        self.terms += more
        if self.terms > MAX_TERMS:
            raise parse_error("query string", "…", 0, f"at most {MAX_TERMS} terms are taken")


def equalities(filters: tuple[Node, ...]) -> list[tuple[str, str]]:
    """Return column and value of each plain ``eq``: only they can name one row by its key."""
    return [
        (one.field.name, one.value)
        for one in filters
        if isinstance(one, Condition) and one.operator == "eq" and isinstance(one.value, str)
        if not (one.negated or one.field.path)
    ]


def names_one_row(query: Query, key: tuple[str, ...]) -> bool:
    """Return whether the filters pin every column of a key to one value: at most one row has it."""
    return bool(key) and not query.embeds and {name for name, _ in equalities(query.filters)}.issuperset(key)


def pins_exactly(filters: tuple[Node, ...], columns: tuple[str, ...]) -> bool:
    """Return whether the filters are one plain ``eq`` for each column and nothing else, which is what PUT asks for."""
    found = equalities(filters)
    return len(found) == len(filters) and sorted(name for name, _ in found) == sorted(columns)


def pins(filters: tuple[Node, ...]) -> dict[str, tuple[str, ...]]:
    """Return the columns that root filters pin to values: to one by a plain ``eq``, to several by a plain ``in``.

    The first of a name wins, but an ``eq`` wins over an ``in`` on the same column, because it says more.
    """
    found = {
        one.field.name: one.value
        for one in reversed(filters)
        if isinstance(one, Condition) and one.operator == "in" and isinstance(one.value, tuple)
        if not (one.negated or one.field.path)
    }
    return found | {name: (value,) for name, value in reversed(equalities(filters))}


def parse_query(query_string: bytes) -> Query:
    """Read the query string. A key without ``=`` is dropped, as PostgREST does: it is no filter."""
    if not query_string:
        return Query()
    if len(query_string) > MAX_BYTES:
        raise parse_error("query string", "…", MAX_BYTES, f"at most {MAX_BYTES} bytes are taken")
    found = _Parameters()
    for part in query_string.split(b"&"):
        raw_key, equals, raw_value = part.partition(b"=")
        if equals:
            _take(found, _decoded(raw_key), _decoded(raw_value))
    if not found.root.reserved and not found.embedded:
        return Query(filters=tuple(found.root.filters))
    return _assembled(found)


def _take(found: _Parameters, key: str, value: str) -> None:
    if key in RESERVED:
        found.root.reserved.setdefault(key, value)
    elif SIMPLE_NAME.fullmatch(key) and key not in _TREES:
        if key != "apikey":  # supabase clients repeat their key there; its place is a header
            found.add((), parse_filter(Field(key), value))
    else:
        _take_with_path(found, key, value)


def _take_with_path(found: _Parameters, key: str, value: str) -> None:
    *rest, last = key.rsplit(".", 1)
    if last not in _OF_A_LEVEL:
        path, column = _parse_key(key)
        found.add(path, parse_filter(column, value))
        return
    path = _parse_path(rest[0]) if rest else ()
    if last in _TREES:
        tree = parse_tree(last, value, negated="not" in path)
        found.add(tuple(name for name in path if name != "not"), tree)
    else:
        found.level(path).reserved.setdefault(last, value)


def _parse_key(text: str) -> tuple[tuple[str, ...], Field]:
    """``table.column->key``: the way to the table, and the field."""
    cursor = Cursor(text, "tree path")
    names = _read_names(cursor)
    path = read_path(cursor)
    cursor.finish("expecting field name")
    return tuple(names[:-1]), Field(names[-1], path)


def _parse_path(text: str) -> tuple[str, ...]:
    cursor = Cursor(text, "tree path")
    names = _read_names(cursor)
    cursor.finish("expecting field name")
    return tuple(names)


def _read_names(cursor: Cursor) -> list[str]:
    names = [read_name(cursor)]
    while cursor.literal("."):
        names.append(read_name(cursor))
    return names


def _assembled(found: _Parameters) -> Query:
    reserved = found.root.reserved
    limit, offset = _window(found.root)
    selection = parse_select(reserved.get("select", ""))
    found.count(selection.terms)
    for level in (found.root, *found.embedded.values()):
        found.count(sum(1 + len(term.field.path) for term in _parsed_order(level)))
    query = Query(
        filters=tuple(found.root.filters),
        select=selection.columns,
        order=_parsed_order(found.root),
        limit=limit,
        offset=offset,
        columns=parse_names(reserved["columns"], "columns parameter") if "columns" in reserved else None,
        on_conflict=parse_names(reserved["on_conflict"], "on_conflict parameter")
        if reserved.get("on_conflict")
        else (),
        is_limited="limit" in reserved or "offset" in reserved,
        embeds=_embeds(selection.embedded, found.embedded),
    )
    for term in query.order:
        if term.relation is not None:
            position_of(term.relation, selection.embedded)
    return query


def _embeds(embedded: Sequence[Embedded], levels: dict[tuple[str, ...], _Level]) -> tuple[Embed, ...]:
    """Each embedded table with its parameters. Raises PGRST108 for parameters of one that is not embedded."""
    embeds = [Embed(one) for one in embedded]
    for path, level in levels.items():
        position = position_of(path[0], embedded)
        if len(path) > 1:
            raise _not_embedded(path[1])
        limit, offset = _window(level)
        order = _parsed_order(level)
        for term in order:
            if term.relation is not None:
                raise _not_embedded(term.relation)
        # Two keys can lead here, the alias and the name of the table: what they ask for adds up.
        before = embeds[position]
        embeds[position] = replace(
            before,
            filters=(*before.filters, *level.filters),
            order=before.order or order,
            limit=limit if before.limit is None else before.limit,
            offset=before.offset or offset,
        )
    return tuple(embeds)


def position_of(label: str, embedded: Sequence[Embedded]) -> int:
    """Which embedded table is meant: the one of this label, else of this name. PGRST108 where there is none."""
    labels = [one.label for one in embedded]
    if label in labels:
        return labels.index(label)
    names = [one.name for one in embedded]
    if label in names:
        return names.index(label)
    raise _not_embedded(label)


def _not_embedded(label: str) -> DialectError:
    return DialectError(
        "PGRST108",
        400,
        f"'{label[:100]}' is not an embedded resource in this request",
        hint=f"Verify that '{label[:100]}' is included in the 'select' query parameter.",
    )


def _parsed_order(level: _Level) -> tuple[Order, ...]:
    text = level.reserved.get("order")
    return parse_order(text) if text else ()


def _window(level: _Level) -> tuple[int | None, int]:
    """Limit and offset; what is no integer is ignored, as PostgREST does."""
    limit, offset = _integer(level.reserved.get("limit")), _integer(level.reserved.get("offset"))
    if limit is not None and limit < 0:
        raise range_error("Limit should be greater than or equal to zero.")
    return limit, max(0, offset or 0)


def _least(limit: int | None, most: int) -> int:
    return most if limit is None else min(limit, most)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def range_error(details: str) -> DialectError:
    """PGRST103: the rows asked for do not exist."""
    return DialectError("PGRST103", 416, "Requested range not satisfiable", details=details)


def _decoded(raw: bytes) -> str:
    if b"%" not in raw and b"+" not in raw and raw.isascii():
        return raw.decode("ascii")
    try:
        text = unquote_plus(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError as error:
        raise parse_error("query string", ascii(raw)[2:-1], 0, "expecting percent-encoded UTF-8") from error
    if "\0" in text:
        raise parse_error("query string", ascii(raw)[2:-1], 0, "unexpected NUL character")
    return text


def narrowed(query: Query, header: str) -> Query:
    """Return the rows that both the query and ``Range: 0-9`` ask for. Another form of the header is ignored."""
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        return query
    first = int(match[1])
    if match[2] is not None and int(match[2]) < first:
        raise range_error("The lower boundary must be lower than or equal to the upper boundary in the Range header.")
    ends = [int(match[2]) + 1] if match[2] is not None else []
    if query.limit is not None:
        ends.append(query.offset + query.limit)
    start = max(first, query.offset)
    limit = min(ends) - start if ends else None
    if limit is not None and limit <= 0 and query.limit != 0:
        raise range_error("The Range header and the limit have no row in common.")
    return replace(query, limit=None if limit is None else max(0, limit), offset=start, is_limited=True)


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


@kept_if_short
def parse_names(text: str, what: str) -> tuple[str, ...]:
    """Read a comma list of plain column names, sorted: clients send them in random order."""
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
