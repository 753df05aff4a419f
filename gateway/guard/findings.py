"""Findings about guards: which tables have one, and whether it still fits their rules."""

from collections.abc import Iterable

from gateway.config import Config
from gateway.db import catalog, guards
from gateway.db.database import Database
from gateway.db.guards import InstalledGuard, Role
from gateway.doctor.findings import Check, first_few, ok, problem, warning
from gateway.errors import GatewayError
from gateway.fencing.rules import Enforcement
from gateway.guard.script import WATCH, Guard
from gateway.table_rules import table_rules
from gateway.tables.catalog.snapshot import Snapshot, Table
from gateway.tables.naming.plan import Rule, naming


async def examine(config: Config, database: Database) -> list[Check]:
    """Which exposed tables have a guard, and what is wrong with it; one check for those without."""
    gateway = await guards.read_own_role(database)
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


def _examined(config: Config, snapshot: Snapshot, found: InstalledGuard, gateway: Role) -> Check:
    name = f"guard on {found.schema}.{found.table}"
    mode, _, role, template, *_ = found.arguments
    watches = WATCH in found.arguments[5:]
    rules, default = table_rules(config)
    rule = rules.get(f"{found.schema}.{found.table}", default)
    table = snapshot.tables[found.schema, found.table]
    objections = [*_misfits(table, rule, found), *(f"missing or switched off: {one}" for one in found.missing)]
    if role != gateway.name:
        objections.append(f"it lets the role {role} through, and the gateway is {gateway.name}")
    if objections:
        return problem(name, "; ".join(objections), f"Run gateway guard install {found.schema}.{found.table}.")
    watched = ", and what changes without it is found" if watches else ""
    detail = f"rows are {template}; the role {role} is let through; what it refuses goes on record{watched}"
    if mode == Enforcement.OBSERVE:
        return warning(name, f"it only observes; {detail}", "Install it without --observe once the record is clean.")
    return ok(name, detail)


def _misfits(table: Table, rule: Rule, found: InstalledGuard) -> Iterable[str]:
    """Yield the differences between the guard and the one that would be installed now."""
    _, equal, role, template, *_ = found.arguments
    try:
        fitting = Guard(naming(table, rule), rule.mode, rule.equal, role, WATCH in found.arguments[5:])
    except GatewayError as error:
        yield error.message
        return
    if template != fitting.named.template.text:
        yield f"it names rows {template}, and the rule says {fitting.named.template.text}"
    elif found.body != fitting.body:
        yield "the table, or this version of the gateway, names rows differently by now"
    if equal != rule.equal:
        yield f"it takes equal tokens by {equal}, and the rule says {rule.equal}"
