"""The sections that databases share, those that each has for itself, and a configuration for each of them alone."""

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, InstanceOf

from gateway.config.access import CallerKeys, GrantRule, Identity, Issuer
from gateway.config.explanations import Place, Places
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
from gateway.fencing.ownership import Owned, Owner, Ownership, share_of

if TYPE_CHECKING:
    from gateway.config import Config


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
    has_gateway: bool = True
    """False if ``postgres.dsn`` is that of an operator, because no gateway is configured."""
    moved: dict[Place, Place] = {}

    @property
    def name(self) -> str | None:
        """Its name; None if it is the only one."""
        return self.owner.name

    def places_in(self, whole: Places) -> Places:
        """Return the places of its sections, which are at others in the whole configuration."""
        return _PlacesAlone(whole, self.moved) if self.moved else whole


def split(config: "Config", limits: Limits, *, has_gateway: bool = True) -> tuple[DatabaseConfig, ...]:
    """Return a configuration for each database alone, in their order; one for the only database."""
    shared: dict[str, Any] = {name: getattr(config, name) for name in Shared.model_fields} | {"limits": limits}
    if config.postgres is not None:
        own: dict[str, Any] = {name: getattr(config, name) for name in ("postgres", "s3", "journal")}
        return (DatabaseConfig.model_construct(**shared, **own, key_rules=config.objects, has_gateway=has_gateway),)
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
