"""``gateway naming``: what a change of the configured namings would do, and the change itself."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias
from urllib.parse import unquote

from gateway import wiring
from gateway.changes.orders import CarryOver, Close, FindPending, NamingEffect, Settle, change_naming
from gateway.config.databases import DatabaseConfig
from gateway.db import catalog, guards
from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.db.naming import Carry, CarryCount
from gateway.db.ownership import OWNERSHIP
from gateway.db.pool import columns
from gateway.driver import drive
from gateway.errors import ConfigurationError, GatewayError, ResourceUnderivable, Unavailable
from gateway.fencing.decision import Enforcement
from gateway.fencing.intent import Intent
from gateway.fencing.naming import BucketNaming, RegisteredNaming, TableNaming, concerning
from gateway.fencing.resource import Template, as_expression
from gateway.objects.key_rules import DEFAULT_TEMPLATE, KeyRule, Resources
from gateway.objects.protocol import settling
from gateway.objects.protocol.runner import Runner
from gateway.objects.s3 import listing_pages, xml
from gateway.objects.store.client import query_of
from gateway.objects.store.operations import Upstream
from gateway.tables.catalog import Snapshot, Table
from gateway.tables.naming import Naming, Rule, as_registered, naming
from gateway.tables.sql.expressions import quote, string
from gateway.tables.sql.statements import name_expression
from gateway.wiring import table_rules

_STATEMENT_TIMEOUT = 3600.0
_LOCK_TIMEOUT = 60.0
_POLL = 0.5
# The position of the template among the arguments of a guard's triggers.
_TEMPLATE = 3
_MAX_DOCUMENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class TableChange:
    """A table whose configured naming is not the one in force. ``olds``: the namings that concern it."""

    table: Table
    named: Naming
    olds: tuple[RegisteredNaming[TableNaming], ...]

    @property
    def name(self) -> str:
        """``schema.table``."""
        return f"{self.table.schema}.{self.table.name}"

    @property
    def following(self) -> TableNaming:
        """The configured naming."""
        return as_registered(self.named)

    @property
    def was(self) -> str:
        """The namings in force, for people."""
        return " and ".join(sorted({str(one.naming) for one in self.olds}))

    @property
    def closed(self) -> bool:
        """Whether the table takes no writes: the change has begun, and was interrupted."""
        return any(one.change is not None for one in self.olds)

    @property
    def patterns(self) -> list[str]:
        """Regular expressions of all old names."""
        return [_pattern(one.naming) for one in self.olds]

    async def count(self, database: Database) -> CarryCount:
        """Count the fences that it would carry over."""
        return await registry.count_carried(database, self.mapping())

    async def pending(self, database: Database) -> list[Intent]:  # noqa: ARG002 - a bucket asks it
        """Return nothing: writes of rows end with the lock of their table."""
        return []

    async def close(self, database: Database) -> None:
        """Commit that no write of the table proves a naming any more."""
        await registry.close_table(database, self.name, self.table.oid, self.following)

    async def carry_over(self, database: Database, epoch: int | None) -> None:
        """Carry the fences over, and put the configured naming in force."""
        table = f"{quote(self.table.schema)}.{quote(self.table.name)}"
        carry = Carry(self.mapping(), (), self.was, epoch)
        await registry.open_table(database, table, self.name, self.table.oid, self.following, carry)

    def mapping(self) -> str:
        """Return SQL that yields the old and the new name of all rows that have a fence or a lock, or that exist."""
        return "\nUNION\n".join(part for one in self.olds for part in self._parts(one))

    def _parts(self, old: RegisteredNaming[TableNaming]) -> list[str]:
        parts = []
        if set(self.following.columns) <= set(old.naming.columns):
            parts.append(_by_name(old.naming, self.following))
        before = self._as_columns_are(old)
        if before is not None:
            names = f"{name_expression(before)} AS old, {name_expression(self.named)} AS new"
            parts.append(f"SELECT {names} FROM {quote(self.table.schema)}.{quote(self.table.name)}")  # noqa: S608
        return parts

    def _as_columns_are(self, old: RegisteredNaming[TableNaming]) -> Naming | None:
        """Return the old naming over the columns of today; None if one of its columns is gone."""
        same = old.relation == self.table.oid
        columns = []
        for wanted in old.naming.columns:
            found = (
                column
                for column in self.table.columns.values()
                if (column.number == wanted.number if same else column.name == wanted.name)
            )
            column = next(found, None)
            if column is None:
                return None
            columns.append(column)
        literals = old.naming.literals
        template = Template(str(old.naming), literals, tuple(column.name for column in columns))
        return Naming(self.table, template, tuple(columns))


def table_changes(
    snapshot: Snapshot,
    rules: dict[str, Rule],
    default: Rule,
    registered: Sequence[RegisteredNaming[TableNaming]],
) -> list[TableChange]:
    """Return the tables whose configured naming is not the one in force. A table that only observes has none."""
    found = []
    for table in snapshot.tables.values():
        name = f"{table.schema}.{table.name}"
        rule = rules.get(name, default)
        olds = concerning(name, table.oid, registered)
        if not olds or rule.mode is not Enforcement.ENFORCE:
            continue
        try:
            named = naming(table, rule)
        except ResourceUnderivable:
            continue
        if any(one.naming != as_registered(named) or one.change is not None for one in olds):
            found.append(TableChange(table, named, tuple(olds)))
    return found


def _by_name(old: TableNaming, new: TableNaming) -> str:
    """Return SQL that makes new names of old ones, also of rows that are deleted."""
    number = {column: position for position, column in enumerate(old.columns, 1)}
    values = [f"n.parts[{number[column]}]" for column in new.columns]
    pieces = [string(new.literals[0])]
    for value, literal in zip(values, new.literals[1:], strict=True):
        pieces += [value, string(literal)]
    prefix = string(old.literals[0])
    matched = f"regexp_match(resource, {string(_pattern(old))})" if old.columns else "ARRAY[resource]"
    only = "" if old.columns else f" AND resource = {prefix}"
    named = " UNION ".join(
        f"SELECT resource FROM fencing.{place} "  # noqa: S608 - literals are quoted
        f"WHERE starts_with(resource, {prefix}) AND resource >= {prefix}{only} AND resource <> '{OWNERSHIP}'"
        for place in ("fence", "lock")
    )
    return (
        f"SELECT n.resource AS old, {' || '.join(pieces)} AS new "  # noqa: S608 - literals are quoted
        f"FROM (SELECT resource, {matched} AS parts FROM ({named}) AS r) AS n WHERE n.parts IS NOT NULL"
    )


def _pattern(naming: TableNaming) -> str:
    """Return a regular expression of the names, with a group for each column."""
    escaped = (re.sub(r"([^A-Za-z0-9/])", r"[\1]", literal) for literal in naming.literals)
    return "^" + "([^/]*)".join(escaped) + "$"


_MAPPING = "SELECT old, new FROM unnest($1::text[], $2::text[]) AS m (old, new)"
_MAPPING_TO_A_NEW_EPOCH = "SELECT old, new FROM unnest($2::text[], $3::text[]) AS m (old, new)"


@dataclass(frozen=True, slots=True)
class BucketChange:
    """A bucket whose configured naming is not the one in force."""

    name: str
    old: RegisteredNaming[BucketNaming]
    rules: Resources
    upstream: Upstream

    @property
    def following(self) -> BucketNaming:
        """The configured naming."""
        return self.rules.naming(self.name)

    @property
    def was(self) -> str:
        """The naming in force, for people."""
        return str(self.old.naming)

    @property
    def closed(self) -> bool:
        """Whether the bucket takes no writes: the change has begun, and was interrupted."""
        return self.old.change is not None

    @property
    def patterns(self) -> list[str]:
        """Regular expressions of all old names."""
        return [f"^{as_expression(pattern)}$" for pattern in _rules_of(self.old.naming).below(self.name, "")]

    async def count(self, database: Database) -> CarryCount:
        """Count the fences that it would carry over."""
        _, names = await self._renamed_keys(database)
        return await registry.count_carried(database, _MAPPING, *columns(names, 2))

    async def pending(self, database: Database) -> list[Intent]:
        """Return the object writes that may be under way."""
        return await registry.pending(database, self.name)

    async def close(self, database: Database) -> None:
        """Commit that no announcement in the bucket proves a naming any more."""
        await registry.close_bucket(database, self.name, self.following)

    async def carry_over(self, database: Database, epoch: int | None) -> None:
        """Carry the fences over, and put the configured naming in force."""
        moved, names = await self._renamed_keys(database)
        if epoch is not None:
            # The locks of all other keys go on as they are.
            names = sorted({(old, new) for _, old, new in moved})
        mapping = _MAPPING if epoch is None else _MAPPING_TO_A_NEW_EPOCH
        carry = Carry(mapping, columns(names, 2), self.was, epoch)
        await registry.open_bucket(database, self.name, self.following, carry, moved)

    async def _renamed_keys(self, database: Database) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
        """Return the keys whose resource changes, with the old and the new one; and old and new resource of all keys.

        The keys are those of the store, those that anything is remembered of, and those whose names are default ones.
        """
        before = _rules_of(self.old.naming)
        keys = {key for _, key in await registry.remembered_keys(database, self.name)}
        prefix = DEFAULT_TEMPLATE.format(bucket=self.name, key="")
        keys.update(unquote(name.removeprefix(prefix)) for name in await registry.names_below(database, prefix))
        async for key in _listed(self.upstream, self.name):
            keys.add(key)
        moved, names = [], set()
        for key in sorted(keys):
            old, new = _resource(before, self.name, key), _resource(self.rules, self.name, key)
            if old is None or new is None:
                continue
            names.add((old, new))
            if old != new:
                moved.append((key, old, new))
        return moved, sorted(names)


def _rules_of(naming: BucketNaming) -> Resources:
    """Return the rules of a naming. Its last one is the default, which needs no rule."""
    return Resources(KeyRule.compile(match, template) for match, template in naming.rules[:-1])


def _resource(rules: Resources, bucket: str, key: str) -> str | None:
    """Return the resource of a key; None if its name would be too long, which no write has."""
    try:
        return rules.target(bucket, key).resource
    except GatewayError:
        return None


async def _listed(upstream: Upstream, bucket: str) -> AsyncIterator[str]:
    """Yield the keys of a bucket, from the store's listing."""
    after: str | None = None
    while True:
        query = query_of({"list-type": "2", "encoding-type": "url", "start-after": after})
        async with await upstream.send("GET", f"/{bucket}", query) as response:
            document = await response.read(_MAX_DOCUMENT)
        error = xml.read_error(document)
        if error is not None and error.code == "NoSuchBucket":
            return
        page = await asyncio.to_thread(listing_pages.read, document) if response.status == 200 else None
        if page is None:
            raise Unavailable(f"The store answered with {response.status} when asked for a listing of {bucket}.")
        keys = [entry.name for entry in page.entries if entry.kind == listing_pages.CONTENTS]
        for key in keys:
            yield key
        if not page.is_truncated or not keys:
            return
        after = max(keys)


Change: TypeAlias = TableChange | BucketChange


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

    def __init__(
        self, config: DatabaseConfig, database: Database, upstream: Upstream | None, runner: Runner | None
    ) -> None:
        self._config, self._database, self._upstream, self._runner = config, database, upstream, runner

    async def found(self) -> list[Change]:
        """Return the targets whose configured names are not the ones in force."""
        snapshot = Snapshot.from_rows(await catalog.relations(self._database, self._config.postgres.schemas))
        rules, default = table_rules(self._config)
        found: list[Change] = [*table_changes(snapshot, rules, default, await registry.tables(self._database))]
        if self._upstream is not None:
            resources = wiring.resources(self._config)
            found += [
                BucketChange(one.name, one, resources, self._upstream)
                for one in await registry.buckets(self._database)
                if one.naming != resources.naming(one.name) or one.change is not None
            ]
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
        target = planned.change

        async def perform(effect: NamingEffect) -> Sequence[Intent] | None:
            nonlocal planned
            match effect:
                case Close():
                    await target.close(self._database)
                case FindPending():
                    return await target.pending(self._database)
                case Settle(intent):
                    assert self._runner is not None
                    if await self._runner.run(settling.settle(intent)) is not None:
                        await asyncio.sleep(_POLL)
                case CarryOver():
                    planned = await self._plan(target)
                    check_applicable(planned, new_locks=new_locks, forget=forget)
                    await target.carry_over(self._database, planned.new_epoch if new_locks else None)
            return None

        await drive(change_naming(), perform)
        return planned

    async def _plan(self, target: Change) -> PlannedChange:
        count, pending = await target.count(self._database), await target.pending(self._database)
        total, epoch = await registry.old_names(self._database, target.patterns)
        holders = await registry.lease_holders(self._database, target.patterns)
        highest = replace(count, epoch=max(count.epoch, epoch))
        left = total - count.carried + count.too_long
        return PlannedChange(target, highest, left, holders, len(pending), await self._guard(target))

    async def _guard(self, target: Change) -> str | None:
        if not isinstance(target, TableChange):
            return None
        installed = await guards.list_guards(self._database, [target.table.schema])
        templates = [one.arguments[_TEMPLATE] for one in installed if one.table == target.table.name]
        return next((one for one in templates if one != target.named.template.text), None)


@asynccontextmanager
async def naming_changes(config: DatabaseConfig, *, only_look: bool = False) -> AsyncIterator[NamingChanges]:
    """Connect to the database and the store of a configuration. With ``only_look`` nothing may be applied."""
    limits: dict[str, Any] = {"pool_size": 2, "statement_timeout": _STATEMENT_TIMEOUT, "lock_timeout": _LOCK_TIMEOUT}
    async with AsyncExitStack() as stack:
        if not only_look:
            storage = await stack.enter_async_context(wiring.opened(config, **limits))
            runner, _ = wiring.object_runner(config, storage) or (None, None)
            yield NamingChanges(config, storage.database, storage.upstream, runner)
            return
        upstream = None if config.s3 is None else await stack.enter_async_context(Upstream(config.s3))
        dsn, timeout = config.postgres.dsn.get_secret_value(), config.limits.connect_timeout
        database = await stack.enter_async_context(Database(dsn, connect_timeout=timeout, **limits))
        yield NamingChanges(config, database, upstream, None)


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
