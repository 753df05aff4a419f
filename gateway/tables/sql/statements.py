"""SQL text for the shapes of requests, made once for each and kept.

Values are parameters and travel as text, cast by the server to the type in the catalog. Identifiers come from the
catalog, except for aliases; every one of them goes through one quoting function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.base import ReadOnlyColumnCollection
from sqlalchemy.sql.expression import CTE, ColumnElement
from sqlalchemy.sql.functions import Function as Called

from gateway.tables.catalog import Column, Table
from gateway.tables.dialect.errors import ANSWER
from gateway.tables.dialect.grammar import not_implemented
from gateway.tables.dialect.request import Form
from gateway.tables.functions import Function, Parameter
from gateway.tables.naming import Naming
from gateway.tables.relations import Relations
from gateway.tables.sql.expressions import (
    Conditions,
    Embedding,
    Statement,
    Type,
    answered,
    bound,
    checked,
    compiled,
    directed,
    document,
    from_table,
    kept,
    quote,
    quoted,
    record_text,
    reference,
    same_references,
    same_relation,
    same_version,
    string,
    tag,
    unchanged,
)
from gateway.tables.sql.shape import CHECKS, CLAIMS, HELD, FilterShape, LockShape, ReadShape, SelectShape, WriteShape

# Their texts hold nothing that would have to be escaped.
_PLAIN_TYPES = frozenset(("smallint", "integer", "bigint", "uuid", "date", "boolean"))
# Names of our own inside statements, unlikely to be anyone's table.
_BODY, _ELEMENT, _FENCE, _WRITE, _PAGE = "gw_body", "gw_element", "gw_fence", "gw_write", "gw_page"
_VALUES, _ASKED, _ANSWERS = "gw_values", "gw_asked", "gw_answers"
_CALL, _RESULT = "gw_call", "gw_result"


class Statements:
    """The statements of one table: made for one state of the catalog, thrown away with it."""

    def __init__(
        self,
        table: Table,
        named: Naming | None,
        relations: Relations | None = None,
        version: str | None = None,
        generation: UUID | None = None,
        references: Sequence[int] = (),
    ) -> None:
        """``named`` None: rows of this table have no names, and its writes are not checked (observe mode only).

        ``relations`` None: nothing is related to it. ``version``: the column that is the ETag of a row. ``generation``:
        the naming that writes prove. ``references``: the foreign keys, by oid, that are known to change rows which
        refer to the table.
        """
        self.table = table
        self._generation = generation
        self._relations = relations or Relations({})
        self._named = named
        self._references = references
        self.read: Callable[[ReadShape], Statement] = kept(self._read)
        self.write: Callable[[WriteShape], Statement] = kept(self._write)
        self.write_acting: Callable[[WriteShape], Statement] = kept(self._write_acting)
        self.matching: Callable[[ReadShape], Statement] = kept(self._matching)
        self.version_of: Callable[[tuple[FilterShape, ...]], Statement] = kept(self._version_of)
        self.lock: Callable[[LockShape], Statement] = kept(self._lock)
        self._target = from_table(table)
        self._conditions = Conditions(table)
        self._tag: ColumnElement[Any] = sa.literal_column(tag(table, version))

    def _read(self, shape: ReadShape) -> Statement:
        name = self.table.name
        embedding = Embedding(self.table, self._relations, shape.embeds)
        tables = (self.table, *embedding.tables)
        conditions = Conditions(self.table, present=embedding.present)
        where = [conditions.condition(one, name) for one in shape.filters] + embedding.required()
        columns = conditions.selected(shape.select, name) if shape.select or not shape.embeds else []
        rows = sa.select(*columns, *embedding.columns()).select_from(self._target).where(*where)
        rows = rows.order_by(
            *(conditions.ordered(term, name) if term.embed is None else embedding.ordered(term) for term in shape.order)
        )
        total = sa.select(sa.func.count()).select_from(self._target).where(*where).scalar_subquery()
        row = sa.select(
            _if_asked(" AND ".join(map(same_relation, tables))).label("current"),
            sa.func.count().label("touched"),
            document(shape.form, f"{_PAGE}.*").label("body"),
            (total if shape.counted else sa.null()).label("total"),
            (self._tag_of(where) if shape.tagged else sa.null()).label("etag"),
        )
        return compiled(
            answered(row.select_from(_page(rows, shape))),
            runs_code=any(table.runs_code_when_read for table in tables),
            tables=tuple(table.title for table in tables),
        )

    def _tag_of(self, where: list[ColumnElement[Any]]) -> ColumnElement[Any]:
        """Return the ETag of the one row; if inheriting tables have more rows, that of one of them."""
        return sa.select(sa.func.min(self._tag)).select_from(self._target).where(*where).scalar_subquery()

    def _version_of(self, filters: tuple[FilterShape, ...]) -> Statement:
        """Return the ETags of the rows that the filters match. The rows stay unchanged until the transaction ends."""
        where = self._where(filters)
        return compiled(sa.select(self._tag.label("etag")).select_from(self._target).where(*where).with_for_update())

    def _lock(self, shape: LockShape) -> Statement:
        """Lock the rows of a write, and return where they are, which of their columns it changes, and their keys.

        A column changes if its bytes do, as PostgreSQL's own foreign keys see it.
        """
        changed: list[ColumnElement[Any]] = [sa.null()]
        sources: list[Any] = []
        if shape.columns:
            body = self._body(shape)
            sources = body.sources
            for name in shape.columns:
                value = sa.cast(body.values[name], Type(self.table.columns[name].type))
                before, after = (sa.cast(sa.func.row(one), Type("record")) for one in (self._target.c[name], value))
                differs = before.op("OPERATOR(pg_catalog.*<>)", is_comparison=True)(after)
                changed.append(sa.case((differs, sa.literal_column(string(name)))))
        rows = sa.select(
            self._place("tableoid", "bigint").label("relation"),
            self._place("ctid", "text").label("place"),
            sa.func.array_remove(postgresql.array[Any](changed, type_=sa.Text()), sa.null()).label("changed"),
            postgresql.array[Any](
                [sa.cast(self._target.c[name], sa.Text()) for name in shape.keys], type_=sa.Text()
            ).label("keys"),
        )
        where = self._where(shape.filters)
        rows = rows.select_from(self._target, *sources).where(*where)
        return compiled(rows.with_for_update(of=self._target, key_share=not shape.exclusive))

    def remaining(self, keys: Sequence[str]) -> str:
        """Return a statement that counts the rows with these keys. ``$1``: arrays of texts, one for each column."""
        name = self.table.name
        own = ", ".join(reference(name, key) for key in keys)
        given = ", ".join(f"u.k{number}::{self.table.columns[key].exact_type}" for number, key in enumerate(keys))
        arrays = ", ".join(f"${number}::text[]" for number in range(1, len(keys) + 1))
        names = ", ".join(f"k{number}" for number in range(len(keys)))
        table = f"{quote(self.table.schema)}.{quote(name)}"
        return (
            f"SELECT count(*) AS found FROM {table} WHERE ({own}) IN "  # noqa: S608 - quoted names
            f"(SELECT {given} FROM unnest({arrays}) AS u ({names}))"
        )

    def _where(self, filters: tuple[FilterShape, ...]) -> list[ColumnElement[Any]]:
        return [self._conditions.condition(one, self.table.name) for one in filters]

    def _place(self, column: str, type_: str) -> ColumnElement[Any]:
        return sa.literal_column(f"{reference(self.table.name, column)}::{type_}")

    def _located(self) -> ColumnElement[Any]:
        places = sa.cast(bound("places", postgresql.ARRAY(sa.Text())), Type("tid[]"))
        relations = bound("relations", postgresql.ARRAY(postgresql.OID()))
        own = sa.tuple_(
            sa.literal_column(reference(self.table.name, "tableoid")),
            sa.literal_column(reference(self.table.name, "ctid")),
        )
        return own.in_(sa.select(sa.func.unnest(relations), sa.func.unnest(places)))

    def _matching(self, shape: ReadShape) -> Statement:
        """Return a row for each match of the filters, on this page or not: to be counted, or estimated."""
        embedding = Embedding(self.table, self._relations, shape.embeds)
        conditions = Conditions(self.table, present=embedding.present)
        where = [conditions.condition(one, self.table.name) for one in shape.filters] + embedding.required()
        return compiled(sa.select(sa.literal_column("1")).select_from(self._target).where(*where))

    def _write(self, shape: WriteShape) -> Statement:
        statement = self._write_one(shape)
        if self._named is None or not shape.fenced or not _may_be_together(shape, self._named):
            return statement
        return replace(statement, together=self._write_together(shape))

    def _write_acting(self, shape: WriteShape) -> Statement:
        """Return a write under a role, which looks at no fence. The one for several is told which fences carry tokens.

        There is none for several if code of the table may read the settings of a request: each has its own.
        """
        if self._named is None or self.table.reads_settings or not _may_be_together(shape, self._named):
            return self._write_one(shape)
        # One that goes alone has no settings either.
        return replace(self._write_one(shape, without_settings=True), together=self._write_together(shape))

    def _write_together(self, shape: WriteShape) -> Statement:
        """Return the statement of several writes, each under another resource, which its values name.

        They share a snapshot, and each fence is looked at and locked as for one of them. An update has only rows of its
        own resource, so no row is of two updates. A new row does not tell which request it is of. So the values of each
        body must have the name of its own request, and each request exactly one row of its name. An error undoes all.
        """
        assert self._named is not None
        asked = _asked(shape)
        fence = _fence(asked.c) if shape.fenced else _told(asked)
        body = self._body(shape, fence.c.payload)
        name: ColumnElement[Any] = sa.literal_column(name_expression(self._named)).label("name")
        touched: ColumnElement[Any]
        inserted: ColumnElement[Any]
        stray: ColumnElement[Any]
        held = fence.c.number.is_not(None) if shape.fenced else asked.c.held
        first = asked.c.number == sa.literal_column("1")
        if shape.action == "POST":
            given: ColumnElement[Any] = sa.literal_column(name_expression(self._named, _BODY))
            rows = sa.select(*body.values.values()).select_from(fence, *body.sources)
            refused = sa.func.fencing.refuse_mismatch_v1(given)
            rows = rows.where(sa.case((given == fence.c.resource, sa.true()), else_=refused))
            added = postgresql.insert(self._target).from_select([self._target.c[one] for one in body.values], rows)
            write = added.returning(name).cte(_WRITE)
            own = write.c.name == asked.c.resource
            touched = inserted = sa.func.count(own)
            strays, stray = sa.and_(held, touched != sa.literal_column("1")), asked.c.resource
        else:
            # A list of one value allows no hash join. That would lock rows in the order in which the table has them.
            conditions = Conditions(self.table, lambda slot, _: postgresql.array([fence.c[f"v{slot}"]]))
            listed = [(field, "in", *rest) for field, _, *rest in shape.filters]
            change = sa.update(self._target).values({self._target.c[one]: value for one, value in body.values.items()})
            change = change.where(*(conditions.condition(one, self.table.name) for one in listed))
            write = change.returning(name, fence.c.number).cte(_WRITE)
            own = write.c.number == asked.c.number
            touched, inserted = sa.func.count(own), sa.literal_column("0")
            another = (write.c.name == asked.c.resource).is_not(sa.true())
            strays = sa.func.count(own).filter(another) > sa.literal_column("0")
            stray = sa.func.min(write.c.name).filter(another)
        joined = asked.outerjoin(fence, fence.c.number == asked.c.number).outerjoin(write, own)
        if not shape.fenced:
            return self._answered_together(shape, asked, joined, touched, inserted, strays, stray)
        row = sa.select(
            _if_asked(self._as_planned(shape), first).label("current"),
            touched.label("touched"),
            sa.null().label("body"),
            inserted.label("inserted"),
            sa.null().label("location"),
            sa.null().label("etag"),
            sa.case((strays, sa.func.fencing.refuse_mismatch_v1(stray))).label("strays"),
            held.label("held"),
            sa.and_(sa.not_(held), _overtaken(asked.c)).label("overtaken"),
            sa.case((first, _claims())).label("risen"),
        )
        row = row.select_from(joined)
        row = row.group_by(asked.c.number, asked.c.resource, asked.c.epoch, asked.c.value, fence.c.number)
        return compiled(row.order_by(asked.c.number))

    def _answered_together(
        self,
        shape: WriteShape,
        asked: CTE,
        joined: sa.FromClause,
        touched: ColumnElement[Any],
        inserted: ColumnElement[Any],
        strays: ColumnElement[Any],
        stray: ColumnElement[Any],
    ) -> Statement:
        """Return one row for all requests: numbers of rows in their order, and rows of other resources."""
        each = (
            sa.select(asked.c.number, touched.label("touched"), inserted.label("inserted"), strays.label("strays"))
            .add_columns(stray.label("stray"))
            .select_from(joined)
            .group_by(asked.c.number, asked.c.resource, asked.c.held)
            .subquery(_ANSWERS)
        )
        unchanged = f"{self._as_planned(shape)} AND {same_version(self.table)}"
        return compiled(
            sa.select(
                _if_asked(unchanged).label("current"),
                sa.func.array_agg(postgresql.aggregate_order_by(each.c.touched, each.c.number)).label("touched"),
                sa.func.array_agg(postgresql.aggregate_order_by(each.c.inserted, each.c.number)).label("inserted"),
                sa.func.count().filter(each.c.strays).label("strays"),
                sa.func.min(each.c.stray).filter(each.c.strays).label("stray"),
            )
        )

    def _write_one(self, shape: WriteShape, *, without_settings: bool = False) -> Statement:
        fence = _fence() if shape.fenced else None
        held = [] if fence is None else [sa.exists(sa.select(fence.c.resource))]
        change = {"PATCH": self._update, "DELETE": self._delete}.get(shape.action, self._insert)(shape, held)
        write = change.returning(*self._returned(shape)).cte(_WRITE)
        resource: ColumnElement[Any] = sa.literal_column(f"{_WRITE}.resource")
        body: ColumnElement[Any] = sa.null()
        if shape.rows:
            ordered = [
                directed(sa.literal_column(f"{_WRITE}.o{number}"), descending=term[1], nulls=term[2])
                for number, term in enumerate(shape.order)
            ]
            body = document(shape.form, f"{_WRITE}.body", ordered, f"{_WRITE}.line")
        as_planned = self._as_planned(shape)
        results: list[ColumnElement[Any]] = [
            _if_asked(f"{as_planned} AND {same_version(self.table)}" if without_settings else as_planned).label(
                "current"
            ),
            sa.func.count().label("touched"),
            body.label("body"),
            sa.func.count().filter(sa.literal_column(f"{_WRITE}.inserted")).label("inserted"),
            (sa.func.min(sa.literal_column(f"{_WRITE}.location")) if shape.location else sa.null()).label("location"),
            (sa.func.min(sa.literal_column(f"{_WRITE}.etag")) if shape.tagged else sa.null()).label("etag"),
        ]
        if self._named is not None:
            results += _verification(resource, raises=shape.fenced)
        if held:
            overtaken = sa.and_(sa.not_(held[0]), _overtaken())
            results += [held[0].label("held"), overtaken.label("overtaken"), _claims().label("risen")]
        row = sa.select(*results).select_from(write)
        if shape.rows:
            too_large = sa.func.fencing.refuse_mismatch_v1(sa.literal_column(string(ANSWER)))
            row = answered(row, sa.cast(too_large, sa.Text()))
        return compiled(row)

    def _as_planned(self, shape: WriteShape) -> str:
        """Return SQL that checks the table, and that a delete or a new key has no effects that the plan did not know.

        The tables behind a view, and partitions, are looked at in a statement of its own (``execute/reached_rows.py``).
        """
        check = unchanged(self.table, self._generation)
        if self.table.is_view:
            return check
        if shape.action == "DELETE":
            return f"{check} AND {same_references(self.table, 'del', self._references)}"
        updates = shape.action == "PATCH" or (shape.conflict is not None and shape.conflict[0] == "merge")
        if updates and self.table.may_change_keys(
            set(shape.columns) - set(shape.conflict[1] if shape.conflict else ())
        ):
            return f"{check} AND {same_references(self.table, 'upd', self._references)}"
        return check

    def _update(self, shape: WriteShape, held: list[Any]) -> Any:
        body = self._body(shape)
        changes = {self._target.c[name]: value for name, value in body.values.items()}
        where = self._where(shape.filters)
        guard = [self._guard(where)] if shape.guarded else []
        located = [self._located()] if shape.located else []
        return sa.update(self._target).values(changes).where(*held, *located, *where, *guard)

    def _delete(self, shape: WriteShape, held: list[Any]) -> Any:
        where = self._where(shape.filters)
        located = [self._located()] if shape.located else []
        return sa.delete(self._target).where(*held, *located, *where)

    def _insert(self, shape: WriteShape, held: list[Any]) -> Any:
        if shape.default_row:
            name = next(column.name for column in self.table.columns.values() if not column.generated)
            return postgresql.insert(self._target).values({self._target.c[name]: sa.literal_column("DEFAULT")})
        body = self._body(shape)
        # PUT: the row of the body must be the one the URL names.
        where = [self._conditions.condition(one, _BODY) for one in shape.filters] if shape.action == "PUT" else []
        rows = sa.select(*body.values.values()).select_from(*body.sources).where(*held, *where)
        names = [self._target.c[name] for name in body.values]
        change = postgresql.insert(self._target).from_select(names, rows)
        return change if shape.conflict is None else self._resolved(change, shape)

    def _resolved(self, change: Any, shape: WriteShape) -> Any:
        """Return ON CONFLICT. It never overwrites the columns in conflict or those of the resource's name.

        So RETURNING shows the name that the row already had, and a row of another resource is detected. An upsert on a
        unique key could otherwise rewrite the primary key.
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
            changes = {self._target.c[target[0]]: sa.literal_column(reference(self.table.name, target[0]))}
        guard = self._guard([]) if shape.guarded else None
        return change.on_conflict_do_update(index_elements=index, set_=changes, where=guard)

    def _guard(self, where: Sequence[ColumnElement[Any]]) -> ColumnElement[Any]:
        """Return a condition on the name of a row before its change: a claimed one, or an error that undoes all.

        It is part of the statement's own condition. So it is judged again on the version of the row that is changed in
        the end, if another transaction has changed it meanwhile. A join with the row as it was would keep its old
        values. ``where`` occurs in it once more, because conditions are evaluated in any order.
        """
        assert self._named is not None
        name: ColumnElement[Any] = sa.literal_column(name_expression(self._named))
        claimed = name.op("=", is_comparison=True)(sa.func.any(bound("claimed", postgresql.ARRAY(sa.Text()))))
        covered = sa.case((claimed, sa.true()), else_=sa.func.fencing.refuse_mismatch_v1(name))
        return sa.case((sa.and_(*where), covered), else_=sa.false()) if where else covered

    def _body(self, shape: WriteShape | LockShape, payload: ColumnElement[Any] | None = None) -> "_Body":
        """``payload``: where its text comes from, if not from a value of the statement."""
        columns = [self.table.columns[name] for name in shape.columns]
        document = sa.cast(bound("payload", sa.Text()) if payload is None else payload, Type("json"))
        definition = [sa.column(quoted(column.name), Type(column.type)) for column in columns]
        if not shape.fill_defaults:
            recordset = sa.func.json_to_recordset(document).table_valued(*definition)
            rows = recordset.render_derived(name=_BODY, with_types=True)
            return _Body({column.name: rows.c[column.name] for column in columns}, [rows])
        element = sa.func.json_array_elements(document).table_valued(sa.column("value", Type("json")))
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
            keys = ", ".join(f"{reference(name, key)}::text" for key in self.table.primary_key)
            returned.append(sa.literal_column(f"json_build_array({keys})::text").label("location"))
        if shape.tagged:
            returned.append(self._tag.label("etag"))
        if shape.rows:
            returned.append(self._row(shape.select, "row_to_json({}.*)").label("body"))
            if shape.form == "csv":
                returned.append(self._row(shape.select, record_text("{}.*")).label("line"))
            for number, term in enumerate(shape.order):
                returned.append(self._conditions.field(term[0], name)[0].label(f"o{number}"))
        return returned

    def _inserted(self, shape: WriteShape) -> ColumnElement[Any]:
        """Whether a touched row is new. Only plain tables can tell by xmax; elsewhere an upsert counts as new."""
        if shape.conflict is not None and shape.conflict[0] == "merge" and self.table.kind == "r":
            return sa.literal_column(f"{reference(self.table.name, 'xmax')} = 0")
        return sa.true() if shape.action in ("POST", "PUT") else sa.false()

    def _row(self, select: tuple[SelectShape, ...], form: str) -> ColumnElement[Any]:
        """One touched row as JSON or as a line: ``form`` is SQL with a place for the name of the row."""
        if not select:
            return sa.literal_column(form.replace("{}", quote(self.table.name)))
        columns = sa.select(*self._conditions.selected(select, self.table.name)).subquery(_PAGE)
        return sa.select(sa.literal_column(form.replace("{}", _PAGE))).select_from(columns).scalar_subquery()


@dataclass(frozen=True, slots=True)
class _Body:
    """The rows of the payload inside a statement: a value for each written column, and where they come from."""

    values: dict[str, ColumnElement[Any]]
    sources: list[Any]


def name_expression(named: Naming, source: str | None = None) -> str:
    """Return SQL for the resource name of a row, NULL if a column of the name is. ``source``: not the table itself.

    Names are compared byte by byte, with any collation of the columns: a case-insensitive one must not make two names
    equal.
    """
    pieces = []
    for literal, column in zip(named.template.literals, (*named.columns, None), strict=True):
        if literal:
            pieces.append(string(literal))
        if column is not None:
            value = reference(source or named.table.name, column.name)
            # The cast to the type we know changes nothing, but fails should the column have got another type meanwhile.
            plain = column.base_type in _PLAIN_TYPES
            pieces.append(f"{value}::{column.base_type}::text" if plain else f"fencing.escape_v1({value}::text)")
    return f'({" || ".join(pieces)}) COLLATE "C"'


def canonical(column: Column) -> str:
    """Return a statement that makes ``$1`` (an array of texts) canonical and escaped, as a column's values."""
    return (
        f"SELECT u.value, fencing.escape_v1(u.value::{column.exact_type}::text) AS escaped "  # noqa: S608 - a type's name
        "FROM unnest($1::text[]) AS u (value)"
    )


def _page(rows: sa.Select[Any], shape: ReadShape) -> sa.Subquery:
    if shape.limited:
        rows = rows.limit(bound("limit", sa.BigInteger()))
    if shape.offset:
        rows = rows.offset(bound("offset", sa.BigInteger()))
    return rows.subquery(_PAGE)


_CLAIM: Mapping[str, sa.types.TypeEngine[Any]] = {
    "resource": sa.Text(), "epoch": sa.Integer(), "value": sa.BigInteger(), "holder": sa.Text(),
}  # fmt: skip
_Claimed: TypeAlias = Mapping[str, ColumnElement[Any]] | ReadOnlyColumnCollection[str, Any]
"""The sources of the resource, the token and the holder of a write."""
_ONE: _Claimed = {name: bound(name, type_) for name, type_ in _CLAIM.items()}


def _may_be_together(shape: WriteShape, named: Naming) -> bool:
    """Return whether one statement can do such writes of several requests: of one row each, and without rows back.

    An insert has to give all values of its name.
    """
    special = shape.rows or shape.location or shape.guarded or shape.tagged or shape.located or shape.fill_defaults
    plain = shape.action in ("PATCH", "POST") and shape.conflict is None and not shape.default_row
    if shape.action == "POST" and not set(named.fields) <= set(shape.columns):
        return False
    return plain and not special and all(map(_is_plain, shape.filters))


def _is_plain(shape: FilterShape) -> bool:
    """Return whether a filter compares a column with one value."""
    return shape[0] not in ("and", "or") and shape[1] == "eq" and not shape[2] and not shape[0][1]


def _asked(shape: WriteShape) -> CTE:
    """Return the values of several requests, a numbered row for each.

    The arrays are in subqueries of their own. A planner that knew how short one is would plan each batch anew.
    """
    types: dict[str, sa.types.TypeEngine[Any]] = {
        **(_CLAIM if shape.fenced else {"resource": sa.Text(), HELD: sa.Boolean()}),
        "payload": sa.Text(),
        **{f"v{one[3]}": sa.Text() for one in shape.filters},
    }
    arrays = (sa.select(bound(name, postgresql.ARRAY(type_))).scalar_subquery() for name, type_ in types.items())
    columns = (sa.column(name, type_) for name, type_ in types.items())
    rows = sa.func.unnest(*arrays).table_valued(*columns, with_ordinality="number").render_derived(name=_VALUES)
    return sa.select(*rows.c).cte(_ASKED)


def _told(asked: CTE) -> CTE:
    """Return the values of those requests whose fences are known to carry their tokens, and are locked."""
    rows = sa.select(*asked.c).where(asked.c.held).order_by(asked.c.number)
    return rows.cte(_FENCE).prefix_with("MATERIALIZED")


def _fence(claimed: _Claimed = _ONE) -> CTE:
    """Return the fence row, locked against a raise, if it carries exactly the presented token and nothing older is
    pending. The values of a request that stands in a list with others come along, in the order of that list.

    The visible version already carries the token. So the raise was committed before this statement's snapshot, or an
    earlier statement of this transaction has made it. The snapshot sees all that the raise has waited for. A fence that
    has risen since is judged again in its newest version, because it is locked.
    """
    fence = sa.table("fence", *(sa.column(name) for name in ("resource", "epoch", "value", "holder")), schema="fencing")
    intent = sa.table("intent", *(sa.column(name) for name in ("resource", "epoch", "value")), schema="fencing")
    epoch, value, holder = claimed["epoch"], claimed["value"], claimed["holder"]
    older = sa.exists().where(
        intent.c.resource == fence.c.resource, sa.tuple_(intent.c.epoch, intent.c.value) < sa.tuple_(epoch, value)
    )
    return (
        sa.select(*([fence.c.resource] if claimed is _ONE else claimed.values()))
        .order_by(*([] if claimed is _ONE else [claimed["number"]]))
        .where(
            fence.c.resource == claimed["resource"],
            fence.c.epoch == epoch,
            fence.c.value == value,
            sa.or_(holder.is_(None), fence.c.holder.is_(None), fence.c.holder == holder),
            sa.not_(older.correlate_except(intent)),
        )
        # A fence that is being raised is skipped, not waited for: others may share this statement's batch.
        .with_for_update(read=True, of=fence, skip_locked=True)
        .cte(_FENCE)
        .prefix_with("MATERIALIZED")
    )


def _overtaken(claimed: _Claimed = _ONE) -> ColumnElement[Any]:
    """Whether the fence carries a higher token already."""
    return sa.func.fencing.is_overtaken_v1(claimed["resource"], claimed["epoch"], claimed["value"])


def _claims() -> ColumnElement[Any]:
    """Return how many fences the claims have raised, which the statement makes for those behind it. Null without any.

    The claims are in a subquery of their own, for the same reason as the question of ``_if_asked``.
    """
    claims = sa.select(sa.cast(bound(CLAIMS, sa.Text()), Type("json"))).scalar_subquery()
    return sa.func.fencing.claim_each_v1(claims)


def _if_asked(check: str, row: ColumnElement[bool] | None = None) -> ColumnElement[Any]:
    """Return a check of the table, for the one statement of a transaction that makes it. ``row``: the one that does.

    The question is in a subquery of its own. A planner that knew the answer would find each custom plan cheaper than a
    generic one. It would make a plan for each write.
    """
    asked: ColumnElement[Any] = sa.select(bound(CHECKS, sa.Boolean())).scalar_subquery()
    if row is not None:
        asked = sa.and_(asked, row)
    return sa.case((asked, sa.literal_column(check)), else_=sa.true())


def _verification(resource: ColumnElement[Any], *, raises: bool) -> list[ColumnElement[Any]]:
    """How many touched rows belong to no claimed resource, and the name of one; or an error that undoes all."""
    if raises:
        covered = resource == bound("resource", sa.Text())
    else:
        # A subquery is hashed: a thousand rows are not compared with a thousand names each.
        claimed = bound("claimed", postgresql.ARRAY(sa.Text()))
        covered = resource.in_(sa.select(sa.func.unnest(claimed)))
    stray = covered.is_not(sa.true())
    strays, name = sa.func.count().filter(stray), sa.func.min(resource).filter(stray)
    if raises:
        return [sa.case((strays > sa.literal_column("0"), sa.func.fencing.refuse_mismatch_v1(name))).label("strays")]
    return [strays.label("strays"), name.label("stray")]


def _or_default(column: Column, element: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the value of a key, or the column's default if the key is absent (JSON null is not absent)."""
    if column.default is None:
        return value
    key: ColumnElement[Any] = sa.literal_column(f"{string(column.name)}::text")
    absent = element.op("->")(key).is_(None)
    return sa.case((absent, sa.literal_column(checked(column.default))), else_=value)


class CallShape(NamedTuple):
    """A call without its values: the ``names`` of its arguments, sorted, and what is asked of the result.

    ``whole``: the body is the one argument, which has no name.
    """

    function: Function
    names: tuple[str, ...]
    whole: bool
    read: ReadShape


@kept
def of_call(shape: CallShape) -> Statement:
    """One row: how many rows the page has (``touched``), the ``body``, and the ``total`` where it is counted.

    Its value ``payload`` is the text of a JSON object with the arguments; or the one argument, bytes in hexadecimal.
    """
    function, read = shape.function, shape.read
    call = _call(shape)
    conditions = Conditions(function.result)
    where = [conditions.condition(one, _CALL) for one in read.filters]
    rows = sa.select(*conditions.selected(read.select, _CALL)).select_from(call).where(*where)
    rows = rows.order_by(*(conditions.ordered(term, _CALL) for term in read.order))
    total: ColumnElement[Any] = sa.null()
    if read.counted:
        total = sa.select(sa.func.count()).select_from(call).where(*where).scalar_subquery()
    row = sa.select(
        sa.func.count().label("touched"),
        _body(function, read.form).label("body"),
        total.label("total"),
    )
    return compiled(answered(row.select_from(_page(rows, read))))


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
    whole = function.composite or form == "csv"
    rows = document(form, f"{_PAGE}.*" if whole else reference(_PAGE, function.name))
    if function.returns_set or form == "csv":
        return rows
    first = sa.cast(rows, Type("json")).op("->")(sa.literal_column("0"))
    return sa.func.coalesce(sa.cast(first, sa.Text()), sa.literal_column("'null'"))
