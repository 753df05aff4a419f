"""Examines an installation: configuration, database, object store, pending work. It states the consequences of each.

It looks at all that it can reach. An unreachable part is a finding, not an error, and no secret is shown.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias
from urllib.parse import urlsplit

from gateway import targets, wiring
from gateway.changes.naming import naming_changes
from gateway.config import toml
from gateway.config.databases import DatabaseConfig
from gateway.config.explanations import Places
from gateway.config.rules import TableRule
from gateway.config.sections import NO_DATABASE, Limits, ObjectStore
from gateway.db import catalog, intents, migrations, overview, ownership, rights
from gateway.db.database import Database
from gateway.db.rights import Exposed, Server
from gateway.doctor import grants
from gateway.doctor.writers import check_bucket_writers, check_table_writers
from gateway.errors import GRANT, GatewayError, JournalUnusable, OwnershipDiffers, first_few
from gateway.fencing.decision import Cascades, Enforcement
from gateway.fencing.intent import Duplicates
from gateway.fencing.ownership import shown
from gateway.findings import (
    DATABASE,
    MANY_TOMBSTONES,
    Check,
    CheckStatus,
    DoctorReport,
    Looking,
    Name,
    ReportSection,
    Standing,
    asked_by,
    attempt,
    ok,
    problem,
    question,
    render,
    warning,
)
from gateway.guard import installation as guard_findings
from gateway.journal import opening_table
from gateway.journal.contents import ADVICE, Flaw, Problem
from gateway.journal.trust import Mode, may_serve
from gateway.objects.s3 import xml
from gateway.objects.store.bucket_profile import REQUIRED, ProbeFinding, Profile
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import PREFIX, probe
from gateway.tables.catalog import Snapshot
from gateway.tables.side_effects import SideEffect, find_side_effects
from gateway.tables.sql.expressions import quote
from gateway.wiring import table_rules

__all__ = ["Check", "CheckStatus", "Clock", "DoctorReport", "ReportSection", "examine", "local_time", "render"]

OLDEST_VERSION = 140000
NOTABLE_SKEW = timedelta(seconds=60)
HARMFUL_SKEW = timedelta(minutes=5)
# The length of 16 random bytes in hex: no attacker can guess that.
LONG_ENOUGH = 32
_MOST_BUCKETS = 10

Clock: TypeAlias = Callable[[], datetime]


def local_time() -> datetime:
    """Return the time of this machine's clock. Nothing is decided by it; it is only compared."""
    return datetime.now(UTC)  # noqa: TID251 - the doctor is there to find out whether it is right


@dataclass(frozen=True, slots=True)
class _Visit:
    """The configuration of one examination, and all that it has opened.

    ``store``: None if none is configured. ``server``: the finding in its place if the database does not answer.
    ``answered``: the services that have answered. ``standing`` is read once.
    """

    config: DatabaseConfig
    known: Places
    database: Database
    server: Server | Check
    store: Upstream | None
    clock: Clock
    trusted: Sequence[str]
    answered: set[str]
    standing: list[Standing]

    @property
    def connected(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    @property
    def answering(self) -> Upstream:
        assert self.store is not None
        return self.store


async def examine(
    config: DatabaseConfig, clock: Clock = local_time, known: Places | None = None, trusted: Sequence[str] = ()
) -> DoctorReport:
    """Ask everything. Writes nothing but the probe's own objects, which it removes.

    ``known`` are the places of the configuration, which findings name. ``trusted`` are roles, and principals of the
    store, that may write without the gateway.
    """
    known = known or Places("the configuration", "", config.model_dump(), {})
    found: dict[str, list[Check]] = {}
    untried: list[str] = []
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(
            Database(config.postgres.dsn.get_secret_value(), pool_size=1, connect_timeout=config.limits.connect_timeout)
        )
        store = None
        if config.s3 is not None:
            store = await stack.enter_async_context(Upstream(config.s3, timeout=config.limits.store_timeout))
        server = await _connect(database)
        answered = {"postgres"} if isinstance(server, Server) else set[str]()
        visit = _Visit(config, known, database, server, store, clock, trusted, answered, [])
        for one in asked_by("doctor"):
            checks = found.setdefault(one.section, [])
            if not one.needs or one.needs in visit.answered:
                # A check is called grants or rules, whatever they are of.
                checks += await attempt(one.name.partition(" of ")[0], _LOOKS[one.name](visit))
            elif "postgres" in visit.answered and one.needs == "schema":
                untried.append(one.name)
            elif one.name == "intents":
                checks.append(problem("intents", "not known without the database", ""))
    if untried:
        advice = "First do what the problem of the schema asks for."
        found[DATABASE].append(warning("not tried", ", ".join(untried), advice))
    return DoctorReport(tuple(ReportSection(title, tuple(checks)) for title, checks in found.items()))


async def _connect(database: Database) -> Server | Check:
    try:
        return await rights.server_facts(database)
    except GatewayError as error:
        return problem("connection", error.told, error.remedy)
    except ValueError:
        detail, _, advice = NO_DATABASE.partition("; ")
        return problem("connection", f"postgres.dsn {detail}", f"{advice.capitalize()}.")


def _of_objects(visit: _Visit) -> Iterable[Check]:
    if (store := visit.config.s3) is None:
        yield ok("objects", "no object store is configured")
    else:
        yield from (_endpoint(store), ok("bypasses", _FOUND), _repeated(store))


def _of_listening(visit: _Visit) -> Iterable[Check]:
    server = visit.config.server
    if not server.tls_certificate and not _is_loopback(server.host):
        yield warning(
            "listen",
            f"{server.listen} is open to the network without TLS",
            "Set tls_certificate and tls_key, or put a proxy with TLS in front: API keys travel with each request.",
        )


def _unknown(names: Iterable[targets.UnknownName], known: Places) -> Iterable[Check]:
    for name in names:
        detail, _, advice = name.problem.partition(". ")
        yield problem("rules", f"{known.describe(name.place)}: {detail}", advice or "Correct it.")


def _endpoint(store: ObjectStore) -> Check:
    parts = urlsplit(store.endpoint)
    detail = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}, region {store.region}"
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        return warning("objects", f"{detail}: not encrypted", "Use https: objects travel in the clear.")
    return ok("objects", detail)


_FOUND = (
    "an object that was changed without the gateway is found by its next write, and by rounds every "
    f"{Limits.sweep_interval:g} s"
)


def _repeated(store: ObjectStore) -> Check:
    if store.duplicates is Duplicates.WAIT:
        return ok("duplicates", "s3.duplicates is wait: writes wait while a finished request could take effect again")
    detail = "s3.duplicates is tolerate: nothing between gateway and store may repeat requests, as nginx does"
    return ok("duplicates", f"{detail} (docs/stores.md)")


def _callers(config: DatabaseConfig) -> Iterable[Check]:
    if not config.callers and not config.issuers:
        advice = "Add a [[callers]] section for each writer."
        yield warning("callers", "none is configured: nobody can prove who it is", advice)
        return
    names = [*(caller.name for caller in config.callers), *(f"{issuer.name}:…" for issuer in config.issuers)]
    yield ok("callers", ", ".join(names))
    without = [caller.name for caller in config.callers if not caller.api_key and not caller.certificates]
    if without:
        yield warning("api keys", f"without one: {', '.join(without)}", "They cannot use tables and the fencing API.")
    unsigned = [caller for caller in config.callers if not caller.pairs and not caller.certificates]
    without = [caller.name for caller in unsigned if grants.reach_objects(config, caller.name, caller.groups)]
    if without and config.s3:
        yield warning("S3 keys", f"without one: {', '.join(without)}", "They cannot use objects.")
    short = [caller.name for caller in config.callers if caller.has_shorter_secret(LONG_ENOUGH)]
    if short:
        advice = f"Give them random ones of {LONG_ENOUGH} characters or more, such as openssl rand -hex 32 makes."
        yield warning("short keys", f"could be guessed: {', '.join(short)}", advice)


def _observed(config: DatabaseConfig) -> Iterable[Check]:
    rules = [*((rule.name, rule.mode) for rule in config.tables), *((rule.match, rule.mode) for rule in config.objects)]
    observed = [name for name, mode in rules if mode is Enforcement.OBSERVE]
    if config.fencing.mode is Enforcement.OBSERVE:
        observed.insert(0, "everything without a mode of its own")
    if observed:
        advice = (
            "Run gateway enforce: it says which writers would be refused, and changes the mode once there are none."
        )
        detail = f"stale writes pass, and are put on record: {', '.join(observed)}"
        yield Check("observe", CheckStatus.WARNING, detail, advice, rules=tuple(_enforcing(config)))


def _enforcing(config: DatabaseConfig) -> Iterable[str]:
    if config.fencing.mode is Enforcement.OBSERVE:
        yield toml.table("fencing", config.fencing, mode=Enforcement.ENFORCE)
    for section, rules in (("tables", config.tables), ("objects", config.objects)):
        for rule in rules:
            if rule.mode is Enforcement.OBSERVE:
                yield toml.entry(section, rule, mode=Enforcement.ENFORCE)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _of_ownership(visit: _Visit) -> Sequence[Check]:
    found = await ownership.read(visit.database)
    try:
        found.check(visit.config.owner)
    except OwnershipDiffers as error:
        return [problem("ownership", error.message.removesuffix("."), error.advice)]
    if found.name is None:
        return [ok("ownership", "it is the only database, and has all names")]
    return [ok("ownership", f"it is {found.name}, and has {shown(found.share)}, by change {found.number}")]


async def _of_naming(visit: _Visit) -> Sequence[Check]:
    async with naming_changes(visit.config, only_look=True) as changes:
        differing = await changes.found()
    advice = "Correct the rule, or see what a change would do: gateway naming plan."
    return [
        problem(f"names of {one.name}", f"in force is {one.was}; configured is {one.following}", advice)
        for one in differing
    ] or [ok("names", "the configured names of rows and keys are the ones in force")]


def _of_server(server: Server) -> Iterable[Check]:
    known = f"PostgreSQL {server.version}, database {server.database}, role {server.role}"
    if server.version_number < OLDEST_VERSION:
        yield problem("connection", known, "Upgrade: the gateway needs PostgreSQL 14 or newer.")
    else:
        yield ok("connection", known)
    if server.superuser:
        yield warning(
            "role", f"{server.role} is a superuser", "Give the gateway a role that may do only what it has to."
        )
    if server.read_only:
        yield problem("writable", "the database is read-only", "Let postgres.dsn name the primary.")
    if server.isolation != "read committed" or server.time_zone != "UTC" or not server.date_style.startswith("ISO"):
        yield problem(
            "session",
            f"isolation {server.isolation}, TimeZone {server.time_zone}, DateStyle {server.date_style}",
            "Something between drops the settings of a session: have the pooler pass startup parameters on.",
        )
    if not (server.fsync and server.synchronous_commit):
        yield problem(
            "durability",
            "commits may be lost in a crash: fsync or synchronous_commit is off",
            "Switch both on: a fence that is lost lets an overtaken writer in again.",
        )


async def _of_schema(visit: _Visit) -> Sequence[Check]:
    database, server = visit.database, visit.connected
    missing = await rights.missing(database)
    if missing:
        if rights.USAGE not in missing:
            visit.answered.add("schema")
        advice = GRANT.format(server.role)
        fixes = tuple(rights.fix(privilege, server.role) for privilege in missing)
        return [Check("schema", CheckStatus.PROBLEM, f"the role lacks {first_few(missing)}", advice, fixes)]
    installed = await migrations.installed(visit.config.postgres.dsn.get_secret_value())
    notice = migrations.check(installed)
    visit.answered.add("schema")
    if notice:
        return [warning("schema", notice, "Upgrade this gateway when all others are.")]
    return [
        ok("schema", f"fencing is at {installed}, the newest"),
        await _of_statements(database, server),
        *await attempt("room", _of_room(database)),
        await _of_record(database, server),
    ]


async def _of_run(visit: _Visit) -> Sequence[Check]:
    """Examine the last opening of the database, and the journal that a lost fence is restored from."""
    config, database = visit.config, visit.database
    mode = config.journal.effective_mode
    server, last = await opening_table.ask(database), await opening_table.read_opening(database)
    flaw = await _flaw_of_journal(config)
    run = f"timeline {server.run.timeline}, started at {server.run.started:%Y-%m-%d %H:%M:%S} UTC"
    if flaw is not None:
        return [problem("run", f"the database stays closed: {flaw}", ADVICE[flaw.problem])]
    if may_serve(server, mode):
        checks = [ok("run", f"the database is open for the present run of its server: {run}")]
    else:
        advice = "Nothing to do: the first gateway that connects opens it, and puts it on record."
        if mode is Mode.OFF:
            same = server.opened.run is not None and server.opened.run.timeline == server.run.timeline
            found = "a restart" if same else "a failover"
            lossy = "the disk was put back to a snapshot" if same else "the promoted standby lagged behind"
            advice = (
                f"It is {found} of its server, and the first gateway that connects opens it. No journal shows a "
                f"loss of fences. If {lossy}, stop the writers first, and run 'gateway open --accept-loss'."
            )
        checks = [warning("run", f"the database is not open for the present run of its server: {run}", advice)]
    opened = "at its installation" if last.opened_at is None else f"at {last.opened_at:%Y-%m-%d %H:%M:%S} UTC"
    if mode is Mode.OFF:
        return [*checks, ok("journal", f"off: a loss of the database loses fences; last opened {opened}")]
    return [*checks, ok("journal", f"{mode}, snapshot {last.snapshot}; last opened {opened}, in term {last.term}")]


async def _flaw_of_journal(config: DatabaseConfig) -> Flaw | None:
    async with wiring.opened(config, owned=False) as storage:
        try:
            return await storage.journal.examine()
        except JournalUnusable as error:
            return Flaw(Problem(str(error.facts["problem"])), error.message)


async def _of_statements(database: Database, server: Server) -> Check:
    refused = await rights.refused_statements(database)
    if not refused:
        return ok("statements", f"PostgreSQL plans all statements of the gateway for {server.role}")
    return problem("statements", f"PostgreSQL refuses {first_few(refused)}", GRANT.format(server.role))


async def _of_room(database: Database) -> Sequence[Check]:
    await rights.try_to_write(database)
    return [ok("room", "the fencing tables can grow on their disk")]


async def _of_record(database: Database, server: Server) -> Check:
    excessive = await rights.excessive(database)
    if not excessive:
        return ok("record", f"{server.role} can add to it, and change nothing")
    advice = "Let another role own the schema fencing, and grant this one what it needs: docs/operations.md."
    return warning("record", f"{server.role} could change what is on record: {first_few(excessive)}", advice)


async def _of_roles(visit: _Visit) -> Sequence[Check]:
    checks = []
    for role in await rights.acting_roles(visit.database, visit.config.postgres.database_roles):
        if not role.exists:
            checks.append(problem(f"role {role.name}", "it does not exist", "Create it, or correct postgres.roles."))
        elif not role.member:
            advice = f"Run: GRANT {role.quoted} TO {role.gateway}."
            checks.append(problem(f"role {role.name}", f"{role.gateway} may not act as it", advice))
        elif not role.may_call:
            advice = f"Run gateway migrate, or: GRANT USAGE ON SCHEMA fencing TO {role.quoted}."
            checks.append(problem(f"role {role.name}", "it may not call what fenced statements call", advice))
        elif role.unbound:
            detail = "no policy binds it: it is a superuser, or has BYPASSRLS"
            checks.append(
                warning(f"role {role.name}", detail, "Let callers act under a role with the rights they need.")
            )
        else:
            checks.append(ok(f"role {role.name}", f"{role.gateway} may act as it"))
    return checks


async def _of_exposed(visit: _Visit) -> Sequence[Check]:
    role, schemas = visit.connected.role, visit.config.postgres.schemas
    missing = await rights.missing_on_exposed(visit.database, schemas)
    checks = [_of_one_schema(each, role) for each in await rights.exposed_tables(visit.database, schemas)]
    if missing:
        lacking = [f"{', '.join(one.privileges)} on {one.relation}" for one in missing]
        advice = f"Grant them to {role} where callers are meant to have them: gateway doctor --fix-sql."
        fixes = tuple(one.fix for one in missing)
        checks.append(Check("privileges", CheckStatus.WARNING, f"the role lacks {first_few(lacking)}", advice, fixes))
    return checks


async def _of_writers_of_tables(visit: _Visit) -> Sequence[Check]:
    writers = check_table_writers(visit.config, visit.database, visit.connected.version_number, visit.trusted)
    return await attempt("tables", writers)


async def _of_names(visit: _Visit) -> Sequence[Check]:
    unknown = await targets.unknown_in_database(visit.config, visit.database)
    # A schema that does not exist has a finding of its own.
    return list(_unknown([name for name in unknown if name.place != ("postgres", "schemas")], visit.known))


async def _of_bucket_names(visit: _Visit) -> Sequence[Check]:
    return list(_unknown(await targets.unknown_buckets(visit.config, visit.answering), visit.known))


async def _of_grants(unknown: Awaitable[Sequence[tuple[int, str, str]]]) -> Sequence[Check]:
    return [grants.without_target(*each) for each in await unknown]


def _of_one_schema(exposed: Exposed, role: str) -> Check:
    name = f"schema {exposed.schema}"
    if not exposed.present:
        return problem(name, "it does not exist", "Create it, or take it out of postgres.schemas.")
    if not exposed.usable:
        fix = f"GRANT USAGE ON SCHEMA {quote(exposed.schema)} TO {quote(role)}"
        return Check(name, CheckStatus.PROBLEM, f"{role} may not use it", f"{fix}.", (fix,))
    return ok(name, f"{len(exposed.relations)} tables and views")


async def _of_local_clock(visit: _Visit) -> Sequence[Check]:
    before = visit.clock()
    now = await visit.database.now()
    local = before + (visit.clock() - before) / 2
    return [
        _skew("clock", now - local, "this machine's", "Set this machine's clock by NTP: callers' signatures expire.")
    ]


def _skew(name: str, ahead: timedelta, other: str, advice: str) -> Check:
    direction = "ahead of" if ahead > timedelta() else "behind"
    detail = f"the database's is {abs(ahead).total_seconds():.0f} s {direction} {other}"
    if abs(ahead) >= HARMFUL_SKEW:
        return problem(name, detail, advice)
    return warning(name, detail, advice) if abs(ahead) >= NOTABLE_SKEW else ok(name, detail)


async def _of_store(visit: _Visit) -> Sequence[Check]:
    if visit.store is None:
        return [ok("connection", "not configured")]
    return await attempt("connection", _of_connection(visit, visit.store))


async def _of_connection(visit: _Visit, store: Upstream) -> Sequence[Check]:
    moment = await visit.database.now() if "postgres" in visit.answered else None
    date = await store.look()
    visit.answered.add("s3")
    checks = [ok("connection", f"the store at {store.at} answers")]
    if date is not None and moment is not None:
        checks.append(_skew("clock", moment - date, "the store's", _SKEW_ADVICE))
    return checks


_SKEW_ADVICE = "Set both clocks by NTP. Writes do not depend on it: they are signed with the store's own time."


async def _buckets(config: DatabaseConfig, upstream: Upstream) -> Sequence[str]:
    """Return the buckets that rules name; without any, the buckets that the store lists."""
    named = dict.fromkeys(rule.match.partition("/")[0] for rule in config.objects)
    literal = [name for name in named if not set("*{}") & set(name)]
    if literal:
        return literal
    try:
        async with await upstream.send("GET", "/") as response:
            return xml.read_buckets(await response.read())[:_MOST_BUCKETS]
    except GatewayError:
        return ()


async def _of_each_bucket(visit: _Visit, look: Callable[[Upstream, str], Looking]) -> Sequence[Check]:
    if (store := visit.store) is None:
        return ()
    each = [await attempt(f"bucket {one}", look(store, one)) for one in await _buckets(visit.config, store)]
    return [check for checks in each for check in checks]


async def _of_bucket(upstream: Upstream, bucket: str) -> Sequence[Check]:
    profile = await probe(upstream, bucket)
    failed = [_of_finding(bucket, finding) for finding in profile.findings if not finding.passed]
    return [_of_profile(bucket, profile), *failed]


def _of_profile(bucket: str, profile: Profile) -> Check:
    name = f"bucket {bucket}"
    if not profile.writable:
        found = question("buckets").find(bucket=Name(bucket), reason=profile.reason or "").check
        return problem(name, found.detail, f"{found.advice} Probes: {PREFIX}")
    passed = [finding.name for finding in profile.findings if finding.passed]
    return ok(name, f"can be fenced; passed {', '.join(passed)}")


def _of_finding(bucket: str, finding: ProbeFinding) -> Check:
    make = problem if finding.name in REQUIRED else warning
    return make(f"bucket {bucket}, {finding.name}", finding.detail, finding.consequence)


async def _of_work(visit: _Visit, name: str) -> Sequence[Check]:
    if not visit.standing:
        visit.standing.append(await overview.read_standing(visit.database))
    return [notice.check for notice in visit.standing[0].notices if notice.name == name]


async def _of_tombstones(visit: _Visit) -> Sequence[Check]:
    count, waiting = await intents.count_tombstones(visit.database, await visit.database.now())
    many = count - waiting > MANY_TOMBSTONES
    return [question("tombstones").count(count, notable=many, count=str(count), waiting=str(waiting)).check]


async def _of_side_effects(visit: _Visit) -> Sequence[Check]:
    """Return a finding for each cascade, trigger, rule and child without a rule. Raise ``GatewayError``.

    An effect that the gateway refuses is in order.
    """
    config, database = visit.config, visit.database
    rows = await catalog.relations(database, config.postgres.schemas)
    snapshot = Snapshot.from_rows(rows, await catalog.references(database))
    rules, default = table_rules(config)
    found = find_side_effects(snapshot, lambda schema, name: rules.get(f"{schema}.{name}", default))
    if not found:
        return [ok("reach", "no write of an exposed table reaches rows whose fences are not claimed")]
    return [
        ok(f"table {each.table}", each.text)
        if each.refused
        else Check(f"table {each.table}", CheckStatus.WARNING, each.text, each.advice, rules=_suggested(config, each))
        for each in found
    ]


def _suggested(config: DatabaseConfig, effect: SideEffect) -> tuple[str, ...]:
    """Return rules with one resource for both tables, and the rule that refuses such writes."""
    known = {rule.name: rule for rule in config.tables}

    def entry(name: str, **changed: object) -> str:
        return toml.entry("tables", known.get(name) or TableRule(name=name), **changed)

    rules = ["\n\n".join(entry(name, resource=template) for name, template in effect.shared)] if effect.shared else []
    return (*rules, entry(effect.table, cascades=Cascades.REFUSE)) if effect.refusable else tuple(rules)


_LOOKS: Mapping[str, Callable[[_Visit], Looking]] = {
    "tables": lambda visit: [ok("tables", f"the schemas {', '.join(visit.config.postgres.schemas)} are exposed")],
    "objects": _of_objects,
    "patterns of objects": lambda visit: _unknown(targets.unreadable_rules(visit.config), visit.known),
    "callers": lambda visit: _callers(visit.config),
    "grants of callers": lambda visit: grants.check(visit.config),
    "observe": lambda visit: _observed(visit.config),
    "listen": _of_listening,
    "postgres": lambda visit: _of_server(visit.server) if isinstance(visit.server, Server) else [visit.server],
    "schema": _of_schema,
    "run": _of_run,
    "exposed schemas": _of_exposed,
    "roles": _of_roles,
    "rules": _of_names,
    "grants": lambda visit: _of_grants(targets.unknown_in_grants(visit.config, visit.database)),
    "ownership": _of_ownership,
    "naming": _of_naming,
    "reach": _of_side_effects,
    "guard": lambda visit: guard_findings.examine(visit.config, visit.database),
    "clock": _of_local_clock,
    "s3": _of_store,
    "rules of buckets": _of_bucket_names,
    "grants of buckets": lambda visit: _of_grants(targets.unknown_buckets_of_grants(visit.config, visit.answering)),
    "buckets": lambda visit: _of_each_bucket(visit, _of_bucket),
    "writers of tables": _of_writers_of_tables,
    "writers of buckets": lambda visit: _of_each_bucket(visit, partial(check_bucket_writers, trusted=visit.trusted)),
    "intents": lambda visit: _of_work(visit, "intents"),
    "uploads": lambda visit: _of_work(visit, "uploads"),
    "sealing": lambda visit: _of_work(visit, "sealing"),
    "tombstones": _of_tombstones,
}
