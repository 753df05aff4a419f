"""The guard of a table: plans it, installs it, removes it.

A guard is a set of triggers. A session that writes the table without the gateway must hold a fencing token for each row
it touches. Otherwise the guard refuses the write or, if it only observes, records it. Its manual is docs/guard.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gateway.config.databases import DatabaseConfig
from gateway.db import catalog, guards, migrations
from gateway.db.database import Database
from gateway.db.guards import GuardTarget, InstalledGuard, Role
from gateway.db.pool import FORBIDDEN
from gateway.errors import GRANT, ConfigurationError, GatewayError, SqlError, first_few
from gateway.fencing.decision import Enforcement
from gateway.fencing.resource import escape
from gateway.findings import Check, ok, problem, warning
from gateway.guard import script as guard_script
from gateway.guard.script import WATCH, Guard
from gateway.guard.watching import GuardWatcher
from gateway.observe.events import ignore
from gateway.tables.catalog import CITUS_ADVICE, CITUS_PROBLEM, Snapshot, Table
from gateway.tables.naming import Naming, Rule, naming
from gateway.wiring import table_rules


async def examine(config: DatabaseConfig, database: Database) -> list[Check]:
    """Which exposed tables have a guard, and what is wrong with it; one check for those without."""
    gateway = await _own_role(config)
    snapshot = Snapshot.from_rows(await catalog.relations(database, config.postgres.schemas))
    found = await guards.list_guards(database, config.postgres.schemas)
    covered = {(one.schema, one.table) for one in found}
    covered |= {child for one in covered for child in snapshot.tables[one].children}
    bare = [
        f"{schema}.{name}"
        for (schema, name), table in snapshot.tables.items()
        if table.kind in ("r", "p") and (schema, name) not in covered
    ]
    checks = [_examined(config, snapshot, one, gateway) for one in found]
    if bare:
        checks.append(ok("guard", f"none on {first_few(bare)}: the rights on them say who writes beside the gateway"))
    return checks


async def judging(config: DatabaseConfig, database: Database) -> frozenset[tuple[str, str]]:
    """Return the tables and partitions whose guard refuses what other sessions than the gateway's do not hold."""
    found = await guards.list_guards(database, config.postgres.schemas)
    if not found:
        return frozenset()
    gateway = await guards.read_own_role(database)
    snapshot = Snapshot.from_rows(await catalog.relations(database, config.postgres.schemas))
    sound = [
        (one.schema, one.table)
        for one in found
        if one.arguments[0] != Enforcement.OBSERVE and not _objections(config, snapshot, one, gateway)
    ]
    return frozenset(sound).union(*(snapshot.tables[name].children for name in sound))


def _examined(config: DatabaseConfig, snapshot: Snapshot, found: InstalledGuard, gateway: Role | None) -> Check:
    name = f"guard on {found.schema}.{found.table}"
    mode, _, role, template, *_ = found.arguments
    watches = WATCH in found.arguments[5:]
    objections = _objections(config, snapshot, found, gateway)
    if objections:
        return problem(name, "; ".join(objections), f"Run gateway guard install {found.schema}.{found.table}.")
    watched = ", and what changes without it is found" if watches else ""
    detail = f"rows are {template}; {_let_through(role)}; what it refuses goes on record{watched}"
    if mode == Enforcement.OBSERVE:
        return warning(
            name,
            f"it only observes; {detail}",
            "Run gateway enforce: it says which sessions would be refused, and installs the guard again.",
        )
    return ok(name, detail)


def _objections(config: DatabaseConfig, snapshot: Snapshot, found: InstalledGuard, gateway: Role | None) -> list[str]:
    role = found.arguments[2]
    rules, default = table_rules(config)
    rule = rules.get(f"{found.schema}.{found.table}", default)
    table = snapshot.tables[found.schema, found.table]
    objections = [*_misfits(table, rule, found), *(f"missing or switched off: {one}" for one in found.missing)]
    if gateway is not None and role != gateway.name:
        passing = f"the role {role}" if role else "no gateway"
        objections.append(f"it lets {passing} through, and the gateway is {gateway.name}")
    return objections


def _misfits(table: Table, rule: Rule, found: InstalledGuard) -> Iterable[str]:
    _, equal, role, template, *_ = found.arguments
    try:
        watches = WATCH in found.arguments[5:]
        fitting = Guard(naming(table, rule), rule.mode, rule.equal, role, watches, found.by_statement)
    except GatewayError as error:
        yield error.message
        return
    if template != fitting.named.template.text:
        yield f"it names rows {template}, and the rule says {fitting.named.template.text}"
    elif found.body != fitting.body:
        yield "the table, or this version of the gateway, names rows differently by now"
    if equal != rule.equal:
        yield f"it takes equal tokens by {equal}, and the rule says {rule.equal}"


REVISION = "r1002"
"""The revision of the fencing schema that the scripts of a guard call."""

NO_GATEWAY = ""
"""The role of a guard that lets no gateway through: no session logs in by this name."""

_REFUSED = "42501"
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True, slots=True)
class GuardRequest:
    """The operator's request. ``role`` is the gateway's role, None for the one of postgres.dsn, if it is a gateway's.

    ``dsn`` is the installing session, None for the gateway's; ``grants`` are roles that may acquire locks and claim
    tokens. ``watch``: keep a stamp for each row, to find changes that the guard has not seen.
    """

    table: str
    observe: bool = False
    role: str | None = None
    dsn: str | None = None
    grants: tuple[str, ...] = ()
    watch: bool = False


@dataclass(frozen=True, slots=True)
class PreparedGuard:
    """A guard that is ready to be installed: its script, and what its operator has to know."""

    guard: Guard
    script: str
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """Return what is installed, in one line."""
        mode, _, role, template, table, *_ = self.guard.arguments
        does = "is put on record" if mode == Enforcement.OBSERVE else "is refused"
        guards = "; its rows are watched" if self.guard.watches else ""
        return f"{table}: who writes {template} without holding it {does}; {_let_through(role)}{guards}"


def _let_through(role: str) -> str:
    return f"the role {role} is let through" if role else "no gateway is let through"


async def prepare(config: DatabaseConfig, wanted: GuardRequest) -> PreparedGuard:
    """Work out the guard of a table. Changes nothing.

    Raises ``ConfigurationError`` where the table cannot have one, ``ResourceUnderivable`` where nothing names its rows.
    """
    async with _database(config, wanted.dsn) as database:
        await _check_schema(config, wanted.dsn)
        schema_name, name = _split(config, wanted.table)
        table, relation = await _table(database, schema_name, name)
        role = await _gateway_role(config, database, wanted.role, relation)
        for granted in wanted.grants:
            _check_apart(await _role(database, granted), role)
        rules, default = table_rules(config)
        rule = rules.get(f"{schema_name}.{name}", default)
        mode = Enforcement.OBSERVE if wanted.observe else rule.mode
        _check_watchable(wanted, relation)
        by_statement = relation.stands_alone and not wanted.watch
        named = naming(table, rule)
        _check_stored(named, relation)
        guard = Guard(named, mode, rule.equal, role.name if role else NO_GATEWAY, wanted.watch, by_statement)
        outdated = [function for function in relation.functions if function != guard.function]
        script = guard_script.install(guard, relation.relations, outdated)
        granting = [guard_script.grants(granted) for granted in wanted.grants]
        return PreparedGuard(guard, "\n".join([script, *granting]), tuple(_notes(guard, relation, role, wanted.grants)))


async def install(config: DatabaseConfig, wanted: GuardRequest) -> PreparedGuard:
    """Put the guard on its table, or in the place of an older one. Waits for writes of the table that are under way."""
    prepared = await prepare(config, wanted)
    await _run(config, wanted.dsn, prepared.script)
    return prepared


async def install_again(config: DatabaseConfig, table: str, dsn: str, *, only_check: bool = False) -> PreparedGuard:
    """Put a guard in the place of the one on a table, with the mode of its rule, and with its role and watch.

    Raises ``ConfigurationError`` if the table has none. ``only_check``: change nothing.
    """
    async with _database(config, dsn) as database:
        schema_name, name = _split(config, table)
        found = [one for one in await guards.list_guards(database, [schema_name]) if one.table == name]
    if not found:
        raise ConfigurationError(f"{table}: there is no guard.", advice="Install it with gateway guard install.")
    _, _, role, _, *rest = found[0].arguments
    wanted = GuardRequest(table, role=role or None, dsn=dsn, watch=WATCH in rest[1:])
    return await (prepare if only_check else install)(config, wanted)


async def take_stamps(config: DatabaseConfig, table: str, dsn: str | None = None) -> int:
    """Take the stamps of a watched table anew from its rows of now; return the number of tables, partitions included.

    A change that bypassed the guard until then is not found any more. Raise ``ConfigurationError`` if the table is not
    watched.
    """
    async with _database(config, dsn) as database:
        await _check_schema(config, dsn)
        schema_name, name = _split(config, table)
        target = f"{escape(schema_name)}.{escape(name)}"
        with _by_its_owner():
            relations = await guards.forget_stamps(database, target)
        if not relations:
            raise ConfigurationError(
                f"The rows of {schema_name}.{name} are not watched.", advice="Install its guard with --watch."
            )
        for relation in relations:
            await GuardWatcher(database, ignore).passed(relation)
        return len(relations)


async def remove(config: DatabaseConfig, table: str, dsn: str | None) -> bool:
    """Take the guard off a table, whatever its rule is by now. False: there was none."""
    async with _database(config, dsn) as database:
        schema_name, name = _split(config, table)
        relation = await guards.find_target(database, schema_name, name)
        if relation is None:
            raise ConfigurationError(f"There is no table {schema_name}.{name}.", advice="")
    if relation.guarded:
        await _run(config, dsn, guard_script.remove(relation.relations, relation.functions))
    return relation.guarded


async def examine_guards(config: DatabaseConfig, dsn: str | None = None) -> list[Check]:
    """Which tables have a guard, and whether it fits. Raises ``ConfigurationError`` without the schema for guards."""
    async with _database(config, dsn) as database:
        await _check_schema(config, dsn)
        return await examine(config, database)


async def _check_schema(config: DatabaseConfig, dsn: str | None) -> None:
    try:
        installed = await migrations.installed(dsn or config.postgres.dsn.get_secret_value())
    except SqlError as error:
        if dsn is None and error.sqlstate == FORBIDDEN:
            raise ConfigurationError(f"{error.message}.", advice=GRANT.format("ROLE_OF_THE_GATEWAY")) from error
        raise
    migrations.check(installed, REVISION, "a guard")


def _split(config: DatabaseConfig, table: str) -> tuple[str, str]:
    """``schema.table``, or a table of the default schema."""
    before, dot, after = table.partition(".")
    schema_name, name = (before, after) if dot else (config.postgres.schemas[0], table)
    if schema_name not in config.postgres.schemas:
        raise ConfigurationError(
            f"The schema {schema_name} is not exposed.", advice=f"Exposed are {', '.join(config.postgres.schemas)}."
        )
    return schema_name, name


async def _table(database: Database, schema_name: str, name: str) -> tuple[Table, GuardTarget]:
    snapshot = Snapshot.from_rows(await catalog.relations(database, [schema_name]))
    table = snapshot.tables.get((schema_name, name))
    relation = await guards.find_target(database, schema_name, name)
    qualified = f"{schema_name}.{name}"
    if table is None or relation is None:
        raise ConfigurationError(f"There is no table {qualified}.", advice="")
    if table.kind in _KINDS:
        raise ConfigurationError(
            f"{qualified} is {_KINDS[table.kind]}.", advice="Install the guard on the tables that hold its rows."
        )
    if table.distributed:
        raise ConfigurationError(f"{qualified} cannot be guarded: {CITUS_PROBLEM}.", advice=CITUS_ADVICE)
    if table.reaches_foreign:
        raise ConfigurationError(
            f"{qualified} has rows in a foreign table, which are written by another transaction.",
            advice="Detach the foreign table, and install the guard in the database that holds its rows.",
        )
    if relation.is_partition:
        raise ConfigurationError(
            f"{qualified} is a partition.", advice="Install the guard on the partitioned table; it covers all of them."
        )
    if relation.has_heirs:
        raise ConfigurationError(
            f"Other tables inherit from {qualified}, and its triggers do not see their rows.",
            advice="Turn them into partitions.",
        )
    if not relation.able:
        raise ConfigurationError(
            "The triggers run with the rights of the role that installs them, and this role may not use the fences.",
            advice="Name a role with --dsn that owns the schema fencing and the table.",
        )
    return table, relation


def _check_stored(named: Naming, relation: GuardTarget) -> None:
    """Triggers are not given the values of generated columns that are not stored."""
    for column in named.columns:
        if column.name in relation.virtual:
            raise ConfigurationError(
                f"The column {column.name} is generated and virtual: triggers do not see it.",
                advice="Make it STORED, or name rows by other columns.",
            )


def _check_watchable(wanted: GuardRequest, relation: GuardTarget) -> None:
    """Stamps are kept by primary key, and found by it again."""
    if wanted.watch and not relation.watchable:
        lacks = (
            "no primary key" if relation.watchable is None else "a primary key of types that are not PostgreSQL's own"
        )
        raise ConfigurationError(
            f"{wanted.table} has {lacks}: its rows cannot be watched.", advice="Install the guard without --watch."
        )


async def _own_role(config: DatabaseConfig) -> Role | None:
    """Return the role of the gateway; None without a gateway."""
    if not config.has_gateway:
        return None
    async with _database(config, None) as own:
        return await guards.read_own_role(own)


async def _gateway_role(
    config: DatabaseConfig, database: Database, named: str | None, relation: GuardTarget
) -> Role | None:
    """Return the role whose sessions pass: the gateway's own, unless another one is named. None: there is none."""
    if named is not None:
        return await _role(database, named)
    role = await _own_role(config)
    if role is None:
        return None
    if role.superuser or role.name == relation.owner:
        standing = "a superuser" if role.superuser else "the owner of the table"
        raise ConfigurationError(
            f"The gateway connects as {role.name}, {standing}: the guard cannot tell it from others who do.",
            advice=f"Give the gateway a role of its own, or accept it with --gateway-role {role.name}.",
        )
    return role


def _check_apart(granted: Role, gateway: Role | None) -> None:
    if gateway is not None and granted.name == gateway.name:
        raise ConfigurationError(
            f"The guard lets the gateway's role {granted.name} through: it would check none of its writes.",
            advice="Give the gateway a role of its own, in postgres.dsn or with --gateway-role.",
        )


async def _role(database: Database, name: str) -> Role:
    found = await guards.find_role(database, name)
    if found is None:
        raise ConfigurationError(f"There is no role {name}.", advice="")
    return found


def _notes(guard: Guard, relation: GuardTarget, role: Role | None, granted: Sequence[str]) -> Iterable[str]:
    if role is None:
        yield "When you add a gateway, install the guard again with its configuration, or with --gateway-role."
    elif role.superuser or role.name == relation.owner:
        yield (
            f"Any session that logs in as {role.name} is let through and can drop the guard. "
            "Give the gateway a role of its own, without that right."
        )
    yield f"The owner {relation.owner} and superusers are checked too, but can drop the guard or switch it off."
    writers = [name for name in relation.writers if name not in (guard.role, *granted)]
    if writers:
        yield (
            f"May write it beside the gateway: {', '.join(writers)}. Take the right away, or let them claim tokens:\n"
            + "\n".join(guard_script.grants(name) for name in writers if name != "PUBLIC")
        ).rstrip()


async def _run(config: DatabaseConfig, dsn: str | None, script: str) -> None:
    async with _database(config, dsn) as database:
        with _by_its_owner():
            await guards.run_script(database, script)


@contextmanager
def _by_its_owner() -> Iterator[None]:
    """Run an operation that needs the owner of the schema and of the table."""
    try:
        yield
    except SqlError as error:
        if error.sqlstate != _REFUSED:
            raise
        raise ConfigurationError(
            f"The database refuses: {error.message}.",
            advice="Name a role with --dsn that owns the schema fencing and the table.",
        ) from error


def _database(config: DatabaseConfig, dsn: str | None) -> Database:
    postgres = config.postgres
    return Database(
        dsn or postgres.dsn.get_secret_value(),
        pool_size=1,
        statement_timeout=postgres.statement_timeout,
    )
