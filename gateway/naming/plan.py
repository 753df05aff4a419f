"""``gateway naming``: what a change of the configured namings would do, and the change itself."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from gateway import wiring
from gateway.config import Config
from gateway.db import catalog, guards
from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.db.naming import CarryCount
from gateway.errors import ConfigurationError
from gateway.fencing.intent import Intent
from gateway.naming import buckets, tables
from gateway.naming.buckets import BucketChange
from gateway.naming.change import CarryOver, Close, Effect, FindPending, Settle, change
from gateway.naming.tables import TableChange
from gateway.objects.protocol import settling
from gateway.objects.protocol.runner import Runner
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.observe.events import ignore
from gateway.tables.catalog import Snapshot
from gateway.wiring import table_rules

Change: TypeAlias = TableChange | BucketChange

_STATEMENT_TIMEOUT = 3600.0
_LOCK_TIMEOUT = 60.0
_POLL = 0.5
# The position of the template among the arguments of a guard's triggers.
_TEMPLATE = 3


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """A change and what it would do.

    ``left``: fences and locks of old names that no row or key of today has. ``holders`` of locks of old names, by the
    lock. ``pending``: object writes under way. ``guard``: the names by which a guard of the table goes, if they are not
    the configured ones.
    """

    change: Change
    count: CarryCount
    left: int
    holders: dict[str, str]
    pending: int
    guard: str | None = None

    @property
    def new_epoch(self) -> int:
        """The epoch that ``--new-locks`` begins."""
        return self.count.epoch + 1


class NamingChanges:
    """Plans and carries out the changes between the namings in force and the configured ones."""

    def __init__(self, config: Config, database: Database, upstream: Upstream | None, runner: Runner | None) -> None:
        self._config, self._database, self._upstream, self._runner = config, database, upstream, runner

    async def found(self) -> list[Change]:
        """Return the targets whose configured names are not the ones in force."""
        snapshot = Snapshot.from_rows(await catalog.relations(self._database, self._config.postgres.schemas))
        rules, default = table_rules(self._config)
        found: list[Change] = [*tables.changes(snapshot, rules, default, await registry.tables(self._database))]
        if self._upstream is not None:
            resources = wiring.resources(self._config)
            found += buckets.changes(resources, await registry.buckets(self._database))
        return found

    async def planned(self, targets: Sequence[str] = ()) -> list[PlannedChange]:
        """Return the changes of these targets, or all. Raise ``ConfigurationError`` for a target without a change."""
        found = await self.found()
        for target in targets:
            if target not in {one.name for one in found}:
                raise ConfigurationError(
                    f"{target}: its naming is the one in force, or it has none yet",
                    advice="Run 'gateway naming plan' without a target to see all changes.",
                )
        return [await self._plan(one) for one in found if not targets or one.name in targets]

    async def apply(self, planned: PlannedChange, *, new_locks: bool = False, forget: bool = False) -> PlannedChange:
        """Carry one change out, and return it as it was when the target was closed.

        To begin again after a crash is harmless. Raises ``ConfigurationError`` as ``check_applicable`` does, before the
        target is closed, or afterwards for fences that have come meanwhile. Then the target stays closed.
        """
        check_applicable(planned, new_locks=new_locks, forget=forget)
        steps, answer = change(), None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return planned
            if isinstance(effect, CarryOver):
                planned = await self._plan(planned.change)
                check_applicable(planned, new_locks=new_locks, forget=forget)
            answer = await self._perform(effect, planned, planned.new_epoch if new_locks else None)

    async def _perform(self, effect: Effect, planned: PlannedChange, epoch: int | None) -> Sequence[Intent] | None:
        target = planned.change
        match effect:
            case Close():
                close = tables.close if isinstance(target, TableChange) else buckets.close
                await close(self._database, target)  # type: ignore[arg-type]  # each gets its own kind
            case FindPending():
                return [] if isinstance(target, TableChange) else await registry.pending(self._database, target.name)
            case Settle(intent):
                assert self._runner is not None
                if await self._runner.run(settling.settle(intent)) is not None:
                    await asyncio.sleep(_POLL)
            case CarryOver():
                if isinstance(target, TableChange):
                    await tables.carry_over(self._database, target, epoch)
                else:
                    assert self._upstream is not None
                    await buckets.carry_over(self._database, self._upstream, target, epoch)
        return None

    async def _plan(self, target: Change) -> PlannedChange:
        if isinstance(target, TableChange):
            mapping, pending = target.mapping(), 0
            arguments: tuple[list[str], ...] = ()
        else:
            assert self._upstream is not None
            _, names = await buckets.renamed_keys(self._database, self._upstream, target)
            mapping = buckets.MAPPING
            arguments = ([old for old, _ in names], [new for _, new in names])
            pending = len(await registry.pending(self._database, target.name))
        count = await registry.count_carried(self._database, mapping, *arguments)
        old = await registry.old_names(self._database, target.patterns)
        holders = await registry.lease_holders(self._database, target.patterns)
        highest = CarryCount(count.carried, count.collisions, count.too_long, max(count.epoch, old.epoch))
        left = old.total - count.carried + count.too_long
        return PlannedChange(target, highest, left, holders, pending, await self._guard(target))

    async def _guard(self, target: Change) -> str | None:
        if not isinstance(target, TableChange):
            return None
        installed = await guards.list_guards(self._database, [target.table.schema])
        templates = [one.arguments[_TEMPLATE] for one in installed if one.table == target.table.name]
        return next((one for one in templates if one != target.named.template.text), None)


@asynccontextmanager
async def naming_changes(config: Config, *, only_look: bool = False) -> AsyncIterator[NamingChanges]:
    """Connect to the database and the store of a configuration. With ``only_look`` nothing may be applied."""
    postgres = config.postgres
    limits: dict[str, Any] = {"pool_size": 2, "statement_timeout": _STATEMENT_TIMEOUT, "lock_timeout": _LOCK_TIMEOUT}
    async with AsyncExitStack() as stack:
        upstream = None
        if config.s3 is not None:
            upstream = await stack.enter_async_context(Upstream(config.s3, ignore))
        if only_look:
            dsn = postgres.dsn.get_secret_value()
            database = Database(dsn, connect_timeout=config.limits.connect_timeout, **limits)
            stack.push_async_callback(database.close)
        else:
            storage = wiring.storage(config, ignore, upstream, **limits)
            stack.push_async_callback(storage.close)
            database = storage.database
        if config.s3 is None or upstream is None:
            yield NamingChanges(config, database, None, None)
            return
        profiles = Profiles(upstream, config.s3.distrust)
        runner = Runner(
            *(database, upstream, profiles, ignore, config.limits.pending_wait, wiring.resources(config)),
            late_after=timedelta(seconds=config.s3.late_after),
        )
        yield NamingChanges(config, database, upstream, runner)


def check_applicable(planned: PlannedChange, *, new_locks: bool, forget: bool) -> None:
    """Raise ``ConfigurationError`` if a change would forget fences, and its operator has not said so."""
    if planned.guard is not None:
        raise ConfigurationError(
            f"{planned.change.name}: its guard names rows {planned.guard}. It would let overtaken sessions pass",
            advice="Revoke the rights of direct writers, and run 'gateway guard remove'. Apply the change. Then run "
            "'gateway guard install', and grant the rights again.",
        )
    if planned.left and not (new_locks or forget):
        raise ConfigurationError(
            f"{planned.change.name}: {planned.left} fences have names that no row or key of today explains, so they "
            "cannot be carried over",
            advice="Apply it with --new-locks, and issue tokens in the new epoch. Or apply it with --forget: then an "
            "overtaken holder could write these rows or keys again.",
        )
