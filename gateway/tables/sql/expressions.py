"""The pieces SQL is put together from: quoted identifiers, bound values, types by their name, filters, compiled text.

Values travel as text, and the server casts them to the type in the catalog. ``bind`` decides where a value comes from.
It is a parameter in an ordinary statement, and a column of a list of values in a statement for several requests. Every
identifier goes through ``quoted`` or ``reference``.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.asyncpg import dialect as asyncpg_dialect
from sqlalchemy.sql.elements import quoted_name
from sqlalchemy.sql.expression import ColumnElement

from gateway.bounded import Bounded
from gateway.errors import DialectError, SqlError
from gateway.tables.catalog import Table
from gateway.tables.dialect.grammar import IS_WORDS, not_implemented
from gateway.tables.dialect.request import Form
from gateway.tables.relations import Pairs, Relations, Relationship
from gateway.tables.sql.shape import MOST, EmbedShape, FieldShape, FilterShape, OrderShape, SelectShape

MOST_KEPT = 2048
MOST_KEPT_TEXT = 4 * 1024 * 1024
"""Characters."""
LONGEST_KEPT = 32 * 1024
"""Characters of a statement that is kept."""

Shape = TypeVar("Shape", bound=Hashable)

_ANSWER = "gw_answer"
_DIALECT: sa.Dialect = asyncpg_dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy has no annotation there
_QUOTE = _DIALECT.identifier_preparer.quote_identifier


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text and the order in which it takes its named values.

    ``runs_code``: a read that carries out views or policies, which may be a write. ``tables``: the names of all tables
    that a read shows rows of, as ``schema.table``. ``together``: the one statement that does the same for several
    requests, if there is one. It takes an array in place of each of their values.
    """

    text: str
    names: tuple[str, ...]
    runs_code: bool = False
    tables: tuple[str, ...] = ()
    together: "Statement | None" = None

    @property
    def size(self) -> int:
        """Return the characters of all its text."""
        return len(self.text) + (self.together.size if self.together else 0)

    def arrange(self, values: dict[str, object]) -> list[object]:
        return [values[name] for name in self.names]


class Type(sa.types.UserDefinedType[Any]):
    cache_ok = True

    def __init__(self, text: str) -> None:
        self.text = text

    def get_col_spec(self, **_: object) -> str:
        return self.text


def checked(name: str) -> str:
    """Return the name, escaped for the compiler if necessary."""
    # It looks for its own placeholders in the finished text, also inside quotes.
    if "%(" in name or "\0" in name:
        raise not_implemented("An identifier with '%('")
    return name


def quoted(name: str) -> quoted_name:
    """Return a name for SQLAlchemy that is quoted in any case."""
    return quoted_name(checked(name), quote=True)


def quote(name: str) -> str:
    return _QUOTE(checked(name))


def reference(source: str, column: str) -> str:
    """``"source"."column"``"""
    return f"{quote(source)}.{quote(column)}"


def string(text: str) -> str:
    """Return a text of the catalog or the operator as a literal. Texts of a caller are bound instead."""
    return "'" + checked(text).replace("'", "''") + "'"


def bound(name: str, type_: sa.types.TypeEngine[Any]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=type_)


def from_table(table: Table) -> sa.TableClause:
    columns: list[sa.ColumnClause[Any]] = [sa.column(quoted(name)) for name in table.columns]
    return sa.table(quoted(table.name), *columns, schema=quoted(table.schema))


def compiled(statement: sa.Select[Any], *, runs_code: bool = False, tables: tuple[str, ...] = ()) -> Statement:
    """Return the text of a statement, made once for a shape."""
    made = statement.compile(dialect=_DIALECT)
    return Statement(str(made), tuple(getattr(made, "positiontup", None) or ()), runs_code, tables)


def answered(row: sa.Select[Any], beyond: ColumnElement[Any] | None = None) -> sa.Select[Any]:
    """Return the row of an answer, with ``beyond`` in place of a ``body`` of more than ``most`` bytes."""
    answer = row.subquery(_ANSWER)
    within = sa.func.octet_length(answer.c.body) <= bound(MOST, sa.BigInteger())
    body = sa.case((within, answer.c.body), else_=sa.null() if beyond is None else beyond).label("body")
    return sa.select(*(body if column.name == "body" else column for column in answer.c))


def kept(make: Callable[[Shape], Statement]) -> Callable[[Shape], Statement]:
    """Cache ``make`` for each shape, in a memory that is bounded: callers decide how many shapes there are."""
    statements: Bounded[Shape, Statement] = Bounded(MOST_KEPT, MOST_KEPT_TEXT)

    def made(shape: Shape) -> Statement:
        statement = statements.get(shape)
        if statement is None:
            statement = make(shape)
            if statement.size <= LONGEST_KEPT:
                statements.remember(shape, statement, statement.size)
        return statement

    return made


def document(
    form: Form, row: str, order: list[ColumnElement[Any]] | None = None, line: str | None = None
) -> ColumnElement[Any]:
    """Return all rows as one text in the form that was asked for.

    ``row`` is SQL for one of them, a record or JSON. ``line``: SQL for it as a line, None for that of a record. JSON is
    an array, ``[]`` without rows, in which the stripped form has no key that is null. Lines of comma-separated values
    stand below a line of their names, and without rows there are no names.
    """
    rows: ColumnElement[Any] = sa.literal_column(row)
    if form != "csv":
        aggregated = postgresql.aggregate_order_by(rows, *order) if order else rows
        text = sa.func.coalesce(sa.cast(sa.func.json_agg(aggregated), sa.Text()), sa.literal_column("'[]'"))
        return text if form == "json" else sa.cast(sa.func.json_strip_nulls(sa.cast(text, Type("json"))), sa.Text())
    names = sa.func.json_object_keys(sa.func.json_agg(rows).op("->")(sa.literal_column("0"))).table_valued("name")
    name = names.c.name
    doubled = sa.func.replace(name, _string('"'), _string('""'))
    plain = sa.func.concat(_string('"'), doubled, _string('"'))
    shown = sa.case((name.op("~")(_string('[",\r\n]')), plain), else_=name)
    header = sa.select(sa.func.coalesce(sa.func.string_agg(shown, _string(",")), _string(""))).select_from(names)
    end = _string("\n")
    ordered = postgresql.aggregate_order_by(end, *order) if order else end
    as_text: ColumnElement[Any] = sa.literal_column(record_text(row) if line is None else line)
    lines = sa.func.coalesce(sa.func.string_agg(as_text, ordered), _string(""))
    return sa.func.concat(header.scalar_subquery(), end, lines)


def record_text(row: str) -> str:
    """Return SQL for a record as values separated by commas, quoted if they must be.

    It is the text of a record without its parentheses, and with single backslashes: only records double them.
    """
    return f"replace(substring({row}::text, 2, length({row}::text) - 2), '\\\\', '\\')"


def _string(text: str) -> ColumnElement[Any]:
    return sa.literal_column(string(text))


def directed(value: ColumnElement[Any], *, descending: bool, nulls: str | None) -> ColumnElement[Any]:
    term = value.desc() if descending else value.asc()
    if nulls is None:
        return term
    return term.nulls_first() if nulls == "first" else term.nulls_last()


VERSION_TYPES = frozenset((
    "smallint", "integer", "bigint", "uuid", "timestamp without time zone", "timestamp with time zone",
))  # fmt: skip
"""Types of columns that can be versions: short, and with one text for each value."""

_DIGITS = 32


def version_of(table: Table, column: str | None) -> str | None:
    """Return the operator's version column, if the table has it and it can be a version."""
    if column is None or column not in table.columns or table.columns[column].base_type not in VERSION_TYPES:
        return None
    return column


def tag(table: Table, version: str | None) -> str:
    """Return the ETag of a row of the table without its quotes. ``version`` None: a digest.

    A version appears in it as in a JSON answer: a client that has read a list of rows knows their ETags as well. A
    digest replaces a NULL version.
    """
    row = f"({quote(table.name)}.*)::text"
    digest = f"left(encode(sha256(convert_to({row}, 'UTF8')), 'hex'), {_DIGITS})"
    if version is None:
        return digest
    return f"coalesce(to_jsonb({reference(table.name, version)}) #>> '{{}}', {digest})"


_CHANGED = "fencing.a_table_that_has_changed"


def unchanged(table: Table, generation: UUID | None) -> str:
    """Return SQL that is true while the table and its naming are as cached. Otherwise it raises an error that
    ``tells_of_change`` knows.

    It compares the meaning of the name, the kind, every column and the primary key. Nothing may have been added that
    acts on its own: rules, triggers, children, policies. ``fencing.check_unchanged_v1`` does it. If other tables carry
    out its writes, ``fencing.check_foreign_v1`` looks for foreign tables among them. ``generation`` is that of the
    naming, None where names do not matter.
    """
    checked = _called(
        "check_unchanged_v1",
        *_relation(table)[:3],
        _boolean(table.has_rules),
        _boolean(table.has_children),
        _boolean(table.row_security),
        f"{string(table.column_versions)}::xid[]",
        _boolean(not table.is_view),
        "NULL" if table.primary_key_index is None else str(table.primary_key_index),
        _boolean(table.has_statement_triggers),
        _boolean(table.has_row_triggers),
        _boolean(table.distributed),
    )
    if generation is not None:
        checked += f" AND {_called('check_table_naming_v1', str(table.oid), string(str(generation)))}"
    if table.writes_others:
        checked += f" AND {_called('check_foreign_v1', str(table.oid), _boolean(table.reaches_foreign))}"
    return checked


def same_relation(table: Table) -> str:
    """Return SQL like ``unchanged``, for reads: the name means this table, and it still is a table.

    A read of another object would answer with other data, or run the code of a view or a policy.
    """
    return _called("check_relation_v1", *_relation(table))


def same_version(table: Table) -> str:
    """Return SQL like ``unchanged``: nothing was added that may read the settings of a request, such as a check."""
    return _called("check_version_v1", str(table.oid), string(table.version))


def changed_meanwhile() -> SqlError:
    """Return the error that says so of a table, for a check outside the statement."""
    return SqlError("42P01", _CHANGED)


# PostgreSQL's own triggers of a foreign key on the table it refers to.
_ACTIONS = {
    verb: ", ".join(
        f"'pg_catalog.\"RI_FKey_{action}_{verb}\"'::regproc" for action in ("cascade", "setnull", "setdefault")
    )
    for verb in ("del", "upd")
}


def same_references(table: Table, verb: str, known: Sequence[int]) -> str:
    """Return SQL that is true while no foreign key but the known ones changes other rows after a ``del`` or ``upd``.

    Otherwise it raises an error that ``tells_of_change`` knows: the name of no relation is checked.
    """
    oids = ", ".join(map(str, known))
    return (
        "CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger AS g "
        f"WHERE g.tgrelid = {table.oid} AND g.tgfoid IN ({_ACTIONS[verb]}) "
        f"AND g.tgconstraint <> ALL (ARRAY[{oids}]::oid[])) "
        f"THEN {_called('check_relation_v1', '0', string(''), string(table.kind), 'false')} ELSE true END"
    )


def tells_of_change(error: SqlError) -> bool:
    """Whether a statement has found that its table has changed. Nothing is written then."""
    return error.sqlstate == "42P01" and _CHANGED in error.message


def _relation(table: Table) -> list[str]:
    name = string(f"{quote(table.schema)}.{quote(table.name)}")
    return [str(table.oid), name, f"'{table.kind}'", _boolean(table.row_security)]


def _called(function: str, *arguments: str) -> str:
    return f"fencing.{function}({', '.join(arguments)})"


def _boolean(value: bool) -> str:  # noqa: FBT001 - it is all this is about
    return "true" if value else "false"


_REGCONFIG = Type("regconfig")

Bind: TypeAlias = Callable[[int, sa.types.TypeEngine[Any]], ColumnElement[Any]]
"""From the number of a value and the type it is sent in to the expression that yields it.

The types are text, text[] (``in``), integer (JSON indexes), bigint (limits) and regconfig (languages).
"""
Present: TypeAlias = Callable[[int], ColumnElement[Any]]
"""From the number of an embedded table to the condition that it has a row."""

_OPERATORS = {
    "eq": "=", "neq": "<>", "gt": ">", "gte": ">=", "lt": "<", "lte": "<=", "isdistinct": "IS DISTINCT FROM",
    "like": "LIKE", "ilike": "ILIKE", "match": "~", "imatch": "~*",
    "cs": "@>", "cd": "<@", "ov": "&&", "sl": "<<", "sr": ">>", "nxr": "&<", "nxl": "&>", "adj": "-|-",
}  # fmt: skip
_TEXT_OPERATORS = frozenset(("like", "ilike", "match", "imatch"))
_SEARCHES = {
    "fts": sa.func.to_tsquery, "plfts": sa.func.plainto_tsquery,
    "phfts": sa.func.phraseto_tsquery, "wfts": sa.func.websearch_to_tsquery,
}  # fmt: skip
_QUANTIFIERS = {"any": sa.func.any, "all": sa.func.all}


def bound_slot(slot: int, type_: sa.types.TypeEngine[Any]) -> ColumnElement[Any]:
    return bound(f"v{slot}", type_)


class Conditions:
    """The conditions, columns and orders that requests can ask of one table.

    ``source`` is the name under which the table's columns stand in the statement: the table's own, or an alias.
    All raise 42703 for a column the table does not have.
    """

    def __init__(self, table: Table, bind: Bind = bound_slot, present: Present | None = None) -> None:
        """``present`` is needed where tables are embedded."""
        self.table = table
        self._bind, self._present = bind, present

    def condition(self, shape: FilterShape, source: str) -> ColumnElement[Any]:
        if shape[0] in ("and", "or"):
            children = (self.condition(child, source) for child in shape[2])
            condition: ColumnElement[Any] = (sa.and_ if shape[0] == "and" else sa.or_)(*children)
        elif shape[0] == "embed":
            assert self._present is not None
            condition = self._present(shape[2])
        else:
            condition = self._comparison(shape, source)
            return sa.not_(condition) if shape[2] else condition
        return sa.not_(condition) if shape[1] else condition

    def field(self, field: FieldShape, source: str, *, comparable: bool = True) -> tuple[ColumnElement[Any], str]:
        """Return the expression of a field, and the type of its values: for a domain its base type.

        ``comparable``: JSON comes as jsonb, which unlike json has an equality and an order.
        """
        name, path = field
        column = self.table.columns.get(name)
        if column is None:
            raise DialectError("42703", 400, f"column {self.table.name}.{name} does not exist")
        value: ColumnElement[Any] = sa.literal_column(reference(source, name))
        if not path:
            return value, column.base_type
        # A jsonb column stays as it is: an index on the expression must match.
        if not column.is_json or (comparable and column.base_type == "json" and path[-1][0] == "->"):
            value = sa.func.to_jsonb(value)
        for arrow, is_index, slot in path:
            value = value.op(arrow)(self._bind(slot, sa.Integer() if is_index else sa.Text()))
        return value, "text" if path[-1][0] == "->>" else "jsonb"

    def selected(self, select: tuple[SelectShape, ...], source: str) -> list[ColumnElement[Any]]:
        """Return the columns of the answer; nothing selected means all."""
        if not select:
            return [_all(source)]
        return [self._one_selected(field, label, cast, source) for field, label, cast in select]

    def ordered(self, term: OrderShape, source: str) -> ColumnElement[Any]:
        return directed(self.field(term[0], source)[0], descending=term[1], nulls=term[2])

    def _one_selected(self, field: FieldShape | None, label: str, cast: str | None, source: str) -> ColumnElement[Any]:
        if field is None:
            return _all(source)
        value = self.field(field, source, comparable=False)[0]
        return (value if cast is None else sa.cast(value, Type(cast))).label(quoted(label))

    def _comparison(self, shape: FilterShape, source: str) -> ColumnElement[Any]:
        field, operator, _, slot, language = shape
        value, type_name = self.field(field, source)
        if operator == "is":
            return value.op("IS", is_comparison=True)(sa.literal_column(IS_WORDS[slot]))
        if self._is_domain(field):
            # PostgreSQL does so by itself, but not for domains over an enum, which have no operators at all.
            value = sa.cast(value, Type(type_name))
        if operator == "in":
            texts = self._bind(slot, postgresql.ARRAY(sa.Text()))
            return value.op("=", is_comparison=True)(sa.func.any(sa.cast(texts, Type(f"{type_name}[]"))))
        text = self._bind(slot, sa.Text())
        if operator in _SEARCHES:
            configuration = [] if language is None else [sa.cast(self._bind(language, _REGCONFIG), _REGCONFIG)]
            searched = value if self._is_tsvector(field) else sa.func.to_tsvector(*configuration, value)
            return searched.op("@@", is_comparison=True)(_SEARCHES[operator](*configuration, text))
        operator, _, quantifier = operator.removesuffix(")").partition("(")
        if operator in _TEXT_OPERATORS:
            type_name = "text"
        operand: ColumnElement[Any] = sa.cast(text, Type(f"{type_name}[]" if quantifier else type_name))
        if quantifier:
            operand = _QUANTIFIERS[quantifier](operand)
        return value.op(_OPERATORS[operator], is_comparison=True)(operand)

    def _is_domain(self, field: FieldShape) -> bool:
        name, path = field
        return not path and self.table.columns[name].is_domain

    def _is_tsvector(self, field: FieldShape) -> bool:
        name, path = field
        return not path and self.table.columns[name].base_type == "tsvector"


def _all(source: str) -> ColumnElement[Any]:
    return sa.literal_column(f"{quote(source)}.*")


# Names of our own inside statements, unlikely to be anyone's table.
_TARGET, _JUNCTION, _ROWS = "gw_target", "gw_junction", "gw_rows"


class Embedding:
    """The embedded tables of one read of ``origin``, whose rows stand in the statement under its own name."""

    def __init__(
        self, origin: Table, relations: Relations, embeds: tuple[EmbedShape, ...], bind: Bind = bound_slot
    ) -> None:
        """Find the related table. Raise PGRST200 or PGRST201 if there is none, or more than one."""
        self._origin, self._bind = origin, bind
        self._embeds = [
            _Embed(shape, relation, Conditions(relation.target, bind))
            for shape in embeds
            for relation in (relations.find(origin, shape.name, shape.hint),)
        ]

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables that are read beside the one asked for."""
        tables = (table for embed in self._embeds for table in (embed.relation.target, *embed.relation.between))
        return tuple({(table.schema, table.name): table for table in tables}.values())

    def columns(self) -> list[ColumnElement[Any]]:
        """Return the related rows as JSON: one object or null if there is at most one, else an array."""
        return [self._value(embed) for embed in self._embeds if embed.shape.select]

    def required(self) -> list[ColumnElement[Any]]:
        return [self._exists(embed) for embed in self._embeds if embed.shape.inner]

    def present(self, number: int) -> ColumnElement[Any]:
        return self._exists(self._embeds[number])

    def ordered(self, term: OrderShape) -> ColumnElement[Any]:
        """Return a term of an order by a field of the one related row. Raise PGRST118 if there can be several."""
        assert term.embed is not None
        embed = self._embeds[term.embed]
        if not embed.relation.to_one:
            raise DialectError(
                "PGRST118",
                400,
                f"A related order on '{embed.shape.label}' is not possible",
                details=f"'{self._origin.name}' and '{embed.shape.label}' do not form a many-to-one or one-to-one "
                "relationship",
            )
        value = self._rows(embed, [embed.conditions.field(term.field, _TARGET)[0]]).scalar_subquery()
        return directed(value, descending=term.descending, nulls=term.nulls)

    def _value(self, embed: "_Embed") -> ColumnElement[Any]:
        rows = self._rows(embed, embed.conditions.selected(embed.shape.select, _TARGET))
        rows = rows.order_by(*(embed.conditions.ordered(term, _TARGET) for term in embed.shape.order))
        page = self._page(embed, rows).subquery(_ROWS)
        row: ColumnElement[Any] = sa.literal_column(f"{_ROWS}.*")
        if embed.relation.to_one:
            value: ColumnElement[Any] = sa.func.row_to_json(row)
        else:
            value = sa.func.coalesce(sa.func.json_agg(row), sa.literal_column("'[]'::json"))
        return sa.select(value).select_from(page).scalar_subquery().label(quoted(embed.shape.label))

    def _exists(self, embed: "_Embed") -> ColumnElement[Any]:
        return sa.exists(self._page(embed, self._rows(embed, [sa.literal_column("1")])))

    def _page(self, embed: "_Embed", rows: sa.Select[Any]) -> sa.Select[Any]:
        if embed.shape.limit is not None:
            rows = rows.limit(self._bind(embed.shape.limit, sa.BigInteger()))
        if embed.shape.offset is not None:
            rows = rows.offset(self._bind(embed.shape.offset, sa.BigInteger()))
        return rows

    def _rows(self, embed: "_Embed", columns: list[ColumnElement[Any]]) -> sa.Select[Any]:
        relation = embed.relation
        sources: list[sa.FromClause] = [from_table(relation.target).alias(_TARGET)]
        junction = relation.junction
        if junction is None:
            joined = _equal(self._origin.name, _TARGET, relation.pairs)
        else:
            sources.append(from_table(junction.table).alias(_JUNCTION))
            joined = [
                *_equal(self._origin.name, _JUNCTION, junction.origin),
                *_equal(_TARGET, _JUNCTION, junction.target),
            ]
        filters = (embed.conditions.condition(one, _TARGET) for one in embed.shape.filters)
        return sa.select(*columns).select_from(*sources).where(*joined, *filters)


@dataclass(frozen=True, slots=True)
class _Embed:
    shape: EmbedShape
    relation: Relationship
    conditions: Conditions


def _equal(left: str, right: str, pairs: Pairs) -> list[ColumnElement[Any]]:
    return [
        sa.literal_column(reference(left, one)).op("=", is_comparison=True)(sa.literal_column(reference(right, other)))
        for one, other in pairs
    ]
