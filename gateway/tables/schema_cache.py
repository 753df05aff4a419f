"""The tables as they are known right now, and what is done when that turns out to be out of date.

The catalog is read when it is first needed, and again when the database announces a change or a statement finds one.
Nothing depends on the announcements: each write finds out by itself (``gateway.tables.sql.schema_check``).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from gateway.background import background_tasks, describe_failure
from gateway.db import catalog
from gateway.db.database import Database
from gateway.db.notifications import Listen
from gateway.errors import DialectError, ResourceMismatch, ResourceUnderivable, SqlError, Unavailable
from gateway.observe.events import CatalogWarning, Observe, ServiceUnreachable
from gateway.tables.catalog import side_effects
from gateway.tables.catalog.relations import Relations
from gateway.tables.catalog.snapshot import Snapshot, Table
from gateway.tables.naming.plan import Naming, Rule, naming
from gateway.tables.sql import schema_check
from gateway.tables.sql.expressions import version_of
from gateway.tables.sql.statements import Statements

Name: TypeAlias = tuple[str, str]
Answer = TypeVar("Answer")

_PAUSE_BETWEEN_RELOADS = 1.0
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class Known:
    """One table with its rule and its statements. ``named`` is None where nothing names its rows."""

    table: Table
    rule: Rule
    named: Naming | None
    statements: Statements

    @property
    def name(self) -> str:
        """``schema.table``: by this name it has a rule."""
        return f"{self.table.schema}.{self.table.name}"

    def naming(self) -> Naming:
        """How rows are named. Raises ``ResourceUnderivable`` where nothing names them."""
        return self.named or naming(self.table, self.rule)


class KnownTables:
    """The exposed tables, loaded lazily: the database may still be down when the gateway starts."""

    def __init__(
        self,
        database: Database,
        schemas: Sequence[str],
        rules: Mapping[str, Rule],
        default: Rule,
        observe: Observe,
    ) -> None:
        """``rules`` by ``schema.table``; ``default`` for the tables without one."""
        self._database, self._schemas, self._rules, self._default = database, schemas, rules, default
        self._observe = observe
        self._snapshot: Snapshot | None = None
        self._known: dict[Name, Known] = {}
        self._warned: frozenset[side_effects.Warning] = frozenset()
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    def rule(self, schema: str, name: str) -> Rule:
        return self._rules.get(f"{schema}.{name}", self._default)

    def is_current(self, known: Known) -> bool:
        """Whether this is still what is known of its table."""
        return self._known.get((known.table.schema, known.table.name)) is known

    async def snapshot(self) -> Snapshot:
        """All of them. Raises ``Unavailable`` where the catalog cannot be read."""
        if self._snapshot is None:
            await self._read_after(_now())
        assert self._snapshot is not None
        return self._snapshot

    async def table(self, schema: str, name: str) -> Known:
        """Raises ``Unavailable`` where the catalog cannot be read, PGRST205 where there is no such table."""
        known = self._known.get((schema, name))
        if known is not None:
            return known
        snapshot = await self.snapshot()
        table = snapshot.table(schema, name)
        rule = self.rule(schema, name)
        try:
            named = naming(table, rule)
        except ResourceUnderivable:
            named = None
        statements = Statements(table, named, Relations(snapshot.tables), version_of(table, rule.version))
        return self._known.setdefault((schema, name), Known(table, rule, named, statements))

    async def using(self, schema: str, name: str, work: Callable[[Known], Awaitable[Answer]]) -> Answer:
        """Run ``work`` with what is known of the table; again, from the start, where that was out of date.

        Only what undoes everything may make ``work`` fail with an error that could come from that. Raises what
        ``work`` raises, and ``Unavailable`` where the table keeps changing.
        """
        return await self.using_all([(schema, name)], lambda known: work(known[schema, name]))

    async def using_all(
        self, names: Sequence[Name], work: Callable[[Mapping[Name, Known]], Awaitable[Answer]]
    ) -> Answer:
        """Like ``using``, with several tables, each by its schema and name."""
        for _ in range(_ATTEMPTS):
            known: dict[Name, Known] = {}
            try:
                for schema, name in names:
                    known[schema, name] = await self.table(schema, name)
                return await work(known)
            except (DialectError, SqlError, ResourceUnderivable, ResourceMismatch) as error:
                renewed = self._renewed(known.values(), error) if len(known) == len(names) else self._reloaded()
                if not await renewed:
                    raise
        raise Unavailable("The table is being changed.", advice="Nothing was written. Send the request again.")

    async def reload(self) -> None:
        """Read the catalog again, unless that has just been done: a burst of bad requests must not become load."""
        await self._read_after(_now() - _PAUSE_BETWEEN_RELOADS)

    async def renew(self) -> None:
        """Read the catalog again, because it has changed before now."""
        await self._read_after(_now())

    async def _reloaded(self) -> bool:
        """Whether the catalog has changed. Only reading all of it tells whether a table is there by now."""
        before = self._snapshot
        await self.reload()
        return self._snapshot is not before

    async def _renewed(self, known: Collection[Known], error: Exception) -> bool:
        """Whether the error may be due to something out of date that has been put right."""
        if not all(map(self.is_current, known)):
            return True
        changed = isinstance(error, SqlError) and schema_check.tells_of_change(error)
        for one in known:
            changed = changed or not await self._is_unchanged(one)
        if changed:
            await self.renew()
        elif _names_something_else(error):
            await self.reload()
        return changed or not all(map(self.is_current, known))

    async def _is_unchanged(self, known: Known) -> bool:
        """Asks the database about one table, which costs much less than reading the catalog."""
        try:
            await self._database.fetchrow(f"SELECT {schema_check.unchanged(known.table)}")
        except SqlError:
            return False
        return True

    async def _read_after(self, moment: float) -> None:
        """Read the catalog, unless a reading has begun after ``moment``. Those who wait share one reading."""
        async with self._reading:
            if self._snapshot is not None and self._read_at > moment:
                return
            began = _now()
            snapshot = await self._read()
            if snapshot != self._snapshot:
                self._snapshot, self._known = snapshot, {}
                self._warn(snapshot)
            self._read_at = began

    async def _read(self) -> Snapshot:
        """A table that goes away while the catalog is read can make that fail."""
        for _ in range(_ATTEMPTS):
            try:
                return Snapshot.from_rows(await catalog.relations(self._database, self._schemas))
            except SqlError as error:
                failure = error
        raise Unavailable("The catalog cannot be read.") from failure

    def _warn(self, snapshot: Snapshot) -> None:
        """Announce what has not been announced before."""
        warnings = side_effects.warnings(snapshot, self.rule)
        for warning in warnings:
            if warning not in self._warned:
                self._observe(CatalogWarning(warning.table, warning.text))
        self._warned = frozenset(warnings)


def _names_something_else(error: Exception) -> bool:
    """Whether it may be about a table that is not the one that was asked for: one that is embedded, say."""
    if isinstance(error, SqlError):
        return error.sqlstate.startswith("42")
    return isinstance(error, DialectError) and error.code.startswith("PGRST20")


def _now() -> float:
    return asyncio.get_running_loop().time()


_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 30.0


def following(tables: KnownTables, listen: Listen | None, observe: Observe) -> AbstractAsyncContextManager[None]:
    """As long as this lasts. Without ``listen`` the catalog is read but once, as soon as the database is there."""
    follow = _Follow(tables, observe)
    return background_tasks(follow.once() if listen is None else follow.always(listen))


class _Follow:
    def __init__(self, tables: KnownTables, observe: Observe) -> None:
        self._tables, self._observe = tables, observe
        self._pause = _FIRST_PAUSE

    async def once(self) -> None:
        while not await self._tried(self._read):
            await self._rest()

    async def always(self, listen: Listen) -> None:
        while True:
            await self._tried(lambda: self._listen(listen))
            await self._rest()

    async def _listen(self, listen: Listen) -> None:
        """Until the session is lost. What was announced while there was none has been missed."""
        async with listen() as announced:
            while True:
                await self._read()
                await announced.next()

    async def _read(self) -> None:
        await self._tables.renew()
        self._pause = _FIRST_PAUSE

    async def _tried(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it was done. What goes wrong is announced once until it goes well again."""
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end it, nor the gateway
            if self._pause == _FIRST_PAUSE:
                self._observe(ServiceUnreachable("postgres", f"The catalog is not followed: {describe_failure(error)}"))
            return False
        return True

    async def _rest(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
