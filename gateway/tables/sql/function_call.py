"""SQL text for calls of functions. Arguments travel as one JSON text and are cast by the server to the types they need.

The function runs once, whatever is selected, filtered and counted of its result afterwards.
"""

from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.sql.expression import CTE, ColumnElement
from sqlalchemy.sql.functions import Function as Called

from gateway.tables.catalog.functions import Function, Parameter
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.media import Form
from gateway.tables.sql.expressions import (
    Statement,
    Type,
    answered,
    bound,
    compiled,
    document,
    json_array,
    kept,
    quote,
    quoted,
    reference,
    stripped,
)
from gateway.tables.sql.shape import ReadShape
from gateway.tables.sql.where import Conditions

_BODY, _CALL, _PAGE, _RESULT = "gw_body", "gw_call", "gw_page", "gw_result"


class CallShape(NamedTuple):
    """A call without its values: the ``names`` of its arguments, sorted, and what is asked of the result.

    ``whole``: the body is the one argument, which has no name.
    """

    function: Function
    names: tuple[str, ...]
    whole: bool
    read: ReadShape


@kept
def statement(shape: CallShape) -> Statement:
    """One row: how many rows the page has (``touched``), the ``body``, and the ``total`` where it is counted.

    Its value ``payload`` is the text of a JSON object with the arguments; or the one argument, bytes in hexadecimal.
    """
    function, read = shape.function, shape.read
    call = _call(shape)
    conditions = Conditions(function.result)
    where = [conditions.condition(one, _CALL) for one in read.filters]
    rows = sa.select(*conditions.selected(read.select, _CALL)).select_from(call).where(*where)
    rows = rows.order_by(*(conditions.ordered(term, _CALL) for term in read.order))
    if read.limited:
        rows = rows.limit(bound("limit", sa.BigInteger()))
    if read.offset:
        rows = rows.offset(bound("offset", sa.BigInteger()))
    total: ColumnElement[Any] = sa.null()
    if read.counted:
        total = sa.select(sa.func.count()).select_from(call).where(*where).scalar_subquery()
    row = sa.select(
        sa.func.count().label("touched"),
        _body(function, read.form).label("body"),
        total.label("total"),
    )
    return compiled(answered(row.select_from(rows.subquery(_PAGE))))


def _call(shape: CallShape) -> CTE:
    function = shape.function
    used = [one for one in function.parameters if one.name in shape.names]
    sources: list[Any] = []
    arguments: list[ColumnElement[Any]] = []
    if shape.whole:
        arguments.append(_whole(function.parameters[0]))
    elif used:
        text = sa.cast(bound("payload", sa.Text()), Type("json"))
        definition = (sa.column(quoted(one.name), Type(one.type)) for one in used)
        record = sa.func.json_to_record(text).table_valued(*definition)
        sources.append(record.render_derived(name=_BODY, with_types=True))
        arguments += (sa.literal_column(_argument(one)) for one in used)
    if "%" in function.name or "%" in function.schema:
        raise not_implemented("A function with '%' in its name")
    called: Called[Any] = Called(quoted(function.name), *arguments, packagenames=(quoted(function.schema),))
    if function.composite:
        rows: sa.Select[Any] = sa.select(sa.literal_column(f"{_RESULT}.*")).select_from(*sources, called.alias(_RESULT))
    else:
        rows = sa.select(called.label(quoted(function.name))).select_from(*sources)
    return rows.cte(_CALL).prefix_with("MATERIALIZED")


def _argument(parameter: Parameter) -> str:
    value = f"{quote(parameter.name)} => {reference(_BODY, parameter.name)}"
    return f"VARIADIC {value}" if parameter.variadic else value


def _whole(parameter: Parameter) -> ColumnElement[Any]:
    text = bound("payload", sa.Text())
    if parameter.type == "bytea":
        return sa.func.decode(text, sa.literal_column("'hex'"))
    return sa.cast(text, Type(parameter.type))


def _body(function: Function, form: Form) -> ColumnElement[Any]:
    """All rows as one document; without an array around it for a function that returns one thing."""
    if form == "csv":
        return document(form, f"{_PAGE}.*")
    row: ColumnElement[Any] = sa.literal_column(f"{_PAGE}.*" if function.composite else reference(_PAGE, function.name))
    rows = stripped(row) if form == "stripped" else json_array(row)
    if function.returns_set:
        return rows
    first = sa.cast(rows, Type("json")).op("->")(sa.literal_column("0"))
    return sa.func.coalesce(sa.cast(first, sa.Text()), sa.literal_column("'null'"))
