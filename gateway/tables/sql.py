"""SQL text for the shapes of requests, made once for each and kept.

Values are parameters and travel as text, cast by the server to the type in the catalog. Identifiers come from the
catalog, except for aliases; every one of them goes through one quoting function.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.expression import CTE, ColumnElement

from gateway.errors import DialectError
from gateway.tables.catalog import Column, Table
from gateway.tables.grammar import IS_WORDS, not_implemented
from gateway.tables.plan import Naming
from gateway.tables.shape import FieldShape, FilterShape, OrderShape, ReadShape, SelectShape, WriteShape

CACHED_SHAPES = 2048

_DIALECT: sa.Dialect = asyncpg_dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no annotation there
_QUOTE = _DIALECT.identifier_preparer.quote_identifier
_OPERATORS = {
    "eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "isdistinct": "IS DISTINCT FROM",
    "like": "LIKE", "ilike": "ILIKE", "match": "~", "imatch": "~*",
    "cs": "@>", "cd": "<@", "ov": "&&", "sl": "<<", "sr": ">>", "nxr": "&<", "nxl": "&>", "adj": "-|-",
}  # fmt: skip
_TEXT_OPERATORS = frozenset(("like", "ilike", "match", "imatch"))
# Their texts hold nothing that would have to be escaped.
_PLAIN_TYPES = frozenset(("smallint", "integer", "bigint", "uuid", "date", "boolean"))
# Names of our own inside statements, unlikely to be anyone's table.
_BODY, _ELEMENT, _FENCE, _WRITE, _PAGE = "gw_body", "gw_element", "gw_fence", "gw_write", "gw_page"


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text and the order in which it takes its named values."""

    text: str
    names: tuple[str, ...]

    def arrange(self, values: dict[str, object]) -> list[object]:
        return [values[name] for name in self.names]


class Statements:
    """The statements of one table: made for one state of the catalog, thrown away with it."""

    def __init__(self, table: Table, named: Naming | None) -> None:
        """``named`` None: rows of this table have no names, and its writes are not checked (observe mode only)."""
        self.table = table
        self._named = named
        self.read: Callable[[ReadShape], Statement] = lru_cache(CACHED_SHAPES)(self._read)
        self.write: Callable[[WriteShape], Statement] = lru_cache(CACHED_SHAPES)(self._write)
        self._target = sa.table(
            _quoted(table.name), *(sa.column(_quoted(name)) for name in table.columns), schema=_quoted(table.schema)
        )

    def _read(self, shape: ReadShape) -> Statement:
        where = [self._filter(one, self.table.name) for one in shape.filters]
        rows = sa.select(*self._selected(shape.select, self.table.name)).select_from(self._target).where(*where)
        rows = rows.order_by(*(self._ordered(term, self.table.name) for term in shape.order))
        if shape.limited:
            rows = rows.limit(_bind("limit", sa.BigInteger()))
        if shape.offset:
            rows = rows.offset(_bind("offset", sa.BigInteger()))
        page = rows.subquery(_PAGE)
        total = sa.select(sa.func.count()).select_from(self._target).where(*where).scalar_subquery()
        return _compiled(
            sa.select(
                sa.func.count().label("touched"),
                _json_array(sa.literal_column(f"{_PAGE}.*")).label("body"),
                (total if shape.counted else sa.null()).label("total"),
            ).select_from(page)
        )

    def _write(self, shape: WriteShape) -> Statement:
        fence = _fence() if shape.fenced else None
        write = self._data_change(shape, fence).cte(_WRITE)
        resource: ColumnElement[Any] = sa.literal_column(f"{_WRITE}.resource")
        body: ColumnElement[Any] = sa.null()
        if shape.rows:
            ordered = [
                _directed(sa.literal_column(f"{_WRITE}.o{number}"), descending=term[1], nulls=term[2])
                for number, term in enumerate(shape.order)
            ]
            body = _json_array(sa.literal_column(f"{_WRITE}.body"), ordered)
        results: list[ColumnElement[Any]] = [
            sa.func.count().label("touched"),
            body.label("body"),
            sa.func.count().filter(sa.literal_column(f"{_WRITE}.inserted")).label("inserted"),
            (sa.func.min(sa.literal_column(f"{_WRITE}.location")) if shape.location else sa.null()).label("location"),
        ]
        if self._named is not None:
            results += _verification(resource, raises=shape.fenced)
        if fence is not None:
            held = sa.select(sa.func.count()).select_from(fence).scalar_subquery()
            results.append(held.label("held"))
        return _compiled(sa.select(*results).select_from(write))

    def _data_change(self, shape: WriteShape, fence: CTE | None) -> Any:
        held = [] if fence is None else [sa.exists(sa.select(fence.c.resource))]
        change = {"PATCH": self._update, "DELETE": self._delete}.get(shape.action, self._insert)(shape, held)
        return change.returning(*self._returned(shape))

    def _update(self, shape: WriteShape, held: list[Any]) -> Any:
        body = self._body(shape)
        changes = {self._target.c[name]: value for name, value in body.values.items()}
        where = [self._filter(one, self.table.name) for one in shape.filters]
        return sa.update(self._target).values(changes).where(*held, *where)

    def _delete(self, shape: WriteShape, held: list[Any]) -> Any:
        where = [self._filter(one, self.table.name) for one in shape.filters]
        return sa.delete(self._target).where(*held, *where)

    def _insert(self, shape: WriteShape, held: list[Any]) -> Any:
        if shape.default_row:
            name = next(column.name for column in self.table.columns.values() if not column.generated)
            return postgresql.insert(self._target).values({self._target.c[name]: sa.literal_column("DEFAULT")})
        body = self._body(shape)
        # PUT: the row of the body must be the one the URL names.
        where = [self._filter(one, _BODY) for one in shape.filters] if shape.action == "PUT" else []
        rows = sa.select(*body.values.values()).select_from(*body.sources).where(*held, *where)
        names = [self._target.c[name] for name in body.values]
        change = postgresql.insert(self._target).from_select(names, rows)
        return change if shape.conflict is None else self._resolved(change, shape)

    def _resolved(self, change: Any, shape: WriteShape) -> Any:
        """ON CONFLICT. Neither the columns in conflict nor those of the resource's name are ever overwritten.

        So RETURNING shows the name the row already had, and a row of another resource is found out (an upsert on a
        unique key could otherwise rewrite the primary key).
        """
        assert shape.conflict is not None
        resolution, target = shape.conflict
        kept = set(target) | set(self._named.fields if self._named else ())
        index = [self._target.c[name] for name in target]
        if resolution == "ignore":
            return change.on_conflict_do_nothing(index_elements=index)
        overwritten = [name for name in shape.columns if name not in kept]
        # With nothing left to overwrite, a column is set to itself: the row must still be touched to be checked.
        changes: dict[Any, Any] = {self._target.c[name]: change.excluded[name] for name in overwritten}
        if not changes:
            changes = {self._target.c[target[0]]: sa.literal_column(_reference(self.table.name, target[0]))}
        return change.on_conflict_do_update(index_elements=index, set_=changes)

    def _body(self, shape: WriteShape) -> "_Body":
        columns = [self.table.columns[name] for name in shape.columns]
        document = sa.cast(_bind("payload", sa.Text()), _Type("json"))
        definition = [sa.column(_quoted(column.name), _Type(column.type)) for column in columns]
        if not shape.fill_defaults:
            recordset = sa.func.json_to_recordset(document).table_valued(*definition)
            rows = recordset.render_derived(name=_BODY, with_types=True)
            return _Body({column.name: rows.c[column.name] for column in columns}, [rows])
        element = sa.func.json_array_elements(document).table_valued(sa.column("value", _Type("json")))
        element = element.render_derived(name=_ELEMENT)
        record = sa.func.json_to_record(element.c.value).table_valued(*definition)
        row = record.render_derived(name=_BODY, with_types=True)
        values = {column.name: _or_default(column, element.c.value, row.c[column.name]) for column in columns}
        return _Body(values, [element, row])

    def _returned(self, shape: WriteShape) -> list[ColumnElement[Any]]:
        name = self.table.name
        returned: list[ColumnElement[Any]] = [self._inserted(shape).label("inserted")]
        if self._named is not None:
            returned.append(sa.literal_column(name_expression(self._named)).label("resource"))
        if shape.location:
            keys = ", ".join(f"{_reference(name, key)}::text" for key in self.table.primary_key)
            returned.append(sa.literal_column(f"json_build_array({keys})::text").label("location"))
        if shape.rows:
            returned.append(self._row(shape.select).label("body"))
            for number, term in enumerate(shape.order):
                returned.append(self._field(term[0], name)[0].label(f"o{number}"))
        return returned

    def _inserted(self, shape: WriteShape) -> ColumnElement[Any]:
        """Whether a touched row is new. Only plain tables can tell by xmax; elsewhere an upsert counts as new."""
        if shape.conflict is not None and shape.conflict[0] == "merge" and self.table.kind == "r":
            return sa.literal_column(f"{_reference(self.table.name, 'xmax')} = 0")
        return sa.true() if shape.action in ("POST", "PUT") else sa.false()

    def _row(self, select: tuple[SelectShape, ...]) -> ColumnElement[Any]:
        """One touched row as JSON."""
        if not select:
            return sa.literal_column(f"row_to_json({_QUOTE(_checked(self.table.name))}.*)")
        columns = sa.select(*self._selected(select, self.table.name)).subquery(_PAGE)
        return sa.select(sa.literal_column(f"row_to_json({_PAGE}.*)")).select_from(columns).scalar_subquery()

    def _selected(self, select: tuple[SelectShape, ...], source: str) -> list[ColumnElement[Any]]:
        if not select:
            return [sa.literal_column(f"{_QUOTE(_checked(source))}.*")]
        return [self._one_selected(field, label, cast, source) for field, label, cast in select]

    def _one_selected(self, field: FieldShape | None, label: str, cast: str | None, source: str) -> ColumnElement[Any]:
        if field is None:
            return sa.literal_column(f"{_QUOTE(_checked(source))}.*")
        value = self._field(field, source)[0]
        return (value if cast is None else sa.cast(value, _Type(cast))).label(_quoted(label))

    def _ordered(self, term: OrderShape, source: str) -> ColumnElement[Any]:
        return _directed(self._field(term[0], source)[0], descending=term[1], nulls=term[2])

    def _field(self, field: FieldShape, source: str) -> tuple[ColumnElement[Any], str]:
        """The expression of a field, and the type its values are cast to."""
        name, path = field
        column = self.table.columns.get(name)
        if column is None:
            raise DialectError("42703", 400, f"column {self.table.name}.{name} does not exist")
        value: ColumnElement[Any] = sa.literal_column(_reference(source, name))
        if not path:
            return value, column.type
        if not column.is_json or path[-1][0] == "->":
            value = sa.func.to_jsonb(value)
        for arrow, is_index, slot in path:
            value = value.op(arrow)(_bind(f"v{slot}", sa.Integer() if is_index else sa.Text()))
        return value, "text" if path[-1][0] == "->>" else "jsonb"

    def _filter(self, shape: FilterShape, source: str) -> ColumnElement[Any]:
        if isinstance(shape[0], str):
            children = (self._filter(child, source) for child in shape[2])
            condition: ColumnElement[Any] = (sa.and_ if shape[0] == "and" else sa.or_)(*children)
            return sa.not_(condition) if shape[1] else condition
        condition = self._condition(shape, source)
        return sa.not_(condition) if shape[2] else condition

    def _condition(self, shape: FilterShape, source: str) -> ColumnElement[Any]:
        field, operator, _, slot = shape
        value, type_name = self._field(field, source)
        if operator == "is":
            return value.op("IS", is_comparison=True)(sa.literal_column(IS_WORDS[slot]))
        if operator == "in":
            texts = _bind(f"v{slot}", postgresql.ARRAY(sa.Text()))
            return value.op("=", is_comparison=True)(sa.func.any(sa.cast(texts, _Type(f"{type_name}[]"))))
        text = _bind(f"v{slot}", sa.Text())
        operand = text if operator in _TEXT_OPERATORS else sa.cast(text, _Type(type_name))
        return value.op(_OPERATORS[operator], is_comparison=True)(operand)


@dataclass(frozen=True, slots=True)
class _Body:
    """The rows of the payload inside a statement: a value for each written column, and where they come from."""

    values: dict[str, ColumnElement[Any]]
    sources: list[Any]


def name_expression(named: Naming) -> str:
    """SQL for the resource name of a row. NULL where a column of the name is.

    Compared byte by byte, whatever the collation of the columns: a case-insensitive one must not make two names equal.
    """
    pieces = []
    for literal, column in zip(named.template.literals, (*named.columns, None), strict=True):
        if literal:
            pieces.append("'" + literal.replace("'", "''") + "'")
        if column is not None:
            value = _reference(named.table.name, column.name)
            # The cast to the type we know changes nothing, but fails should the column have got another type meanwhile.
            plain = column.base_type in _PLAIN_TYPES
            pieces.append(f"{value}::{column.base_type}::text" if plain else f"fencing.escape_v1({value}::text)")
    return f'({" || ".join(pieces)}) COLLATE "C"'


def canonical(column: Column) -> str:
    """A statement that brings ``$1`` (an array of texts) into the canonical, escaped form of a column's values."""
    return (
        f"SELECT u.value, fencing.escape_v1(u.value::{column.exact_type}::text) AS escaped "  # noqa: S608 - a type's name
        "FROM unnest($1::text[]) AS u (value)"
    )


class _Type(sa.types.UserDefinedType[Any]):
    """A type by the text the catalog has for it."""

    cache_ok = True

    def __init__(self, text: str) -> None:
        self.text = text

    def get_col_spec(self, **_: object) -> str:
        return self.text


def _checked(name: str) -> str:
    # The compiler looks for its own placeholders in the finished text, also inside quotes.
    if "%(" in name or "\0" in name:
        raise not_implemented("An identifier with '%('")
    return name


def _quoted(name: str) -> quoted_name:
    return quoted_name(_checked(name), quote=True)


def _reference(table: str, column: str) -> str:
    return f"{_QUOTE(_checked(table))}.{_QUOTE(_checked(column))}"


def _bind(name: str, type_: sa.types.TypeEngine[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=type_)


def _compiled(statement: sa.Select[Any]) -> Statement:
    compiled = statement.compile(dialect=_DIALECT)
    return Statement(str(compiled), tuple(getattr(compiled, "positiontup", None) or ()))


def _fence() -> CTE:
    """The fence row, locked against a raise, if it carries exactly the presented token and nothing older is pending.

    The visible version already carries the token, so the raise had committed before this statement's snapshot, and
    the snapshot sees all that the holder before had written. That is what makes one statement enough.
    """
    fence = sa.table("fence", *(sa.column(name) for name in ("resource", "epoch", "value", "holder")), schema="fencing")
    intent = sa.table("intent", *(sa.column(name) for name in ("resource", "epoch", "value")), schema="fencing")
    epoch, value, holder = (
        _bind("epoch", sa.Integer()), _bind("value", sa.BigInteger()), _bind("holder", sa.Text()),
    )  # fmt: skip
    older = sa.exists().where(
        intent.c.resource == fence.c.resource, sa.tuple_(intent.c.epoch, intent.c.value) < sa.tuple_(epoch, value)
    )
    return (
        sa.select(fence.c.resource)
        .where(
            fence.c.resource == _bind("resource", sa.Text()),
            fence.c.epoch == epoch,
            fence.c.value == value,
            sa.or_(holder.is_(None), fence.c.holder.is_(None), fence.c.holder == holder),
            sa.not_(older.correlate(fence)),
        )
        # A fence that is being raised is skipped, not waited for: others may share this statement's batch.
        .with_for_update(read=True, of=fence, skip_locked=True)
        .cte(_FENCE)
        .prefix_with("MATERIALIZED")
    )


def _verification(resource: ColumnElement[Any], *, raises: bool) -> list[ColumnElement[Any]]:
    """How many touched rows belong to no claimed resource, and the name of one; or an error that undoes all."""
    claimed = _bind("claimed", postgresql.ARRAY(sa.Text()))
    stray = resource.op("=", is_comparison=True)(sa.func.any(claimed)).is_not(sa.true())
    strays, name = sa.func.count().filter(stray), sa.func.min(resource).filter(stray)
    if raises:
        return [sa.case((strays > sa.literal_column("0"), sa.func.fencing.refuse_mismatch_v1(name))).label("strays")]
    return [strays.label("strays"), name.label("stray")]


def _or_default(column: Column, element: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    """The value of a key, or what the column would get by itself where the key is absent (JSON null is not absent)."""
    if column.default is None:
        return value
    key: ColumnElement[Any] = sa.literal_column("'" + column.name.replace("'", "''") + "'::text")
    absent = element.op("->")(key).is_(None)
    return sa.case((absent, sa.literal_column(_checked(column.default))), else_=value)


def _json_array(rows: ColumnElement[Any], order: list[ColumnElement[Any]] | None = None) -> ColumnElement[Any]:
    aggregated = postgresql.aggregate_order_by(rows, *order) if order else rows
    return sa.func.coalesce(sa.cast(sa.func.json_agg(aggregated), sa.Text()), sa.literal_column("'[]'"))


def _directed(value: ColumnElement[Any], *, descending: bool, nulls: str | None) -> ColumnElement[Any]:
    directed = value.desc() if descending else value.asc()
    if nulls is None:
        return directed
    return directed.nulls_first() if nulls == "first" else directed.nulls_last()
