"""A first configuration, for what a database and a store have today. ``gateway init`` writes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.config.sections import ObjectStore
from gateway.config.toml import value_text
from gateway.db import catalog, migrations, rights
from gateway.db.database import Database
from gateway.errors import ConfigurationError, ResourceUnderivable, first_few
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream
from gateway.tables.catalog import Snapshot, Table
from gateway.tables.naming import Rule, check_canonical, naming
from gateway.tables.side_effects import find_side_effects
from gateway.text import visible

MOST = 25
"""Lines of the file, however many tables there are."""
CALLER = "worker"
_ACTIONS = ("read", "write", "lock", "barrier", "credentials", "audit")

UNWRITTEN = "elsewhere"
_KINDS = {
    "key": "need rules: they have no primary key",
    "type": "need rules: their keys have values with several texts",
    "reach": "need rules: writes that reach other rows are refused",
    "names": "need rules: their rows have two names, and so two fences",
    UNWRITTEN: "are not written: their rows change outside this database's transactions",
}
"""The kinds of ``Need``, as said of many tables. All of them fit beside the sections."""


class Need(NamedTuple):
    """A table, ``schema.name``, that needs a rule before its writes are enforced. ``kind``: a key of ``_KINDS``.

    No rule helps a table of the kind ``UNWRITTEN``: the gateway refuses all writes to it.
    """

    table: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A database and a store, as far as a first configuration depends on them.

    ``schemas`` are to be exposed; ``others`` have tables, too. ``keyed``: tables that need no rule. ``buckets``: None
    if no store lists any to this key. ``lacking``: the role of the database, if it may not install the schema
    ``fencing``.
    """

    schemas: Sequence[str]
    others: Sequence[str] = ()
    keyed: Sequence[str] = ()
    needs: Sequence[Need] = ()
    buckets: Sequence[str] | None = ()
    lacking: str | None = None


async def look(dsn: str, store: ObjectStore | None, schemas: Sequence[str], *, installed: bool) -> Surroundings:
    """Look at a database and a store. Nothing is written. ``installed``: the database has the fencing schema.

    Without ``schemas``: ``public``, or if that has no tables, all that have some. Raises ``ConfigurationError`` for a
    schema that is not there, and ``GatewayError`` if one of both does not answer.
    """
    async with Database(dsn, pool_size=1) as database:
        present = await catalog.schema_names(database)
        if missing := [name for name in schemas if name not in present]:
            known = ", ".join(present)
            raise ConfigurationError(f"--schema: there is no schema {missing[0]}; there are: {known}", advice="")
        snapshot = Snapshot.from_rows(
            await catalog.relations(database, present, installed=installed), await catalog.references(database)
        )
        lacking = None
        try:
            await migrations.check_rights(dsn)
        except ConfigurationError:
            lacking = (await rights.server_facts(database)).role
    filled = list(dict.fromkeys(schema for schema, _ in snapshot.tables))
    exposed = schemas or [name for name in filled if name == "public"] or filled or present[:1] or ["public"]
    tables = {name: table for name, table in snapshot.tables.items() if name[0] in exposed}
    needs = list(_needs(Snapshot(tables, snapshot.graph)))
    named = {need.table for need in needs}
    return Surroundings(
        exposed,
        [name for name in filled if name not in exposed],
        [table.title for table in tables.values() if table.primary_key and table.title not in named],
        needs,
        None if store is None else await buckets(store),
        lacking,
    )


async def buckets(store: ObjectStore) -> Sequence[str] | None:
    """Return the buckets of a store; None if it lists none to this key. Raises ``GatewayError``."""
    async with Upstream(store) as upstream:
        await upstream.look()
        async with await upstream.send("GET", "/") as response:
            return xml.read_buckets(await response.read()) if response.status == 200 else None


def _needs(snapshot: Snapshot) -> Iterator[Need]:
    """Yield each table that needs a rule or cannot be written, once. The doctor examines the rule that a table gets."""
    found = {need.table: need for table in snapshot.tables.values() if (need := _own_need(table))}
    for effect in find_side_effects(snapshot, lambda *_: Rule()):
        kind = "names" if effect.another_name else "reach"
        found.setdefault(effect.table, Need(effect.table, kind, f"needs a rule: {effect.text}"))
    yield from found.values()


def _own_need(table: Table) -> Need | None:
    if table.distributed or table.reaches_foreign:
        return Need(table.title, UNWRITTEN, "is not written: its rows change outside this database's transactions")
    if not (table.insertable or table.changeable or table.deletable):
        return None
    try:
        check_canonical(naming(table, Rule()).columns)
    except ResourceUnderivable as error:
        if not table.primary_key:
            named = "it is a view" if table.is_view else "it has no primary key"
            return Need(table.title, "key", f"needs a rule: {named}, so other columns have to name its rows")
        return Need(table.title, "type", f"needs a rule: {error.message.removesuffix('.')}")
    return None


def sections(dsn: str | None, store: Mapping[str, str | None] | None, keys: Callable[[], str]) -> dict[str, Any]:
    """Return the values of the configuration, by their sections. ``store``: the keys of ``[s3]``.

    ``keys`` returns a new secret each time.
    """
    caller = {"name": CALLER, "api_key": keys()}
    if store is not None:
        caller |= {"access_key_id": CALLER, "secret_access_key": keys()}
    return {
        "postgres": {"dsn": dsn},
        **({} if store is None else {"s3": dict(store)}),
        "fencing": {"mode": "observe"},
        "callers": [caller],
        "grants": [{"callers": [CALLER], "actions": list(_ACTIONS), "everything": True}],
    }


def document(values: Mapping[str, Any], found: Surroundings) -> str:
    """Return the file: the sections, with comments on what was found. It has ``MOST`` lines at most."""
    remarks = _remarks(found, stored="s3" in values)
    values = {**values, "postgres": {**values["postgres"], "schemas": list(found.schemas)}}
    lines = ["# Written by gateway init, with secrets. docs/reference/configuration.md has every key."]
    for name, section in values.items():
        many = isinstance(section, list)
        lines.append(f"[[{name}]]" if many else f"[{name}]")
        for key, value in (section[0] if many else section).items():
            remark = remarks.get((name, key), "")
            lines.append(f"{key} = {value_text(value)}{f'  # {remark}' if remark else ''}")
    notes = [f"# {visible(note)}" for note in _notes(found.needs, MOST - len(lines))]
    after = next(at for at, line in enumerate(lines) if line.startswith("schemas = ")) + 1
    return "\n".join([*lines[:after], *notes, *lines[after:]]) + "\n"


def _remarks(found: Surroundings, *, stored: bool) -> dict[tuple[str, str], str]:
    """Return what is said at the ends of lines. Names come from outside, and must not end a comment."""
    tables = f"these have keys and need no rule: {first_few(found.keyed)}" if found.keyed else ""
    buckets = "the store lists no buckets to this key" if found.buckets is None else ""
    if found.buckets:
        buckets = f"buckets: {first_few(found.buckets)}"
    remarks = {
        ("postgres", "schemas"): tables,
        ("s3", "endpoint"): buckets,
        (
            "fencing",
            "mode",
        ): "observe: writes pass, and the record says which would be refused; gateway enforce changes it",
        ("callers", "name"): "the API key is for tables, locks and the page"
        + ("; the pair signs S3 requests" if stored else ""),
        (
            "grants",
            "everything",
        ): f"all tables above{' and all buckets' if stored else ''}; docs/grants.md limits a caller",
    }
    return {place: visible(text) for place, text in remarks.items()}


def _notes(needs: Sequence[Need], room: int) -> Iterator[str]:
    """Yield a line for each table that needs a rule, or for each kind of need if there is not room for all."""
    if len(needs) <= room:
        yield from (f"{need.table} {need.why}" for need in needs)
        return
    for kind, said in _KINDS.items():
        if tables := [need.table for need in needs if need.kind == kind]:
            yield f"{first_few(tables)} {said}"
