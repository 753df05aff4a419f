"""Checks of the sections against each other: names that must exist, or be unique, and keys that need others."""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from gateway.config.explanations import Place, nearest
from gateway.config.sections import GROUP, DatabaseEntry, Postgres
from gateway.fencing.ownership import OWN_KEYS, Ownership
from gateway.fencing.ownership_checks import KeyNames, Names, conflicts, foreign_to
from gateway.fencing.record import ANONYMOUS
from gateway.fencing.token_policy import TokenPolicy

if TYPE_CHECKING:
    from gateway.config import Config

Problem: TypeAlias = tuple[Place, str]
"""A place in the configuration, and what is wrong there."""


def problems(config: "Config") -> Iterator[Problem]:
    """Yield what is wrong between the sections. A check may rely on those before it."""
    return chain.from_iterable(check(config) for check in _CHECKS)


def _misplaced_databases(config: "Config") -> Iterator[Problem]:
    if config.postgres is None and not config.databases:
        yield ("postgres",), "the section is missing; add it"
    databases, stores = config.databases, config.stores
    if config.s3 is not None and stores:
        yield ("stores",), "one store is [s3], several are [[stores]]; remove one of these sections"
    if not databases:
        if stores:
            yield ("stores",), "several stores need several databases; write [[databases]], or [s3] for one store"
        return
    if config.postgres is not None:
        yield ("databases",), "one database is [postgres], several are [[databases]]; remove one of these sections"
    if "journal" in config.model_fields_set:
        yield ("journal",), "each database has a journal of its own; move it to [databases.journal]"
    if not databases[0].schemas:
        yield ("databases", 0, "schemas"), "requests that name no schema need one here; name it"
    for number, key, problem in conflicts(config.domains):
        yield ("databases", number, key), problem
    yield from _misplaced_stores(config)
    yield from _shared_journals(config)


def _misplaced_stores(config: "Config") -> Iterator[Problem]:
    names = {one.name for one in config.stores}
    for number, one in enumerate(config.databases):
        if one.store is not None and one.store not in names:
            yield ("databases", number, "store"), f"there is no store {one.store}; add it to [[stores]]"
        absent = config.s3 is None and one.store is None
        if one.buckets and absent:
            yield ("databases", number, "buckets"), "buckets need an object store; set store, or add [s3]"
        if one.journal.bucket is not None and absent:
            yield ("databases", number, "journal", "bucket"), "a bucket needs an object store; set store, or add [s3]"
        yield from ((("databases", number, "buckets"), problem) for problem in _divided(config, one))
    used = {one.store for one in config.databases}
    for number, store in enumerate(config.stores):
        if store.name not in used:
            yield ("stores", number), f"no database has its buckets in {store.name}; set store there, or remove it"


def _divided(config: "Config", one: DatabaseEntry) -> Iterator[str]:
    """Yield the prefixes of a database that cannot be in their bucket."""
    ownership = Ownership(config.domains)
    stores = {each.name: each.store for each in config.databases}
    own_keys = (OWN_KEYS, *(each.journal.prefix for each in config.databases))
    for rule in one.domain(default=False).prefixes:
        bucket, _, prefix = rule.partition("/")
        owner = ownership.of_bucket(bucket)
        if stores[owner] != one.store:
            yield f"{rule} is in another store than the rest of {bucket}, which {owner} owns; give both the same store"
        if prefix.startswith(own_keys) or any(own.startswith(prefix) for own in own_keys):
            yield f"{rule} has keys of the gateway's own, which no database owns; choose another prefix"


def _shared_journals(config: "Config") -> Iterator[Problem]:
    """Yield journals that two databases would write to one place, where each would take the other's for its own."""
    endpoints: dict[str | None, Any] = {one.name: _server(one.endpoint) for one in config.stores}
    for number, one in enumerate(config.databases):
        for before in config.databases[:number]:
            if _meet(one, before, endpoints):
                problem = f"{before.name} has its journal there as well; give each its own place"
                yield ("databases", number, "journal"), problem
    addresses: dict[str, str] = {}
    for number, one in enumerate(config.databases):
        if other := addresses.get(one.dsn.get_secret_value()):
            yield ("databases", number, "dsn"), f"{other} has the same one; two databases cannot share their fences"
        addresses[one.dsn.get_secret_value()] = one.name


def _server(endpoint: str) -> tuple[str, str | None, int | None]:
    """Return the server of a store. Two stores may be two names of one."""
    parts = urlsplit(endpoint)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _meet(one: DatabaseEntry, other: DatabaseEntry, endpoints: Mapping[str | None, Any]) -> bool:
    """Return whether one of two journals would list objects or rows of the other one."""
    mine, theirs = one.journal, other.journal
    if mine.dsn is not None or theirs.dsn is not None:
        return mine.dsn == theirs.dsn
    if mine.bucket is None or theirs.bucket is None or endpoints.get(one.store) != endpoints.get(other.store):
        return False
    if mine.bucket.partition("/")[0] != theirs.bucket.partition("/")[0]:
        return False
    return mine.prefix.startswith(theirs.prefix) or theirs.prefix.startswith(mine.prefix)


def _misplaced_rules(config: "Config") -> Iterator[Problem]:
    """Yield rules of tables and keys that would give their targets names of another database."""
    if not config.databases:
        return
    domains = config.domains
    ownership = Ownership(domains)
    exposed = {schema for one in domains for schema in one.schemas}
    for index, rule in enumerate(config.tables):
        schema = rule.name.partition(".")[0]
        if schema not in exposed:
            continue  # the comparison with the database has better advice
        owner = ownership.of_schema(schema)
        if rule.resource is not None and (other := foreign_to(owner, Names.of(rule.resource), domains)):
            yield ("tables", index, "resource"), _foreign(rule.resource, rule.name, owner, other, of=f"{rule.name} is")
    for index, key_rule in enumerate(config.objects):
        template = key_rule.resource
        if template is not None and (found := KeyNames(key_rule.match, template).foreign(domains)):
            owner, other = found
            yield (
                ("objects", index, "resource"),
                _foreign(template, key_rule.match, owner, other, of=f"keys of {key_rule.match} are"),
            )


def _foreign(template: str, target: str, owner: str, other: str, of: str) -> str:
    return (
        f"{template} of {target} can name resources of {other}, and {of} in {owner}; "
        f"choose another template, or add a pattern to resources of {owner}"
    )


def _signed_tokens_need_a_key(config: "Config") -> Iterator[Problem]:
    for index, rule in enumerate(config.resources):
        if rule.tokens is TokenPolicy.SIGNED and not config.leases.signing_keys:
            problem = "'signed' needs signing keys; set signing_keys in [leases]"
            yield ("resources", index, "tokens"), problem


def _journal_in_a_bucket_needs_a_store(config: "Config") -> Iterator[Problem]:
    if config.journal.bucket is not None and config.s3 is None:
        yield ("journal", "bucket"), "a bucket needs an object store; set endpoint and keys in [s3]"


def _alarms_name_webhooks(config: "Config") -> Iterator[Problem]:
    names = {webhook.name for webhook in config.webhooks}
    for index, alarm in enumerate(config.alarms):
        if unknown := set(alarm.webhooks) - names:
            name = min(unknown)
            advice = nearest(name, names) or " Add it to [[webhooks]], or remove it here."
            yield ("alarms", index, "webhooks"), f"there is no webhook {name}.{advice}"


def _grants_name_callers(config: "Config") -> Iterator[Problem]:
    names = {caller.name for caller in config.callers} | {"*", ANONYMOUS}
    placed: list[tuple[Place, Postgres]] = [] if config.postgres is None else [(("postgres",), config.postgres)]
    placed += [(("databases", number), one) for number, one in enumerate(config.databases)]
    rules: list[tuple[Place, tuple[str, ...]]] = [
        *((("grants", index), rule.callers) for index, rule in enumerate(config.grants)),
        *(((*at, "roles", index), rule.callers) for at, one in placed for index, rule in enumerate(one.roles)),
    ]
    for place, callers in rules:
        if unknown := {one for one in callers if not (config.is_of_issuer(one) or one.startswith(GROUP))} - names:
            name = min(unknown)
            named = names | {f"{issuer.name}:*" for issuer in config.issuers}
            advice = nearest(name, named) or " Add it to [[callers]], or remove it here."
            yield (*place, "callers"), f"there is no caller {name}.{advice}"


def _callers_of_issuers_are_theirs(config: "Config") -> Iterator[Problem]:
    for index, caller in enumerate(config.callers):
        if config.is_of_issuer(caller.name):
            problem = f"{caller.name} is how callers of an issuer are called; choose another name"
            yield ("callers", index, "name"), problem
    claims = [one.issuer for one in config.issuers]
    for index, claim in enumerate(claims):
        if claim in claims[:index]:
            said = "two issuers have none" if claim is None else f"{claim} is configured twice"
            yield ("issuers", index, "issuer"), f"{said}; remove one"


def _logins_have_an_address_and_a_key(config: "Config") -> Iterator[Problem]:
    for index, one in enumerate(config.issuers):
        place = ("issuers", index, "login")
        if one.login is not None and config.server.public_address is None:
            yield place, "needs the address to come back to; set public_address in [server]"
        if one.login is not None and not config.identity.signing_keys:
            yield place, "needs a key that signs sessions; set signing_keys in [identity]"


def _names_are_unique(config: "Config") -> Iterator[Problem]:
    for section, key, names in (
        # Names that differ only in case look like one name to the reader of the record.
        ("callers", "name", [caller.name.casefold() for caller in config.callers]),
        ("issuers", "name", [issuer.name for issuer in config.issuers]),
        ("databases", "name", [one.name for one in config.databases]),
        ("stores", "name", [one.name for one in config.stores]),
        ("tables", "name", [rule.name for rule in config.tables]),
        ("objects", "match", [rule.match for rule in config.objects]),
        ("resources", "match", [rule.match for rule in config.resources]),
        ("webhooks", "name", [webhook.name for webhook in config.webhooks]),
        ("alarms", "name", [alarm.name for alarm in config.alarms]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield (section, index, key), f"{name} is configured twice; remove or rename one"


def _each_key_has_one_owner(config: "Config") -> Iterator[Problem]:
    owners: dict[str, str] = {}
    named: dict[str, str] = {}
    ids: set[str] = set()
    for index, caller in enumerate(config.callers):
        for key in caller.api_key:
            if (other := owners.setdefault(key.get_secret_value(), caller.name)) != caller.name:
                yield ("callers", index), f"has the same api_key as {other}; give each its own"
        for name in caller.certificates:
            if name in named:
                problem = f"{name} is there twice, the first time for {named[name]}; remove one of them"
                yield ("callers", index, "certificates"), problem
            named[name] = caller.name
        if caller.certificates and config.server.client_authorities is None:
            problem = "needs client_authorities in [server], which sign client certificates; set it as well"
            yield ("callers", index, "certificates"), problem
        for pair in caller.pairs:
            if pair.access_key_id in ids:
                problem = f"the access_key_id {pair.access_key_id} is configured twice; give each pair its own"
                yield ("callers", index), problem
            ids.add(pair.access_key_id)


_CHECKS = (
    _misplaced_databases,
    _signed_tokens_need_a_key,
    _journal_in_a_bucket_needs_a_store,
    _alarms_name_webhooks,
    _grants_name_callers,
    _callers_of_issuers_are_theirs,
    _logins_have_an_address_and_a_key,
    _names_are_unique,
    _each_key_has_one_owner,
    _misplaced_rules,
)
