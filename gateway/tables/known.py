"""The tables as they are known right now: the catalog read when it is first needed and again when it has aged."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.errors import ResourceUnderivable
from gateway.store import catalog
from gateway.store.database import Database
from gateway.tables.catalog import Snapshot, Table
from gateway.tables.plan import Naming, Rule, naming
from gateway.tables.sql import Statements

_PAUSE_BETWEEN_RELOADS = 1.0


@dataclass(frozen=True, slots=True)
class Known:
    """One table with its rule and its statements. ``named`` is None where nothing names its rows."""

    table: Table
    rule: Rule
    named: Naming | None
    statements: Statements

    def naming(self) -> Naming:
        """How rows are named. Raises ``ResourceUnderivable`` where nothing names them."""
        return self.named or naming(self.table, self.rule)


class KnownTables:
    """The exposed tables, loaded lazily: the database may still be down when the gateway starts."""

    def __init__(self, database: Database, schemas: Sequence[str], rules: Mapping[str, Rule], default: Rule) -> None:
        """``rules`` by ``schema.table``; ``default`` for the tables without one."""
        self._database, self._schemas, self._rules, self._default = database, schemas, rules, default
        self._snapshot: Snapshot | None = None
        self._known: dict[tuple[str, str], Known] = {}
        self._loaded_at = 0.0
        self._loading = asyncio.Lock()

    def rule(self, schema: str, name: str) -> Rule:
        return self._rules.get(f"{schema}.{name}", self._default)

    async def table(self, schema: str, name: str) -> Known:
        """Raises ``Unavailable`` where the catalog cannot be read, PGRST205 where there is no such table."""
        known = self._known.get((schema, name))
        if known is not None:
            return known
        if self._snapshot is None:
            await self.reload()
        assert self._snapshot is not None
        table = self._snapshot.table(schema, name)
        rule = self.rule(schema, name)
        try:
            named = naming(table, rule)
        except ResourceUnderivable:
            named = None
        return self._known.setdefault((schema, name), Known(table, rule, named, Statements(table, named)))

    async def reload(self) -> None:
        """Read the catalog again, unless that has just been done: a burst of bad requests must not become load."""
        now = asyncio.get_running_loop().time
        async with self._loading:
            if self._snapshot is not None and now() - self._loaded_at < _PAUSE_BETWEEN_RELOADS:
                return
            rows = await catalog.relations(self._database, self._schemas)
            self._snapshot, self._known, self._loaded_at = Snapshot.from_rows(rows), {}, now()
