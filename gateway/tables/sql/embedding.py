"""Embedded tables in SQL: each is a subquery over the rows related to a row of the table that is asked for."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.expression import ColumnElement

from gateway.errors import DialectError
from gateway.tables.catalog import Pairs, Relations, Relationship, Table
from gateway.tables.sql.expressions import Bind, Conditions, bound_slot, directed, from_table, quoted, reference
from gateway.tables.sql.shape import EmbedShape, OrderShape

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
        """Return the conditions that come with ``!inner``."""
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
        """Return the related rows that pass the embedded table's own filters."""
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
