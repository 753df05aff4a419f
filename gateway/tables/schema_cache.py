"""The schema cache: the exposed tables and functions as the catalog described them, and the watcher that reloads it.

The cache reads the catalog when it is first needed, when the database announces a change, and when a statement finds
one. No write depends on the announcements: each one checks its table (``gateway.tables.sql.expressions``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from gateway.background import Attempts, background_tasks, unreachable
from gateway.db import catalog
from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import (
    DialectError,
    NamingChanged,
    ResourceMismatch,
    ResourceUnderivable,
    SideEffectRefused,
    SqlError,
    Unavailable,
)
from gateway.fencing.decision import Enforcement
from gateway.fencing.naming import RegisteredNaming, TableNaming, check_table, concerning
from gateway.observe.events import CatalogWarning, Observe
from gateway.tables.catalog import Snapshot, Table
from gateway.tables.functions import Functions
from gateway.tables.naming import Naming, Rule, as_registered, naming, naming_if_any
from gateway.tables.relations import Relations
from gateway.tables.side_effects import KnownSteps, Reach, SideEffect, find_side_effects
from gateway.tables.sql import expressions
from gateway.tables.sql.expressions import version_of
from gateway.tables.sql.statements import Statements

Name: TypeAlias = tuple[str, str]
Registry: TypeAlias = tuple[RegisteredNaming[TableNaming], ...]
Answer = TypeVar("Answer")

_PAUSE_BETWEEN_RELOADS = 1.0
_ATTEMPTS = 4


@dataclass(slots=True, eq=False)
class CachedTable:
    """One table with its rule and its statements. ``name``: ``schema.table``.

    ``named`` is None if no rule and no key names its rows. ``registry`` has the namings in force. ``generation`` is the
    one that writes prove; None in observe mode. ``reach``: what its writes can change beyond their rows; None for
    nothing. ``current`` is False once the catalog has changed since. Such a table is never current again.
    """

    table: Table
    rule: Rule
    named: Naming | None
    statements: Statements
    registry: Registry = ()
    generation: UUID | None = None
    reach: Reach | None = None
    current: bool = True
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.table.title

    def naming(self) -> Naming:
        """Return how its rows are named.

        Raises ``ResourceUnderivable`` if nothing names them. If its rule enforces, raises ``NamingChanged`` if another
        naming is in force, and ``Unproven`` if the database has to learn of this one first.
        """
        named = self.named or naming(self.table, self.rule)
        if self.rule.mode is Enforcement.ENFORCE and self.generation is None:
            self.prove([named])
        return named

    def prove(self, namings: Iterable[Naming]) -> dict[int, UUID]:
        """Return the generations that prove how rows are named, by the oid of their tables.

        The tables are this one, or tables that a write of it reaches. Raises what ``naming`` raises.
        """
        proven: dict[int, UUID] = {}
        unproven = []
        for named in namings:
            one = UnprovenNaming(named.table.title, named.table.oid, as_registered(named))
            generation = check_table(one.name, one.relation, one.naming, self.registry)
            if generation is None:
                unproven.append(one)
            else:
                proven[one.relation] = generation
        if unproven:
            raise Unproven(unproven)
        return proven


class UnprovenNaming(NamedTuple):
    """The naming of a table, ``schema.table``, that is not registered yet. ``relation`` is its oid."""

    name: str
    relation: int
    naming: TableNaming


class Unproven(Exception):
    """Namings of tables are not registered yet under the names that the tables have."""

    def __init__(self, namings: Sequence[UnprovenNaming]) -> None:
        super().__init__(", ".join(one.name for one in namings))
        self.namings = namings


# Errors that may come from an outdated table, or from a naming that has changed.
_OUTDATED = (DialectError, SqlError, ResourceUnderivable, ResourceMismatch, NamingChanged, SideEffectRefused)


class SchemaCache:
    """The exposed tables. They are loaded lazily, because the database may be down when the gateway starts."""

    def __init__(
        self,
        database: Database,
        schemas: Sequence[str],
        rules: Mapping[str, Rule],
        default: Rule,
        observe: Observe,
        required: Collection[str] = (),
    ) -> None:
        """``rules`` by ``schema.table``; ``default`` for the tables without one.

        Until all ``required`` tables have existed at once, no table is served. A rule with a misspelt name would leave
        its table under the default name, beside its own fences.
        """
        self._database, self._schemas, self._rules, self._default = database, schemas, rules, default
        self._observe, self._required = observe, required
        self._snapshot: Snapshot | None = None
        self._registry: Registry = ()
        self._tables: dict[Name, CachedTable] = {}
        self._steps: KnownSteps = {}
        self._warned: frozenset[SideEffect] = frozenset()
        self._loaded_at = 0.0
        self._loading = asyncio.Lock()

    def rule(self, schema: str, name: str) -> Rule:
        return self._rules.get(f"{schema}.{name}", self._default)

    def name_columns(self, schema: str, name: str) -> tuple[str, ...]:
        """Return the columns that name the rows of a table, if it has been used already."""
        cached = self._tables.get((schema, name))
        return cached.named.fields if cached is not None and cached.named is not None else ()

    async def snapshot(self) -> Snapshot:
        """Return all exposed tables. Raises ``Unavailable`` if the catalog cannot be read."""
        if self._snapshot is None:
            await self._load_after(_now())
        assert self._snapshot is not None
        return self._snapshot

    async def table(self, schema: str, name: str) -> CachedTable:
        """Return one table. Raises PGRST205 if there is none, ``Unavailable`` if the catalog cannot be read."""
        cached = self._tables.get((schema, name))
        if cached is not None:
            return cached
        snapshot = await self.snapshot()
        table = snapshot.table(schema, name)
        rule = self.rule(schema, name)
        named = naming_if_any(table, rule)
        generation, reach = self._generation(table, rule, named), Reach(snapshot, table, self.rule, self._steps)
        statements = Statements(
            table,
            named,
            Relations(snapshot.tables),
            version_of(table, rule.version),
            generation=generation,
            references=reach.own_references,
        )
        beyond = None if reach.is_empty else reach
        cached = CachedTable(table, rule, named, statements, self._registry, generation, beyond)
        return self._tables.setdefault((schema, name), cached)

    def _generation(self, table: Table, rule: Rule, named: Naming | None) -> UUID | None:
        """Return the generation of the naming in force, if it is the configured one."""
        if named is None or rule.mode is not Enforcement.ENFORCE:
            return None
        try:
            return check_table(table.title, table.oid, as_registered(named), self._registry)
        except NamingChanged:
            return None

    async def _register(self, unproven: Iterable[UnprovenNaming]) -> None:
        """Register namings of tables. Read the registry again: another gateway may have been quicker."""
        for name, relation, configured in unproven:
            if check_table(name, relation, configured, self._registry) is None:
                agreeing = [one.generation for one in concerning(name, relation, self._registry)]
                await registry.register_table(self._database, name, relation, configured, agreeing)
        await self._load_after(_now())

    async def using(self, names: Sequence[Name], work: Callable[[Sequence[CachedTable]], Awaitable[Answer]]) -> Answer:
        """Run ``work`` with these tables. Run it again, from the start, if a cached table was out of date.

        An error that may come from an outdated table has to undo everything that ``work`` did. Raises what ``work``
        raises, and ``Unavailable`` if a table keeps changing.
        """
        for _ in range(_ATTEMPTS):
            tables: list[CachedTable] = []
            try:
                for schema, name in names:
                    tables.append(await self.table(schema, name))
                return await work(tables)
            except Unproven as unproven:
                await self._register(unproven.namings)
            except _OUTDATED as error:
                complete = len(tables) == len(names)
                renewed = self._renewed(dict.fromkeys(tables), error) if complete else self._reloaded()
                if not await renewed:
                    raise
        raise Unavailable("The table is being changed.", advice="Nothing was written. Send the request again.")

    async def reload(self) -> None:
        """Read the catalog again, unless it was read a moment ago: a burst of bad requests must not become load."""
        await self._load_after(_now() - _PAUSE_BETWEEN_RELOADS)

    async def renew(self) -> None:
        """Read the catalog again, because it has changed before now."""
        await self._load_after(_now())

    async def _reloaded(self) -> bool:
        """Return whether the catalog has changed. Only a full read tells whether a missing table is there by now."""
        before = self._snapshot
        await self.reload()
        return self._snapshot is not before

    async def _renewed(self, tables: Collection[CachedTable], error: Exception) -> bool:
        """Return whether the error may come from an outdated table that has been reloaded by now."""
        if not _all_current(tables):
            return True
        if isinstance(error, NamingChanged):
            await self.reload()
            return not _all_current(tables)
        changed = isinstance(error, SqlError) and expressions.tells_of_change(error)
        for table in tables:
            changed = changed or not await self._is_unchanged(table)
        if changed:
            await self.renew()
        elif _may_concern_another_table(error):
            await self.reload()
        return changed or not _all_current(tables)

    async def _is_unchanged(self, cached: CachedTable) -> bool:
        """Ask the database about one table, which costs much less than reading the catalog."""
        try:
            await self._database.fetchrow(f"SELECT {expressions.unchanged(cached.table, cached.generation)}")
        except SqlError:
            return False
        return True

    async def _load_after(self, moment: float) -> None:
        """Read the catalog, unless a read has begun after ``moment``. Concurrent callers share one read."""
        async with self._loading:
            if self._snapshot is not None and self._loaded_at > moment:
                return
            began = _now()
            snapshot, namings = await self._read(), await self._read_registry()
            if self._snapshot is None:
                _check_required(snapshot, self._required)
            if (snapshot, namings) != (self._snapshot, self._registry):
                for outdated in self._tables.values():
                    outdated.current = False
                self._snapshot, self._registry, self._tables, self._steps = snapshot, namings, {}, {}
                self._warn(snapshot)
            self._loaded_at = began

    async def _read(self) -> Snapshot:
        """Read the catalog. A table that is dropped meanwhile can make that fail, so it is tried several times."""
        for _ in range(_ATTEMPTS):
            try:
                rows = await catalog.relations(self._database, self._schemas)
                return Snapshot.from_rows(rows, await catalog.references(self._database))
            except SqlError as error:
                failure = error
        raise Unavailable("The catalog cannot be read.") from failure

    async def _read_registry(self) -> Registry:
        """Return the namings in force. A role that may only read needs no right on them, and proves none."""
        try:
            return await registry.tables(self._database)
        except SqlError:
            return ()

    def _warn(self, snapshot: Snapshot) -> None:
        found = [one for one in find_side_effects(snapshot, self.rule) if not (one.refused or one.another_name)]
        for one in found:
            if one not in self._warned:
                self._observe(CatalogWarning(one.table, one.text))
        self._warned = frozenset(found)


def _check_required(snapshot: Snapshot, required: Collection[str]) -> None:
    missing = sorted(name for name in required if tuple(name.split(".")) not in snapshot.tables)
    if missing:
        raise Unavailable(
            f"The configuration has a rule for {missing[0]}, and there is no such table.",
            advice="Correct [[tables]] and start the gateway again, or start it with --allow-missing.",
        )


def _all_current(tables: Collection[CachedTable]) -> bool:
    return all(table.current for table in tables)


def _may_concern_another_table(error: Exception) -> bool:
    """Return whether the error may be about a table that the request only mentions or reaches: an embedded one, say."""
    if isinstance(error, SideEffectRefused):
        return True
    if isinstance(error, SqlError):
        return error.sqlstate.startswith("42")
    return isinstance(error, DialectError) and error.code.startswith("PGRST20")


def _now() -> float:
    return asyncio.get_running_loop().time()


_STALE_FUNCTION = frozenset(("PGRST202", "PGRST203", "42703"))


class FunctionCache:
    """The exposed functions. They are read when first needed, and again when they seem to have changed.

    An outdated function never lets a write through: PostgreSQL itself refuses writes in a read-only transaction.
    """

    def __init__(self, database: Database, names: frozenset[str]) -> None:
        """``names`` as ``schema.name``. To callers, no other function exists."""
        self._database, self._names = database, sorted(names)
        self._functions: Functions | None = None
        self._loaded_at = 0.0
        self._loading = asyncio.Lock()

    async def all(self) -> Functions:
        """Return all exposed functions. Raises ``Unavailable`` if the catalog cannot be read."""
        if self._functions is None:
            await self._reload()
        assert self._functions is not None
        return self._functions

    async def using(self, work: Callable[[Functions], Awaitable[Answer]]) -> Answer:
        """Run ``work``. Run it once more if its error may come from a changed function, and one has changed."""
        functions = await self.all()
        try:
            return await work(functions)
        except (DialectError, SqlError) as error:
            stale = error.sqlstate.startswith("42") if isinstance(error, SqlError) else error.code in _STALE_FUNCTION
            if not stale:
                raise
            await self._reload()
            if self._functions == functions:
                raise
        return await work(await self.all())

    async def _reload(self) -> None:
        async with self._loading:
            if self._functions is not None and _now() - self._loaded_at < _PAUSE_BETWEEN_RELOADS:
                return
            rows = await catalog.functions(self._database, self._names) if self._names else []
            self._functions, self._loaded_at = Functions.from_rows(rows), _now()


_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


def watching(cache: SchemaCache, listen: Listen | None, observe: Observe) -> AbstractAsyncContextManager[None]:
    """Keep the cache up to date in the background. Without ``listen``, load it once, when the database is reachable."""
    failed = partial(unreachable, "postgres", "The catalog is not followed")
    attempts = Attempts(observe, failed, _FIRST_PAUSE, _LONGEST_PAUSE)
    return background_tasks(_load_once(cache, attempts) if listen is None else _follow(cache, attempts, listen))


async def _load_once(cache: SchemaCache, attempts: Attempts) -> None:
    while not await attempts.make(cache.renew):  # noqa: ASYNC110 - it tries again itself
        await asyncio.sleep(attempts.pause)


async def _follow(cache: SchemaCache, attempts: Attempts, listen: Listen) -> None:
    """Renew the cache at each announcement.

    The first renewal of a session covers changes that were announced while no session listened.
    """

    async def follow() -> None:
        async with listen() as announced:
            while True:
                await cache.renew()
                attempts.succeeded()
                await announced.next()

    await attempts.repeat(follow)
