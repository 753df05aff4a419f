"""Fields and filters as SQL expressions.

Values travel as text, and the server casts them to the type in the catalog. ``bind`` decides where a value comes from.
It is a parameter in an ordinary statement, and a column of a list of values in a statement for many requests.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.expression import ColumnElement

from gateway.errors import DialectError
from gateway.tables.catalog.snapshot import Table
from gateway.tables.dialect.filters import IS_WORDS
from gateway.tables.sql.expressions import Type, bound, directed, quote, quoted, reference
from gateway.tables.sql.shape import FieldShape, FilterShape, OrderShape, SelectShape

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
    """Return the value as a parameter of its own."""
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
        """One filter, or one tree of filters."""
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
        """One term of an order."""
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
