"""``gateway auth``: what the configured grants allow, and which keys of callers are used."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from gateway.commands.console import AsJson, ConfigPath, ExitCode, load, print_columns, print_facts, say
from gateway.text import plain_time

if TYPE_CHECKING:
    from gateway.auth.grants import Action, Place, Rights
    from gateway.config import Config
    from gateway.config.databases import DatabaseConfig
    from gateway.db.traffic import LastUse

auth = typer.Typer(help="Ask what the grants allow, and which keys are used (docs/grants.md).", no_args_is_help=True)


@auth.command("can")
def can(
    caller: Annotated[str, typer.Argument(help="A caller, one of an issuer (keycloak:ann), or anonymous.")],
    action: Annotated[str, typer.Argument(help="read, write, call, lock, barrier, …")],
    resource: Annotated[str | None, typer.Argument(help="A resource, such as order/5.")] = None,
    table: Annotated[str | None, typer.Option(help="A table, as schema.table; with RESOURCE for its rows.")] = None,
    function: Annotated[str | None, typer.Option(help="A function, as schema.function; likewise.")] = None,
    key: Annotated[str | None, typer.Option("--object", help="An object, as bucket/key.")] = None,
    bucket: Annotated[str | None, typer.Option(help="A whole bucket.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A group of a caller of an issuer (keycloak:clerks). Repeat it for more.")
    ] = None,
    config: ConfigPath = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Say whether a caller may do something, and by which grant. Exit code 1: it may not.

    The answer then names the missing half, which is the place or the resource, and the grant that comes nearest.
    """
    from gateway.auth.callers import rights_of  # noqa: PLC0415 - it imports what only a gateway needs
    from gateway.auth.grants import Action, deciding  # noqa: PLC0415 - likewise

    settings = load(config)
    groups = _groups(settings, caller, group or ())
    if action not in set(Action):
        raise typer.BadParameter(f"there is no action {action}; there are {', '.join(Action)}")
    if sum(one is not None for one in (table, function, key, bucket)) > 1:
        raise typer.BadParameter("name one of --table, --function, --object and --bucket")
    # These two are also granted without a place or a resource, by `everything`.
    if action not in (Action.AUDIT, Action.ADMINISTER) and not any((resource, table, function, key, bucket)):
        raise typer.BadParameter(f"{action} what? Name a resource, --table, --function, --object or --bucket")
    for option, name in (("--table", table), ("--function", function)):
        if name is not None and "." not in name:
            raise typer.BadParameter(f"{option} needs the schema: {_of(settings, None).postgres.schemas[0]}.{name}")
    asked = _question(settings, Action(action), resource, table=table, function=function, key=key, bucket=bucket)
    identified = settings.is_of_issuer(caller)
    rights = rights_of(settings.grants, caller, groups, identified=identified)
    rule = deciding(rights, asked.granted)
    part, allowed = _of(settings, table or function), rule is not None
    if rule is None:
        told = [" ".join(asked.told(rights, Action(action), caller))]
    else:
        told = [f"Yes, by [[grants]] number {rule.number}: {settings.grants[rule.number - 1].in_words()}."]
        if part.postgres.roles and (table or function):
            roles = list(_roles(part, caller, groups))
            told.append(" ".join(roles or ["But no role of the database is for this caller, so it is denied."]))
            allowed = bool(roles)
    facts = {"allowed": allowed, "grant": None if rule is None else rule.number, "told": told}
    print_facts(facts, told, as_json=as_json)
    if rule is None and not group:
        _hint_at_groups(settings, caller)
    if not allowed:
        raise typer.Exit(ExitCode.NO)


def _hint_at_groups(settings: "Config", caller: str) -> None:
    issuer = caller.partition(":")[0]
    named = any(name.startswith(f"{issuer}:") for grant in settings.grants for name in grant.groups)
    if settings.is_of_issuer(caller) and named:
        say(f"Grants name groups of {issuer}. If its token shows one, add --group.")


def _of(settings: "Config", name: str | None) -> "DatabaseConfig":
    """Return the configuration of the database that exposes a table or function; for any other name the default."""
    schema = (name or "").partition(".")[0]
    return next((one for one in settings.parts if schema in one.postgres.schemas), settings.default)


def _roles(settings: "DatabaseConfig", caller: str, groups: Sequence[str]) -> Iterator[str]:
    """Yield sentences on the role of the database for a caller. There are none if it has no role."""
    from gateway.auth.callers import names_of  # noqa: PLC0415 - it imports what only a gateway needs
    from gateway.auth.principal import OWN  # noqa: PLC0415 - likewise

    rules = settings.postgres.roles
    patterns = (name for rule in rules for name in rule.callers)
    names = names_of(caller, patterns, identified=settings.is_of_issuer(caller))
    by_claim = False
    for rule in rules:
        if not (names.intersection(rule.callers) or set(rule.groups).intersection(groups)):
            continue
        if not rule.claim:
            runs = "the gateway's own role" if rule.role[0] == OWN else f"the role {rule.role[0]}"
            yield f"{'Otherwise the' if by_claim else 'The'} request runs under {runs}."
            return
        if settings.is_of_issuer(caller):
            claim = ".".join(rule.claim)
            yield f"If {claim} in its token names one of {', '.join(rule.role)}, the request runs under that role."
            by_claim = True
    if by_claim:
        yield "Otherwise it is denied."


@auth.command("keys")
def keys(config: ConfigPath = None, *, as_json: AsJson = False) -> None:
    """Show when each key of the configured callers was last used, as far as gateways have stored it.

    Former keys follow, which the configuration no longer has. Identity tokens and temporary keys are not among them.
    """
    settings = load(config)
    uses: dict[tuple[str, str, str], LastUse] = {}
    for part in settings.parts:  # a key is used where a request goes
        for use in asyncio.run(_last_uses(part)):
            known = uses.setdefault((use.caller, use.kind, use.key), use)
            uses[use.caller, use.kind, use.key] = max(known, use, key=lambda one: one.last_used)
    rows: list[Sequence[str]] = []
    for caller, kind, key, setting in _configured(settings):
        last = uses.pop((caller, kind, key), None)
        rows.append((caller, kind, key, setting, "never" if last is None else plain_time(last.last_used)))
    rows += [(use.caller, use.kind, use.key, "not configured", plain_time(use.last_used)) for use in uses.values()]
    print_columns(("caller", "kind", "key", "setting", "last used"), rows, as_json=as_json)


async def _last_uses(settings: "DatabaseConfig") -> "list[LastUse]":
    from gateway.db import traffic  # noqa: PLC0415 - help needs no database
    from gateway.db.database import Database  # noqa: PLC0415 - likewise

    async with Database(settings.postgres.dsn.get_secret_value(), pool_size=1) as database:
        return await traffic.read_key_uses(database)


def _configured(settings: "Config") -> Iterator[tuple[str, str, str, str]]:
    """Yield each key of the configuration as caller, kind, shown name and setting."""
    from gateway.auth.callers import KeyKind, digest_of, fingerprint  # noqa: PLC0415 - likewise

    for caller in settings.callers:
        for number, secret in enumerate(caller.api_key, 1):
            shown = fingerprint(caller.name, digest_of(secret.get_secret_value().encode()))
            yield caller.name, KeyKind.API, shown, "api_key" if number == 1 else f"api_key, number {number}"
        for number, pair in enumerate(caller.pairs, 1):
            yield (
                caller.name,
                KeyKind.S3,
                pair.access_key_id,
                "access_key_id" if number == 1 else f"access_key_id, number {number}",
            )


def _groups(settings: "Config", caller: str, shown: Sequence[str]) -> Sequence[str]:
    """Return the groups of a caller. ``shown``: those that its token shows, if an issuer names it."""
    from gateway.fencing.record import ANONYMOUS  # noqa: PLC0415 - it imports what only a gateway needs

    if settings.is_of_issuer(caller):
        issuer = caller.partition(":")[0]
        for name in shown:
            if not name.startswith(f"{issuer}:"):
                raise typer.BadParameter(f"groups of callers of {issuer} begin with {issuer}:, and {name} does not")
        return shown
    known = {one.name: one.groups for one in settings.callers}
    if caller not in known and caller != ANONYMOUS:
        others = [f"{issuer.name}:…" for issuer in settings.issuers]
        raise typer.BadParameter(f"there is no caller {caller}; there are {', '.join([*known, *others, ANONYMOUS])}")
    if shown:
        raise typer.BadParameter(f"--group is for callers of issuers; the configuration has the groups of {caller}")
    return known.get(caller, ())


class _Question(NamedTuple):
    """The question that the gateway asks of rights before a request. ``observed``: its rule observes.

    ``place`` and ``resource`` are None where the request is about none. ``on``: what it is about without a place.
    """

    granted: "Callable[[Rights], bool]"
    on: str = ""
    place: "Place | None" = None
    resource: str | None = None
    observed: bool = False

    def told(self, rights: "Rights", action: "Action", caller: str) -> "Iterator[str]":
        """Yield sentences on what a caller without the grant lacks."""
        from gateway.auth.grants import Missing, nearest  # noqa: PLC0415 - it imports what only a gateway needs
        from gateway.fencing.record import ANONYMOUS  # noqa: PLC0415 - likewise

        if self.place is None:
            found = Missing(action, self.on, "", nearest(rights, action, None, self.resource))
        else:
            found = Missing.at(rights, action, self.place, None if self.resource is None else (self.resource,), "")
        yield f"No: {caller} lacks the grant {action} for {found.on}. {found.nearest}".rstrip()
        placed = self.place is not None and self.place.limits(rights, action).placed
        if self.observed and placed and caller != ANONYMOUS:
            yield "Its rule observes, so the gateway lets such a write pass and records it, until it enforces."


def _question(
    settings: "Config",
    action: "Action",
    resource: str | None,
    *,
    table: str | None,
    function: str | None,
    key: str | None,
    bucket: str | None,
) -> _Question:
    """Return what the gateway asks of rights before such a request."""
    from gateway import wiring  # noqa: PLC0415 - it imports all libraries of both planes
    from gateway.auth.grants import Action, Place, PlaceKind  # noqa: PLC0415 - likewise
    from gateway.fencing.decision import Enforcement  # noqa: PLC0415 - likewise
    from gateway.fencing.resource import canonical  # noqa: PLC0415 - likewise

    name = None if resource is None else canonical(resource)
    if bucket is not None:
        place = Place(PlaceKind.BUCKET, bucket)
        return _Question(lambda rights: rights.bucket(action, bucket), place=place)
    if key is not None:
        in_bucket, _, rest = key.partition("/")
        target = wiring.resources(settings.default).of_any(in_bucket, rest)
        place, name, mode = Place(PlaceKind.BUCKET, f"{in_bucket}/{rest}"), target.resource, target.mode
    elif table is not None:
        rules = {rule.name: rule.mode for rule in settings.tables}
        place, mode = Place(PlaceKind.TABLE, table), rules.get(table) or settings.fencing.mode
    elif function is not None:
        place, mode = Place(PlaceKind.FUNCTION, function), settings.fencing.mode
    elif name is not None:
        return _Question(lambda rights: rights.on(action, name), f"resource {name}", resource=name)
    else:
        return _Question(lambda rights: rights.anywhere(action), "everything")
    observed = mode is Enforcement.OBSERVE and action in (Action.WRITE, Action.CALL)
    return _Question(
        lambda rights: place.limits(rights, action).allow(action, name), place=place, resource=name, observed=observed
    )
