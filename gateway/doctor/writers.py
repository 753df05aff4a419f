"""The roles that could write fenced tables, and the principals that could write fenced buckets, without the gateway.

A write that passes it meets no fence. S3 shows the policy and the ACL of a bucket. It does not show which of its users
an administrator allows. Which roles can write is asked in SQL: ``gateway/db/queries/access.sql``.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.config.databases import DatabaseConfig
from gateway.db import catalog, rights
from gateway.db.database import Database
from gateway.db.rights import FencedTable, Way, Writers
from gateway.errors import GatewayError, first_few
from gateway.fencing.decision import Enforcement
from gateway.findings import Check, CheckStatus, ok, warning
from gateway.guard.installation import judging
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream
from gateway.tables.catalog import Snapshot
from gateway.tables.sql.expressions import quote
from gateway.wiring import table_rules

OWNER = "fencing_tables"
"""The role without login that takes over tables and schemas."""

_FENCES = "fencing."
_MAKE_OWNER = f"""DO $$ BEGIN
    IF to_regrole('{OWNER}') IS NULL THEN CREATE ROLE {OWNER} NOLOGIN; END IF;
END $$"""
_OWN_FENCING = f"""DO $$ DECLARE statement text; BEGIN
    FOR statement IN
        SELECT format('ALTER TABLE %s OWNER TO {OWNER}', c.oid::regclass) FROM pg_class AS c
        WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm')
        UNION ALL
        SELECT format('ALTER ROUTINE %s OWNER TO {OWNER}', p.oid::regprocedure) FROM pg_proc AS p
        WHERE p.pronamespace = 'fencing'::regnamespace
        UNION ALL
        SELECT format('ALTER TYPE %s OWNER TO {OWNER}', t.oid::regtype) FROM pg_type AS t
        LEFT JOIN pg_class AS c ON c.oid = t.typrelid
        WHERE t.typnamespace = 'fencing'::regnamespace AND t.typelem = 0 AND (t.typrelid = 0 OR c.relkind = 'c')
    LOOP EXECUTE statement; END LOOP;
END $$"""  # noqa: S608 - a constant

WORDS = {
    "superuser": "is a superuser{as_}",
    "all-data": "is a member of {through}",
    "server-files": "is a member of {through}, and so can become a superuser",
    "create-role": "has CREATEROLE, and so can become a member of any role but a superuser",
    "gateway": "may act as {through}, the role of the gateway",
    "past-triggers": "may set session_replication_role, which switches guards off",
    "owner": "owns it{as_}",
    "schema": "owns the schema {detail}, and can drop the table{as_}",
    "code": "owns {detail}, which runs with the rights of each writer{as_}",
    "grant": "has {detail}{as_}",
    "function": "may call {detail}, which writes it with its owner's rights{as_}",
    "trigger": "may write {detail}, whose trigger writes it with its owner's rights{as_}",
    "view": "may write {detail}, which writes it{as_}",
    "part": "may write {detail}, of which it is a part{as_}",
    "cascade": "may write {detail}, which reaches it by a foreign key{as_}",
    "subscription": "is a subscription that writes it",
}
# A guard checks direct writes, whatever right they need. The owner can drop it, and replication passes it.
_PAST_A_GUARD = {"owner", "schema", "code", "subscription"}
_PAST_TRIGGERS = "past-triggers"
_MOVE = "Before the mode is enforce, let this program write through the gateway, or under a guard."
_ADVICE = "gateway doctor --fix-sql prints what closes it, and --trust NAME accepts it (docs/operations.md)."


async def check_table_writers(
    config: DatabaseConfig, database: Database, version: int, trusted: Sequence[str]
) -> Sequence[Check]:
    """Return a warning for each way to write a fenced table without the gateway; ``ok`` for tables without one.

    ``trusted``: login roles that the operator trusts. ``version`` is as in ``server_version_num``.
    """
    tables = await _fenced(config, database)
    guarded = {table.relation for table in tables if table.guarded}
    found = [
        way
        for way in await rights.ways_to_tables(database, tables, trusted, version)
        if way.relation not in guarded or way.way in _PAST_A_GUARD
    ]
    general = await rights.ways_to_any_table(database, trusted, version)
    if guarded:
        general += await rights.ways_past_triggers(database, trusted, version)
    later = await rights.ways_to_later_tables(database, config.postgres.schemas, trusted)
    checks = [*_of_roles(general), *_of_tables(found), *_of_later(later)]
    if _observed(config):
        writers = {way.who for way in (*general, *found)}
        checks += _of_sessions(await rights.sessions(database, tables, trusted), writers)
    open_tables = {way.relation for way in found}
    closed = [table.relation for table in tables if table.relation not in open_tables]
    if closed and not general:
        beside = f" and {', '.join(trusted)}" if trusted else ""
        served = [name for name in closed if not name.startswith(_FENCES)]
        named = [first_few(served)] if served else []
        if len(served) < len(closed):
            named.append("the tables of the fences")
        checks.append(ok("other writers", f"none but the gateway{beside} could write {' and '.join(named)}"))
    return checks


async def _fenced(config: DatabaseConfig, database: Database) -> list[FencedTable]:
    """Return the tables whose writers are to be found, whatever their mode: in observe mode one prepares to enforce."""
    snapshot = Snapshot.from_rows(await catalog.relations(database, config.postgres.schemas))
    tables = [
        f"{quote(schema)}.{quote(name)}"
        for (schema, name), table in snapshot.tables.items()
        if table.kind in ("r", "p")
    ]
    guarded = [f"{quote(schema)}.{quote(name)}" for schema, name in await judging(config, database)]
    return await rights.fenced_tables(database, tables, guarded)


def _observed(config: DatabaseConfig) -> bool:
    rules, default = table_rules(config)
    return any(rule.mode is Enforcement.OBSERVE for rule in (default, *rules.values()))


def _of_sessions(found: Iterable[Writers], writers: Collection[str]) -> Iterable[Check]:
    """Yield a warning for the sessions of each program that could write beside the gateway, or does so now."""
    for one in found:
        if one.who in writers or one.writing or one.own:
            detail = f"{one.sessions} of {one.application or 'a program without a name'}"
            if one.writing:
                detail += f", {one.writing} with a write in an open transaction"
            yield warning(f"sessions as {one.who}", detail, _MOVE)


def _of_roles(ways: Iterable[Way]) -> Iterable[Check]:
    by_role: dict[str, list[Way]] = {}
    for way in ways:
        by_role.setdefault(way.who, []).append(way)
    for who, its in by_role.items():
        what = "could pass each guard" if all(way.way == _PAST_TRIGGERS for way in its) else "could write every table"
        detail = f"{what}: {'; '.join(_said(way) for way in its)}"
        yield Check(f"role {who}", CheckStatus.WARNING, detail, _ADVICE, _fixes(its))


def _of_tables(ways: Iterable[Way]) -> Iterable[Check]:
    """Yield one check for all tables that are open in the same ways."""
    by_table: dict[str, list[Way]] = {}
    for way in ways:
        by_table.setdefault(way.relation, []).append(way)
    alike: dict[tuple[str, ...], list[str]] = {}
    for relation, its in by_table.items():
        alike.setdefault(tuple(dict.fromkeys(f"{way.who} {_said(way)}" for way in its)), []).append(relation)
    for said, relations in alike.items():
        fixes = _fixes(way for relation in relations for way in by_table[relation])
        yield Check(f"table {first_few(relations)}", CheckStatus.WARNING, "; ".join(said), _ADVICE, fixes)


def _of_later(ways: Iterable[Way]) -> Iterable[Check]:
    for way in ways:
        detail = f"tables that {way.through} creates later let {way.who} {way.detail}"
        yield Check(way.relation, CheckStatus.WARNING, detail, _ADVICE, (way.fix,))


def _said(way: Way) -> str:
    as_ = "" if way.through in (way.who, "PUBLIC") else f" as {way.through}"
    return WORDS[way.way].format(through=way.through, detail=way.detail, as_=as_)


def _fixes(ways: Iterable[Way]) -> tuple[str, ...]:
    fixes = dict.fromkeys(_fix(way) for way in ways)
    given = [fix for fix in fixes if fix]
    return (_MAKE_OWNER, *given) if any(OWNER in fix for fix in given) else tuple(given)


def _fix(way: Way) -> str:
    # Functions of the schema run with the rights of its owner, so that all of it has one owner.
    return _OWN_FENCING if way.relation.startswith(_FENCES) and way.way == "owner" else way.fix


# Buckets ------------------------------------------------------------------------------------------------------------

STORE = "store"
"""The name under which an operator trusts the users whom the store does not show."""

_WRITES = ("PutObject", "DeleteObject", "DeleteObjectVersion", "ReplicateObject", "ReplicateDelete")
_RIGHTS = ("PutObjectAcl", "PutBucketAcl", "PutBucketPolicy", "PutLifecycleConfiguration")
_GRANTED = ("WRITE", "WRITE_ACP", "FULL_CONTROL")
_EXCEPT = {f"{kind}not{how}" for kind in ("string", "arn") for how in ("equals", "like")} | {
    "stringnotequalsignorecase"
}
_OWN_NAMES = ("aws:principalarn", "aws:userid")
# Its policies are for requests without a signature. Its users have policies of their own.
_IGNORES_POLICIES = "MinIO"


async def check_bucket_writers(upstream: Upstream, bucket: str, trusted: Sequence[str]) -> Sequence[Check]:
    """Return a warning for each way to write a bucket without the gateway, or ``ok``."""
    name = f"bucket {bucket}, other writers"
    status, policy, server = await _read(upstream, bucket, "policy")
    if status not in (200, 404):
        policy = b""
    document = _json(policy) if status == 200 else {}
    acl_status, acl, _ = await _read(upstream, bucket, "acl")
    granted = _granted(acl) if acl_status == 200 else []
    found = {who: said for who, said in [*policy_writers(document), *granted] if who not in trusted}
    if found:
        said = "; ".join(f"{who} {what}" for who, what in found.items())
        return [Check(name, CheckStatus.WARNING, said, _ADVICE, _bucket_fix(bucket))]
    only = () if server.startswith(_IGNORES_POLICIES) else sole_writers(document, bucket)
    if only:
        return [ok(name, f"its policy denies writes to all but {', '.join(only)}")]
    shown = "neither its policy nor its ACL lets others write it"
    if status not in (200, 404):
        shown = f"the store does not show its policy to the gateway ({status})"
    if STORE in trusted:
        return [ok(name, f"{shown}; the users of the store are trusted")]
    fix = () if server.startswith(_IGNORES_POLICIES) else _bucket_fix(bucket)
    said = f"{shown}; the store does not say which of its users its administrators allow"
    return [Check(name, CheckStatus.WARNING, said, _ADVICE, fix)]


def policy_writers(policy: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield each principal that a policy lets write, and how. A condition is not evaluated."""
    for statement in _statements(policy, "Allow"):
        actions = [action for action in (*_WRITES, *_RIGHTS) if _covers(statement, action)]
        if actions:
            condition = ", under a condition" if statement.get("Condition") else ""
            said = f"may {', '.join(actions)} by the policy{condition}"
            if "NotPrincipal" in statement:
                yield "everybody but " + ", ".join(_principals(statement["NotPrincipal"])), said
            for who in _principals(statement.get("Principal", ())):
                yield who, said


def sole_writers(policy: Mapping[str, Any], bucket: str) -> tuple[str, ...]:
    """Return the only principals whom a policy does not deny writes; nothing without a denial."""
    for statement in _statements(policy, "Deny"):
        if not all(_covers(statement, action) for action in _WRITES[:3]):
            continue
        if not any(fnmatchcase(f"arn:aws:s3:::{bucket}/x", one) for one in _listed(statement.get("Resource", ()))):
            continue
        if statement.get("Condition"):
            if "*" in _principals(statement.get("Principal", ())) and (named := _named(statement["Condition"])):
                return named
        elif "NotPrincipal" in statement:
            return tuple(_principals(statement["NotPrincipal"]))
    return ()


def _named(condition: Any) -> tuple[str, ...]:
    """Return the principals that a condition excepts; nothing if it is about anything else, too."""
    if not isinstance(condition, Mapping) or len(condition) != 1:
        return ()
    [(operator, keys)] = condition.items()
    if operator.lower() not in _EXCEPT or not isinstance(keys, Mapping) or len(keys) != 1:
        return ()
    [(key, values)] = keys.items()
    return tuple(_listed(values)) if key.lower() in _OWN_NAMES else ()


def _statements(policy: Mapping[str, Any], effect: str) -> Iterable[Mapping[str, Any]]:
    found = policy.get("Statement", ())
    for statement in [found] if isinstance(found, Mapping) else found:
        if isinstance(statement, Mapping) and statement.get("Effect") == effect:
            yield statement


def _covers(statement: Mapping[str, Any], action: str) -> bool:
    def matches(patterns: Any) -> bool:
        return any(fnmatchcase(f"s3:{action}".lower(), one.lower()) for one in _listed(patterns))

    return not matches(statement["NotAction"]) if "NotAction" in statement else matches(statement.get("Action", ()))


def _principals(named: Any) -> list[str]:
    if isinstance(named, Mapping):
        return [who for values in named.values() for who in _listed(values)]
    return _listed(named)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]


def _granted(acl: bytes) -> list[tuple[str, str]]:
    """Return the grantees of an ACL that may write, other than the owner of the bucket."""
    owner, grants = xml.read_acl(acl)
    found: dict[str, list[str]] = {}
    for grantee, permission in grants:
        if permission in _GRANTED and grantee != owner:
            found.setdefault(grantee, []).append(permission)
    return [(grantee, f"has {', '.join(permissions)} by the ACL") for grantee, permissions in found.items()]


def _bucket_fix(bucket: str) -> tuple[str, ...]:
    statement = {
        "Sid": "FencedByTheGateway",
        "Effect": "Deny",
        "NotPrincipal": {"AWS": ["THE PRINCIPAL OF s3.access_key_id"]},
        "Action": [f"s3:{action}" for action in (*_WRITES, *_RIGHTS)],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)
    told = f"The policy of the bucket {bucket}, for s3api put-bucket-policy:\n{policy}"
    return ("\n".join(f"-- {line}" for line in told.split("\n")),)


async def _read(upstream: Upstream, bucket: str, what: str) -> tuple[int, bytes, str]:
    """Return status and body of what the store says, and the name of its server."""
    try:
        async with await upstream.send("GET", f"/{bucket}", f"{what}=") as response:
            return response.status, await response.read(), response.header("server") or ""
    except GatewayError as error:
        return error.status, b"", ""


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
