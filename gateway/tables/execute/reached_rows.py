"""Rows that a write reaches by foreign keys: found and locked in its transaction, before its statement.

The rows of the write are locked first. No new row can refer to them from then on. So the rows that refer to them, at
any depth, are all that the statement's cascades will change. Each is locked when it is found, and its name has to be
among the claimed ones. The statement then writes exactly the rows that were locked. Afterwards, with all tables locked
by their use, the foreign keys have to be those that the plan knew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.db import catalog, settings
from gateway.db.database import Transaction
from gateway.errors import GatewayError, RightMissing, SideEffectRefused, SqlError
from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.headers import MAX_PAIRS
from gateway.tables.catalog import Graph
from gateway.tables.dialect.response import Row
from gateway.tables.execute.acting import Acting
from gateway.tables.execute.planning import PlannedWrite
from gateway.tables.side_effects import Place, Reach, Step
from gateway.tables.sql.expressions import changed_meanwhile, quote, reference, unchanged
from gateway.tables.sql.shape import LockShape, lower_filters
from gateway.tables.sql.statements import name_expression

_MAY_LOOK = """
    SELECT bool_and(
        has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
        AND has_table_privilege(c.oid, 'UPDATE') AND NOT row_security_active(c.oid)) AS may
    FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])
"""
_TARGET, _PLACE = "gw_target", "gw_place"
_MOST_NAMED = MAX_PAIRS + 1
_MOST_LOOKED_AT = 10_000


@dataclass(slots=True)
class Located:
    """The rows of a write, locked. ``missing``: what it reaches without a claim, if a rule only observes.

    ``keys``: the columns, and their values, that the statement must leave as they are.
    """

    relations: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    missing: dict[str, Step] = field(default_factory=dict)
    keys: dict[tuple[str, ...], list[tuple[str, ...]]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    """The oids of the tables in which rows were looked for."""
    reached: set[int] = field(default_factory=set)
    """The oids of the tables in which rows were found."""


def concerns(write: PlannedWrite) -> bool:
    reach, change = write.cached.reach, write.change
    return reach is not None and change is not None and reach.concerns(*change)


async def locate(transaction: Transaction, write: PlannedWrite, acting: Acting) -> Located | None:
    """Lock the rows of a write and all rows that it reaches. None if it reaches none by any foreign key.

    Raises ``SideEffectRefused`` for a row whose name is not claimed, and ``RightMissing`` if the gateway may not look.
    """
    reach, change = write.cached.reach, write.change
    if reach is None or reach.cascades is Cascades.ALLOW or change is None or write.request.method in ("POST", "PUT"):
        return None
    if reach.table.is_view or not reach.concerns(*change):
        return None
    if write.cached.rule.mode is Enforcement.OBSERVE and not await _may_look(transaction, reach.relations(*change)):
        return None
    try:
        return await _Walk(transaction, write, reach, change).run(acting)
    except SqlError as error:
        if error.sqlstate != "42501":
            raise
        raise RightMissing(
            f"The gateway may not see which rows this write of {write.cached.name} reaches: {error.message}.",
            advice="Nothing was written. Grant the gateway's role SELECT and UPDATE on all tables that foreign keys "
            f'lead to, or accept such effects unfenced: cascades = "allow" for {write.cached.name}.',
        ) from error


async def verify(transaction: Transaction, write: PlannedWrite, located: Located | None) -> None:
    """Check, after the statement, that the plan of the write has left nothing out.

    The statement itself has checked the keys that refer to its own table. Raises an error that ``tells_of_change``
    knows if the tables are not as planned, and ``SideEffectRefused`` if code of the table has changed a key.
    """
    reach, change = write.cached.reach, write.change
    if reach is None or reach.cascades is Cascades.ALLOW or change is None:
        return
    if located is None and not (reach.table.writes_others and (change[1] or change[0] == "DELETE")):
        return
    await _check_plan(transaction, reach, change)
    if located is None:
        return
    tables = reach.exposed(located.passed)
    if tables:
        named = {table.oid: reach.naming(table) for table in tables if table.oid in located.reached}
        proven = write.cached.prove(one for one in named.values() if one is not None)
        checks = (unchanged(table, proven.get(table.oid)) for table in tables)
        await transaction.execute(f"SELECT {' AND '.join(checks)}")
    if write.cached.rule.mode is Enforcement.OBSERVE:
        return
    for keys, values in located.keys.items():
        arrays = [list(one) for one in zip(*values, strict=True)]
        row = await transaction.fetchrow(write.cached.statements.remaining(keys), *arrays)
        assert row is not None
        if row["found"] < len(values):
            raise SideEffectRefused(
                f"A trigger or a generated column has changed {', '.join(keys)}, which other tables refer to.",
                advice="Nothing was written. Change the key by a write that names its new value.",
            )


async def _may_look(transaction: Transaction, oids: Iterable[int]) -> bool:
    """Return whether the gateway may read and lock all rows of these tables. A rule that observes does not insist."""
    row = await transaction.fetchrow(_MAY_LOOK, sorted(oids))
    assert row is not None
    return bool(row["may"])


async def _check_plan(transaction: Transaction, reach: Reach, change: tuple[str, frozenset[str]]) -> None:
    """Check that the foreign keys, by which the write may reach other rows, are those that the plan knew."""
    oids = reach.relations(*change)
    now = Graph.from_row(await catalog.references_from(transaction, oids))
    if now != reach.as_planned(oids):
        raise changed_meanwhile()


class _Walk:
    def __init__(
        self, transaction: Transaction, write: PlannedWrite, reach: Reach, change: tuple[str, frozenset[str]]
    ) -> None:
        self._transaction, self._write, self._reach, self._change = transaction, write, reach, change
        self._claimed = frozenset(write.claimed or ())
        self._located = Located()
        self._seen: dict[Place, set[tuple[int, str]]] = {}
        # Names without a claim, and the step that has led to the first of them.
        self._missing: dict[str, Step] = {}

    async def run(self, acting: Acting) -> Located:
        steps, zone = self._reach.steps(*self._change), self._write.request.preferences.timezone
        # Policies may hide rows of the table from the caller. The rows that refer to them are PostgreSQL's to change.
        await acting.as_(self._write.sender.role)
        rows = await self._lock()
        await acting.as_(None)
        if zone is not None:
            # The filters are read in the caller's time zone, and names are made in UTC.
            await settings.set_zone(self._transaction, "UTC")
        for step in steps:
            await self._follow(step, [one for one in rows if self._is_reached(step, one)])
        if zone is not None:
            await settings.set_zone(self._transaction, zone)
        if self._missing:
            await _check_plan(self._transaction, self._reach, self._change)
            raise self._unclaimed()
        return self._located

    def _is_reached(self, step: Step, row: Row) -> bool:
        return self._change[0] == "DELETE" or not set(row["changed"]).isdisjoint(step.reference.target_columns)

    async def _lock(self) -> Sequence[Row]:
        request, table, located = self._write.request, self._reach.table, self._located
        payload, updates = self._write.payload, self._change[0] == "PATCH"
        keys = sorted(name for name in self._reach.keys if name in table.columns)
        set_ = tuple(name for name in keys if updates and payload is not None and name in payload.columns)
        watched = tuple(keys) if updates and table.may_change_keys(()) else ()
        filters, values = lower_filters(request.query.filters)
        fills = request.preferences.missing == "default" and request.query.columns is not None
        shape = LockShape(filters, set_, fills, watched, exclusive=not updates or bool(set_))
        statement = self._write.cached.statements.lock(shape)
        values["payload"] = payload.text if payload else None
        rows = await self._transaction.fetch(statement.text, *statement.arrange(values))
        located.relations, located.places = _places(rows)
        for one in self._reach.references if watched else ():
            kept = {
                tuple(row["keys"][watched.index(name)] for name in one.target_columns)
                for row in rows
                if set(row["changed"]).isdisjoint(one.target_columns)
            }
            if complete := [value for value in kept if None not in value]:
                located.keys[one.target_columns] = complete
        return rows

    async def _follow(self, step: Step, rows: Sequence[Row]) -> None:
        """Lock the rows that refer to these, note those without a claim, and go on to the rows behind them."""
        if not rows or self._knows_enough:
            return
        places = _places(rows)
        self._located.passed.add(step.relation.oid)
        # First without locks. A refused write should not lock a million rows. And to find that there are none takes
        # no right to update them: nothing can come to refer to rows that are locked.
        covered = self._claimed if self._passes(step) else frozenset()
        looked = await self._transaction.fetchrow(
            _looked_at(step, self._reach.table.oid), *places, sorted(covered), _MOST_NAMED
        )
        assert looked is not None
        if looked["hidden"]:
            raise SqlError("42501", f"policies hide rows of {step.relation.title}, or of what they refer to")
        if step.decides:
            self._note(step, looked["unclaimed"])
        if self._knows_enough or not looked["found"]:
            return
        self._located.reached.add(step.relation.oid)
        lock = "FOR UPDATE" if self._loses_references(step) else "FOR NO KEY UPDATE"
        found = await self._transaction.fetch(_referring(step, lock), *places)
        if step.decides:
            self._note(step, [row["resource"] for row in found if row["resource"] not in covered])
        if step.place is None:
            return
        seen = self._seen.setdefault(step.place, set())
        new = [row for row in found if (row["relation"], row["place"]) not in seen]
        seen.update((row["relation"], row["place"]) for row in new)
        for beyond in self._reach.beyond(step.place):
            await self._follow(beyond, new)

    def _loses_references(self, step: Step) -> bool:
        """Return whether rows that refer to these rows may change, too. The cascade takes the same lock then."""
        return step.place is not None and (step.place.change is None or bool(self._reach.beyond(step.place)))

    @property
    def _knows_enough(self) -> bool:
        """Return whether the write is refused, and its answer needs no more names."""
        if self._reach.cascades is Cascades.REFUSE or len(self._missing) > MAX_PAIRS:
            return bool(self._missing)
        return not all(map(self._passes, self._missing.values()))

    def _note(self, step: Step, names: Iterable[str | None]) -> None:
        observed = step.observed or self._write.cached.rule.mode is Enforcement.OBSERVE
        noted = self._located.missing if observed else self._missing
        for name in names:
            noted.setdefault(name or step.relation.title, step)

    def _passes(self, step: Step) -> bool:
        """Return whether claims can let the write pass at all."""
        strict = step.strict and self._write.cached.rule.equal is not Equal.STRICT
        return not (step.renames or strict or step.code)

    def _unclaimed(self) -> GatewayError:
        steps = self._missing.items()
        name, step = next((one for one in steps if not self._passes(one[1])), next(iter(steps)))
        key, table = step.reference.name, step.relation.title
        facts = {"foreign_key": key, "table": table}
        if not self._passes(step):
            return SideEffectRefused(
                f"The write reaches rows of {table} by {key}, which no token covers: {_reason(step)}.",
                advice=f"Nothing was written. Write these rows of {table} first, by requests of their own.",
                facts=facts,
            )
        if self._reach.cascades is Cascades.REFUSE:
            return SideEffectRefused(
                f"The write reaches rows of {table} by {key} ({step.reference.actions}), which are other resources.",
                advice=f"Nothing was written. Write these rows of {table} first, under their own tokens. Or ask the "
                "operator to give both tables one resource by a template, or to set "
                f'cascades = "claim" for {self._write.cached.name}.',
                facts=facts,
            )
        names = sorted(self._missing)
        return SideEffectRefused(
            f"The write reaches {name} by {key}, for which it carries no fencing token.",
            advice=f"Nothing was written. Send the tokens of all rows that it reaches: {self._list(names)}",
            facts={**facts, "resource": name, "missing": ", ".join(names[:MAX_PAIRS])},
        )

    def _list(self, names: Sequence[str]) -> str:
        """Return the header that would do, with a place for each missing token."""
        tokens = self._write.tokens
        held = [f"{one}={tokens.of(one)}" for one in sorted(self._claimed)] if tokens else []
        if len(held) + len(names) > MAX_PAIRS:
            return f"more than {MAX_PAIRS}, so write them in several requests."
        return f"Fencing-Token: {', '.join([*held, *(f'{one}=<its token>' for one in names)])}"


def _places(rows: Sequence[Row]) -> tuple[list[int], list[str]]:
    return [row["relation"] for row in rows], [row["place"] for row in rows]


def _reason(step: Step) -> str:
    if step.code:
        return step.code
    return "its token writes once" if not step.renames else "they get another name"


def _referring(step: Step, lock: str | None = None) -> str:
    """Return the statement that finds the rows that refer to the rows at these places: ``$1`` tables, ``$2`` ctids."""
    key, source, target = step.reference, step.relation, step.reference.target
    own = quote(source.name)
    name = "NULL::text" if step.named is None else name_expression(step.named)
    comparisons = " AND ".join(
        f"{_TARGET}.{quote(theirs)} {operator} {reference(source.name, mine)}"
        + (f" COLLATE {collation}" if collation else "")
        for mine, theirs, operator, collation in zip(
            key.columns, key.target_columns, key.operators, key.collations, strict=True
        )
    )
    return (
        f"SELECT {own}.tableoid::bigint AS relation, {own}.ctid::text AS place, {name} AS resource "  # noqa: S608 - quoted names
        f"FROM {_only(source.kind)}{quote(source.schema)}.{own} AS {own} "
        f"WHERE EXISTS (SELECT FROM {_only(target.kind)}{quote(target.schema)}.{quote(target.name)} AS {_TARGET} "
        f"WHERE {_TARGET}.ctid = ANY ($2::text[]::tid[]) AND ({_TARGET}.tableoid, {_TARGET}.ctid) IN "
        f"(SELECT {_PLACE}.relation, {_PLACE}.place::tid FROM unnest($1::oid[], $2::text[]) "
        f"AS {_PLACE} (relation, place)) AND {comparisons})" + (f" {lock} OF {own}" if lock else "")
    )


def _looked_at(step: Step, written: int) -> str:
    """Return the statement that tells whether any row refers, and names that are not in ``$3``, at most ``$4``.

    ``hidden``: policies hide rows from the gateway. Cascades see them all. ``written``: the table of the write, whose
    rows have been seen if they are written at all.
    """
    rows, oids = _referring(step), {step.relation.oid, step.reference.target.oid}
    oids -= {written} - {step.relation.oid}
    hidden = " OR ".join(f"row_security_active({oid}::oid)" for oid in sorted(oids))
    unclaimed = (
        f"SELECT r.resource FROM ({rows}) AS r "  # noqa: S608 - made of quoted names
        f"WHERE (r.resource = ANY ($3::text[])) IS NOT TRUE LIMIT {_MOST_LOOKED_AT}"
    )
    return (
        f"SELECT {hidden} AS hidden, EXISTS ({rows}) AS found, "  # noqa: S608 - made of quoted names
        f"ARRAY(SELECT DISTINCT n.resource FROM ({unclaimed}) AS n LIMIT $4) AS unclaimed"
    )


def _only(kind: str) -> str:
    return "" if kind == "p" else "ONLY "
