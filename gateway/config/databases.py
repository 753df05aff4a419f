"""The sections that databases share, those that each has for itself, and a configuration for each of them alone.

Several databases must not share a name, nor a journal.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, InstanceOf

from gateway.config.access import CallerKeys, GrantRule, Identity, Issuer
from gateway.config.rules import (
    Alarm,
    Audit,
    Fencing,
    Leases,
    ObjectRule,
    ResourceRule,
    TableRule,
    Telemetry,
    Webhook,
)
from gateway.config.sections import DatabaseEntry, Journal, Limits, ObjectStore, Postgres, Server
from gateway.config.toml import Place, Places
from gateway.fencing.ownership import OWN_KEYS, Owned, Owner, Ownership, share_of
from gateway.fencing.ownership_checks import KeyNames, Names, conflicts, foreign_to

if TYPE_CHECKING:
    from gateway.config import Config

Problem: TypeAlias = tuple[Place, str]
"""A place in the configuration, and what is wrong there."""


class Shared(BaseModel):
    """The sections that all databases have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    server: Server = Server()
    fencing: Fencing = Fencing()
    leases: Leases = Leases()
    callers: tuple[CallerKeys, ...] = ()
    issuers: tuple[Issuer, ...] = ()
    identity: Identity = Identity()
    grants: tuple[GrantRule, ...] = ()
    tables: tuple[TableRule, ...] = ()
    objects: tuple[ObjectRule, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    audit: Audit = Audit()
    webhooks: tuple[Webhook, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    telemetry: Telemetry = Telemetry()

    def is_of_issuer(self, caller: str) -> bool:
        """Return whether this is the name, or a pattern of names, of callers that tokens name."""
        return any(caller.startswith(f"{one.name}:") for one in self.issuers)


class DatabaseConfig(Shared):
    """A configuration for one database alone. ``tables`` and ``objects`` are the rules of its own rows and keys.

    ``key_rules``: those of all keys, since copies read other databases' objects. ``other_schemas`` and
    ``other_buckets`` are those of all other databases, which names of the configuration may be in. ``moved``: the
    places of its sections in the whole configuration.
    """

    postgres: Postgres
    s3: ObjectStore | None
    journal: Journal
    limits: InstanceOf[Limits]
    key_rules: tuple[ObjectRule, ...]
    owner: InstanceOf[Owner] = Owner()
    owned: InstanceOf[Owned] | None = None
    """The names of this database; None if it is the only one."""
    other_schemas: frozenset[str] = frozenset()
    other_buckets: frozenset[str] = frozenset()
    moved: dict[Place, Place] = {}

    @property
    def name(self) -> str | None:
        """Its name; None if it is the only one."""
        return self.owner.name

    def places_in(self, whole: Places) -> Places:
        """Return the places of its sections, which are at others in the whole configuration."""
        return _PlacesAlone(whole, self.moved) if self.moved else whole


def misplaced_databases(config: "Config") -> Iterator[Problem]:
    """Yield what is wrong with the databases and stores themselves."""
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


def misplaced_rules(config: "Config") -> Iterator[Problem]:
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


def split(config: "Config", limits: Limits) -> tuple[DatabaseConfig, ...]:
    """Return a configuration for each database alone, in their order; one for the only database."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in Shared.model_fields} | {"limits": limits}
    if config.postgres is not None:
        own: dict[str, Any] = {name: getattr(config, name) for name in ("postgres", "s3", "journal")}
        return (DatabaseConfig.model_construct(**shared, **own, key_rules=config.objects),)
    stores = {one.name: (number, one) for number, one in enumerate(config.stores)}
    domains = config.domains
    ownership = Ownership(domains)
    found = []
    for number, one in enumerate(config.databases):
        tables = [
            index
            for index, rule in enumerate(config.tables)
            if ownership.of_schema(rule.name.partition(".")[0]) == one.name
        ]
        objects = [
            index
            for index, key_rule in enumerate(config.objects)
            if set("*{}") & set(bucket := key_rule.match.partition("/")[0]) or one.name in ownership.of_keys(bucket, "")
        ]
        moved: dict[Place, Place] = {
            ("postgres",): ("databases", number),
            ("journal",): ("databases", number, "journal"),
        }
        moved |= {("tables", here): ("tables", there) for here, there in enumerate(tables)}
        moved |= {("objects", here): ("objects", there) for here, there in enumerate(objects)}
        if one.store is not None:
            moved["s3",] = "stores", stores[one.store][0]
        others = [other for other in config.databases if other is not one]
        own = {
            "postgres": one,
            "s3": config.s3 if one.store is None else stores[one.store][1],
            "journal": one.journal,
            "tables": tuple(config.tables[index] for index in tables),
            "objects": tuple(config.objects[index] for index in objects),
            "key_rules": config.objects,
            "owner": Owner(one.name, share_of(one.name, domains)),
            "owned": Owned(ownership, one.name),
            "other_schemas": frozenset(schema for other in others for schema in other.schemas),
            "other_buckets": frozenset(_buckets_of(*others) - _buckets_of(one)),
            "moved": moved,
        }
        found.append(DatabaseConfig.model_construct(**(shared | own)))
    return tuple(found)


def _buckets_of(*databases: DatabaseEntry) -> set[str]:
    return {rule.partition("/")[0] for one in databases for rule in one.buckets}


class _PlacesAlone(Places):
    """The places of one of several databases in the configuration of all of them."""

    def __init__(self, places: Places, moved: dict[Place, Place]) -> None:
        self._places, self._moved = places, moved

    def describe(self, place: Place) -> str:
        for length in range(len(place), 0, -1):
            if (there := self._moved.get(place[:length])) is not None:
                return self._places.describe((*there, *place[length:]))
        return self._places.describe(place)
