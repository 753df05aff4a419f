"""Compares the names in a configuration with what exists: schemas, tables, columns, functions and buckets.

A rule with a misspelt name has no effect: what it should fence runs under its default name, beside its own fence.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.auth.grants import Action, covers_name
from gateway.config.databases import DatabaseConfig
from gateway.config.explanations import Place, Places, nearest
from gateway.config.sections import NO_DATABASE
from gateway.db import catalog
from gateway.db.database import Database
from gateway.errors import ConfigurationError, GatewayError, SqlError, Unavailable
from gateway.fencing.resource import Template
from gateway.objects.key_rules import KeyRule
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream
from gateway.tables.catalog import CITUS_ADVICE, CITUS_PROBLEM, Snapshot, Table

_PATIENCE = 5.0
"""Seconds that the store gets at a start: the gateway must start without it, too."""
_NO_SUCH_SCHEMA = "3F000"
_LATER = " Create it, or allow it to come later with --allow-missing."


@dataclass(frozen=True, slots=True)
class UnknownName:
    """A name in the configuration that nothing has. ``may_come``: it is no mistake if its target is created later."""

    place: Place
    problem: str
    may_come: bool = False


def unreadable_rules(config: DatabaseConfig) -> Iterator[UnknownName]:
    """Yield the rules of objects that cannot be read, before anything is asked."""
    for index, rule in enumerate(config.objects):
        try:
            KeyRule.compile(rule.match, rule.resource)
        except ConfigurationError as error:
            yield UnknownName(("objects", index), f"{error.message}; correct the rule")


async def unknown_in_database(config: DatabaseConfig, database: Database) -> list[UnknownName]:
    """Return the names that the database does not have. Raises ``Unavailable`` if it cannot be reached."""
    exposed = config.postgres.schemas
    schemas = await catalog.schema_names(database)
    snapshot = Snapshot.from_rows(await catalog.relations(database, exposed))
    functions = await catalog.function_names(database, exposed) if config.postgres.functions else []
    tables = {f"{schema}.{name}": table for (schema, name), table in snapshot.tables.items()}
    return [
        *(
            UnknownName(("postgres", "schemas"), f"there is no schema {name}.{_advice(name, schemas)}")
            for name in exposed
            if name not in schemas
        ),
        *_unknown_tables(config, tables),
        *(
            UnknownName(
                ("postgres", "functions"), f"there is no function {name}.{_advice(name, functions)}", may_come=True
            )
            for name in config.postgres.functions
            if name not in functions
        ),
        *_unknown_redactions(config, tables),
    ]


def _unknown_tables(config: DatabaseConfig, tables: Mapping[str, Table]) -> Iterator[UnknownName]:
    for index, rule in enumerate(config.tables):
        schema, _, _ = rule.name.partition(".")
        if schema not in config.postgres.schemas:
            known = [f"{each}." + rule.name.partition(".")[2] for each in config.postgres.schemas]
            near = nearest(rule.name, [name for name in known if name in tables])
            advice = near or f" Add {schema} to [postgres] schemas."
            yield UnknownName(("tables", index, "name"), f"the schema {schema} is not exposed.{advice}")
        elif rule.name not in tables:
            advice = _advice(rule.name, tables)
            yield UnknownName(("tables", index, "name"), f"there is no table {rule.name}.{advice}", may_come=True)
        elif tables[rule.name].distributed:
            problem = f"{rule.name} cannot be served: {CITUS_PROBLEM}. {CITUS_ADVICE}"
            yield UnknownName(("tables", index, "name"), problem)
        else:
            columns = tables[rule.name].columns
            wanted = [("resource", name) for name in (Template.parse(rule.resource).fields if rule.resource else ())]
            for key, name in (*wanted, *([("version", rule.version)] if rule.version else [])):
                if name not in columns:
                    problem = f"{rule.name} has no column {name}.{_near_or_all(name, columns)}"
                    yield UnknownName(("tables", index, key), problem)


def _unknown_redactions(config: DatabaseConfig, tables: Mapping[str, Table]) -> Iterator[UnknownName]:
    """Yield the columns to redact that no table has: their values would be kept."""
    anywhere = {column for table in tables.values() for column in table.columns}
    for name in config.audit.redact:
        relation, _, column = name.rpartition(".")
        if relation.partition(".")[0] in config.other_schemas or (not relation and config.other_schemas):
            continue  # a column without a table may be one of any database
        if relation and relation not in tables:
            yield UnknownName(
                ("audit", "redact"), f"there is no table {relation}.{_advice(relation, tables)}", may_come=True
            )
        elif column not in (known := tables[relation].columns if relation else anywhere):
            of = relation or "no exposed table"
            has = f"{of} has no column {column}" if relation else f"no exposed table has a column {column}"
            yield UnknownName(("audit", "redact"), f"{has}.{_advice(column, known)}", may_come=not relation)


async def unknown_in_grants(config: DatabaseConfig, database: Database) -> list[tuple[int, str, str]]:
    """Return the tables of grants that the database does not have: number of the grant, problem, advice.

    They are no errors, since they grant nothing. Raises ``Unavailable`` if the database cannot be reached.
    """
    exposed, found = config.postgres.schemas, list[tuple[int, str, str]]()
    rows = Snapshot.from_rows(await catalog.relations(database, exposed)).tables
    tables = [f"{schema}.{name}" for schema, name in rows]
    for number, grant in enumerate(config.grants, 1):
        # Rows without a rule have names that begin with their table.
        resources = [pattern.partition("/")[0] for pattern in grant.resources if Action.WRITE in grant.actions]
        of_rows = [name for name in resources if name.partition(".")[0] in exposed and "." in name]
        for pattern in dict.fromkeys((*grant.tables, *of_rows)):
            schema, _, name = pattern.partition(".")
            if any(covers_name(pattern, table) for table in tables) or pattern in {rule.name for rule in config.tables}:
                continue
            if schema in config.other_schemas:
                continue
            if schema not in ("*", *exposed):
                found.append((number, f"the schema {schema} is not exposed", f"Add {schema} to [postgres] schemas."))
            elif name not in ("*", ""):
                found.append((number, f"there is no table {pattern}", nearest(pattern, tables).strip() or "Create it."))
    return found


async def unknown_buckets_of_grants(config: DatabaseConfig, upstream: Upstream) -> list[tuple[int, str, str]]:
    """Return the buckets of grants that the store does not have, likewise. Raises ``GatewayError``."""
    found, absent = list[tuple[int, str, str]](), dict[str, bool]()
    for number, grant in enumerate(config.grants, 1):
        for name in dict.fromkeys(pattern.partition("/")[0] for pattern in grant.buckets):
            if name not in absent:
                here = name != "*" and name not in config.other_buckets
                absent[name] = here and await _is_absent(upstream, name)
            if absent[name]:
                advice = nearest(name, await _listed(upstream)).strip() or "Create it."
                found.append((number, f"there is no bucket {name}", advice))
    return found


async def _is_absent(upstream: Upstream, bucket: str) -> bool:
    # A list of buckets may leave out some that this caller can write, so it only serves for suggestions.
    async with await upstream.send("HEAD", f"/{bucket}") as response:
        return response.status == 404


async def unknown_buckets(config: DatabaseConfig, upstream: Upstream) -> list[UnknownName]:
    """Return the buckets of rules that the store does not have. Raises ``GatewayError`` if it cannot be reached."""
    found: list[UnknownName] = []
    for index, rule in enumerate(config.objects):
        name = rule.match.partition("/")[0]
        if set("*{}") & set(name):
            continue
        if await _is_absent(upstream, name):
            advice = _advice(name, await _listed(upstream))
            found.append(UnknownName(("objects", index, "match"), f"there is no bucket {name}.{advice}", may_come=True))
    return found


async def _listed(upstream: Upstream) -> tuple[str, ...]:
    async with await upstream.send("GET", "/") as response:
        return xml.read_buckets(await response.read())


async def check(config: DatabaseConfig, places: Places, *, allow_missing: bool, everything: bool = False) -> list[str]:
    """Return warnings: of names that may come later if these are allowed, and of parts that cannot be reached.

    Raises ``ConfigurationError`` with the place of every other unknown name. With ``everything``, what cannot be
    reached raises ``Unavailable``.
    """
    found, warnings = list(unreadable_rules(config)), []
    database = Database(
        config.postgres.dsn.get_secret_value(), pool_size=1, connect_timeout=config.limits.connect_timeout
    )
    try:
        found += await unknown_in_database(config, database)
        # They grant nothing, so they are no errors.
        warnings += [
            f"{places.describe(('grants', number - 1))}: {problem}. {advice}"
            for number, problem, advice in await unknown_in_grants(config, database)
        ]
    except (SqlError, Unavailable) as error:
        # The schema is there from the first migration on, and names are compared after it.
        absent = isinstance(error, SqlError) and error.sqlstate == _NO_SUCH_SCHEMA
        told = f"{error.told} {error.remedy}".rstrip()
        problem = "the fencing schema is not installed. Run 'gateway migrate' first." if absent else told
        warnings.append(f"The names of tables cannot be checked: {problem}")
        if everything:
            raise Unavailable(warnings[-1]) from error
    except ValueError as error:
        raise ConfigurationError(f"{places.describe(('postgres', 'dsn'))}: {NO_DATABASE}") from error
    finally:
        await database.close()
    if config.s3 is not None:
        try:
            async with asyncio.timeout(_PATIENCE), Upstream(config.s3) as upstream:
                await upstream.look()
                found += await unknown_buckets(config, upstream)
        except (GatewayError, TimeoutError) as error:
            told = f"{error.told} {error.remedy}" if isinstance(error, GatewayError) else "It did not answer in time."
            warnings.append(f"The store cannot be used: {told}")
            if everything and config.objects:
                raise Unavailable(warnings[-1]) from error
    wrong = [one for one in found if not (one.may_come and allow_missing)]
    if wrong:
        raise ConfigurationError("\n".join(f"{places.describe(one.place)}: {one.problem}" for one in wrong))
    return [*warnings, *(f"{places.describe(one.place)}: {one.problem.removesuffix(_LATER)}" for one in found)]


def _advice(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) or _LATER


def _near_or_all(name: str, known: Collection[str]) -> str:
    return nearest(name, known) or f" It has: {', '.join(known)}."
