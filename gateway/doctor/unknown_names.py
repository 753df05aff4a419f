"""Names in the configuration that exist nowhere: schemas, tables, columns, functions and buckets.

A misspelt table has no rule, so its rows would have default names. So a gateway does not start with such a name, unless
its operator says that it comes later.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gateway.config import Config
from gateway.config.problems import Location, entry_label, suggestion
from gateway.db import catalog, rights
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.fencing.resource import Template
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream
from gateway.tables.catalog.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name that does not exist. ``place``: in the configuration; ``label``: the same, for people."""

    place: Location
    label: str
    text: str


async def find(config: Config, database: Database) -> list[UnknownName]:
    """Return all unknown names. Raise ``Unavailable`` if the database cannot be reached.

    Buckets are unknown only where the store lists the ones that it has.
    """
    exposed = await rights.exposed_tables(database, config.postgres.schemas)
    snapshot = Snapshot.from_rows(await catalog.relations(database, config.postgres.schemas))
    functions = await catalog.function_names(database, config.postgres.schemas)
    absent = [one.schema for one in exposed if not one.present]
    return [
        *_schemas(config, absent, await catalog.schema_names(database)),
        *_functions(config, functions),
        *_tables(config, snapshot),
        *await _buckets(config),
    ]


async def find_once(config: Config) -> list[UnknownName]:
    """Do the same as ``find`` with a session of its own."""
    postgres = config.postgres
    database = Database(postgres.dsn.get_secret_value(), pool_size=1, connect_timeout=postgres.connect_timeout)
    try:
        return await find(config, database)
    finally:
        await database.close()


def _schemas(config: Config, absent: Collection[str], existing: Sequence[str]) -> Iterator[UnknownName]:
    for number, schema in enumerate(config.postgres.schemas):
        if schema in absent:
            text = f'there is no schema "{schema}".{_what_to_do(schema, existing)}'
            yield UnknownName(("postgres", "schemas", number), "[postgres] schemas", text)


def _functions(config: Config, existing: Collection[str]) -> Iterator[UnknownName]:
    for number, name in enumerate(config.postgres.functions):
        if name not in existing:
            text = f'there is no function "{name}".{_what_to_do(name, existing)}'
            yield UnknownName(("postgres", "functions", number), "[postgres] functions", text)


def _tables(config: Config, snapshot: Snapshot) -> Iterator[UnknownName]:
    existing = [f"{schema}.{name}" for schema, name in snapshot.tables]
    for number, rule in enumerate(config.tables):
        schema, _, name = rule.name.partition(".")
        place: Location = ("tables", number)
        label = entry_label("tables", number, {"name": rule.name})
        table = snapshot.tables.get((schema, name))
        if table is None:
            exposed = schema in config.postgres.schemas
            hint = _what_to_do(rule.name, existing) if exposed else f" Add {schema} to schemas of [postgres]."
            text = "there is no such table." if exposed else f'the schema "{schema}" is not exposed.'
            yield UnknownName((*place, "name"), f"{label} name", f"{text}{hint}")
            continue
        fields = Template.parse(rule.resource).fields if rule.resource else ()
        for key, columns in (("resource", fields), ("version", (rule.version,) if rule.version else ())):
            for column in columns:
                if column not in table.columns:
                    text = f'the table has no column "{column}".{_what_to_do(column, table.columns)}'
                    yield UnknownName((*place, key), f"{label} {key}", text)


async def _buckets(config: Config) -> list[UnknownName]:
    named = [(number, rule.match.partition("/")[0]) for number, rule in enumerate(config.objects)]
    literal = [(number, bucket) for number, bucket in named if bucket != "*" and "{" not in bucket]
    if config.s3 is None or not literal:
        return []
    try:
        async with Upstream(config.s3) as upstream, await upstream.send("GET", "/") as response:
            if response.status != 200:
                return []
            existing = xml.read_buckets(await response.read())
    except GatewayError:
        return []
    return [
        UnknownName(
            ("objects", number, "match"),
            f"{entry_label('objects', number, {'match': config.objects[number].match})} match",
            f'the store has no bucket "{bucket}".{_what_to_do(bucket, existing)}',
        )
        for number, bucket in literal
        if bucket not in existing
    ]


def _what_to_do(wrong: str, existing: Collection[str]) -> str:
    """Return the nearest name, or what else to do. A common schema makes no two names alike."""
    schema, point, _ = wrong.rpartition(".")
    alike = [name for name in existing if suggestion(_last(wrong), [_last(name)])]
    same = [name for name in alike if name.startswith(f"{schema}{point}")]
    return suggestion(wrong, same or alike) or " Create it, or correct the name."


def _last(name: str) -> str:
    return name.rpartition(".")[2]
