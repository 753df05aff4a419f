"""``gateway auth``: what the configured grants allow."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import ConfigPath, load

if TYPE_CHECKING:
    from gateway.auth.grants import Action, Rights
    from gateway.config import Config

auth = typer.Typer(help="Ask what the configured grants allow (docs/grants.md).", no_args_is_help=True)


@auth.callback()
def group() -> None:
    """Keep ``can`` a command of its own, though it is the only one."""


@auth.command("can")
def can(
    caller: Annotated[str, typer.Argument(help="The name of a caller, or anonymous.")],
    action: Annotated[str, typer.Argument(help="read, write, call, lock, barrier, …")],
    resource: Annotated[str | None, typer.Argument(help="A resource, such as order/5.")] = None,
    table: Annotated[str | None, typer.Option(help="A table, as schema.table; with RESOURCE for its rows.")] = None,
    function: Annotated[str | None, typer.Option(help="A function, as schema.function; likewise.")] = None,
    key: Annotated[str | None, typer.Option("--object", help="An object, as bucket/key.")] = None,
    bucket: Annotated[str | None, typer.Option(help="A whole bucket.")] = None,
    config: ConfigPath = None,
) -> None:
    """Say whether a caller may do something, and by which grant. Exit code 1: it may not."""
    from gateway.auth.callers import rights_of  # noqa: PLC0415 - it imports what only a gateway needs
    from gateway.auth.grants import Action, deciding  # noqa: PLC0415 - likewise
    from gateway.fencing.record import ANONYMOUS  # noqa: PLC0415 - likewise

    settings = load(config)
    known = {one.name: one.groups for one in settings.callers}
    if caller not in known and caller != ANONYMOUS:
        raise typer.BadParameter(f"there is no caller {caller}; there are {', '.join([*known, ANONYMOUS])}")
    if action not in set(Action):
        raise typer.BadParameter(f"there is no action {action}; there are {', '.join(Action)}")
    if sum(one is not None for one in (table, function, key, bucket)) > 1:
        raise typer.BadParameter("name one of --table, --function, --object and --bucket")
    granted = _question(settings, Action(action), resource, table=table, function=function, key=key, bucket=bucket)
    rule = deciding(rights_of(settings.grants, caller, known.get(caller, ())), granted)
    if rule is None:
        typer.echo(f"No: {caller} has no grant for this.")
        raise typer.Exit(1)
    typer.echo(f"Yes, by [[grants]] number {rule.number}.")


def _question(
    settings: "Config",
    action: "Action",
    resource: str | None,
    *,
    table: str | None,
    function: str | None,
    key: str | None,
    bucket: str | None,
) -> "Callable[[Rights], bool]":
    """Return what the gateway asks of rights before such a request."""
    from gateway import wiring  # noqa: PLC0415 - it imports all libraries of both planes
    from gateway.fencing.resource import canonical  # noqa: PLC0415 - likewise

    name = None if resource is None else canonical(resource)
    if key is not None:
        in_bucket, _, rest = key.partition("/")
        own = wiring.resources(settings).target(in_bucket, rest).resource
        return lambda rights: rights.key(action, in_bucket, rest).allow(action, own)
    if bucket is not None:
        return lambda rights: rights.bucket(action, bucket)
    if table is not None:
        return lambda rights: rights.table(action, table).allow(action, name)
    if function is not None:
        return lambda rights: rights.function(function).allow(action, name)
    if name is not None:
        return lambda rights: rights.on(action, name)
    return lambda rights: rights.anywhere(action)
