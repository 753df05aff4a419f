"""``gateway naming``: changes of the names that rows and keys have."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import ConfigPath, DatabaseName, each, load, say, the_one
from gateway.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.changes.naming import PlannedChange
    from gateway.config import Config

naming = typer.Typer(
    help="Change the names that rows and keys have, and carry their fences over (docs/naming.md).",
    no_args_is_help=True,
)

Targets = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help="A table as schema.table, or a bucket. Default: all.")
]
_SHOWN = 10


@naming.command("plan")
def show_plan(targets: Targets = None, config: ConfigPath = None, database: DatabaseName = None) -> None:
    """Show what a change to the configured names would do. Nothing is changed. Exit code 1: there are changes."""
    from gateway.changes import naming as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def planned(part: "Config") -> "list[PlannedChange]":
        async with plan.naming_changes(part, only_look=True) as changes:
            return await changes.planned(targets or ())

    def act(_: "str | None", part: "Config") -> None:
        found = asyncio.run(planned(part))
        for one in found:
            _print(one)
        if found:
            raise typer.Exit(1)
        typer.echo("The configured names are the ones in force.")

    _each(load(config), database, targets, act)


@naming.command("apply")
def apply_changes(
    targets: Targets = None,
    config: ConfigPath = None,
    database: DatabaseName = None,
    *,
    new_locks: Annotated[
        bool, typer.Option("--new-locks", help="The new locks count from a lower number: begin a new epoch.")
    ] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget the fences that cannot be carried over. Their writers can return.")
    ] = False,
) -> None:
    """Put the configured names in force. Each target refuses writes with 503 until its fences are carried over.

    Run it again after an interruption: it goes on. With the former configuration, it goes back.
    """
    from gateway.changes import naming as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def apply(part: "Config") -> None:
        async with plan.naming_changes(part) as changes:
            found = await changes.planned(targets or ())
            for one in found:
                plan.check_applicable(one, new_locks=new_locks, forget=forget)
            for one in found:
                say(f"{one.change.name}: closed for writes")
                applied = await changes.apply(one, new_locks=new_locks, forget=forget)
                typer.echo(f"{one.change.name}: its naming is {visible(str(one.change.following))}")
                if new_locks:
                    typer.echo(f"{one.change.name}: issue tokens as {applied.new_epoch}.VALUE from now on")
            if not found:
                typer.echo("The configured names are the ones in force.")

    _each(load(config), database, targets, lambda _, part: asyncio.run(apply(part)))


def _each(
    settings: "Config", database: str | None, targets: "list[str] | None", act: "Callable[[str | None, Config], None]"
) -> None:
    """Act on each chosen database. Targets are those of one."""
    if targets:
        the_one(settings, database, "a target is in one database")
    each(settings, database, act)


def _print(planned: "PlannedChange") -> None:
    change, count = planned.change, planned.count
    lines = [
        f"{change.name}{' (closed: a change was interrupted)' if change.closed else ''}",
        f"  in force            {change.was}",
        f"  configured          {change.following}",
        f"  carried over        {count.carried} fences and locks",
        f"  collisions          {count.collisions} new names take the place of several old ones",
        f"  not carried over    {planned.left} fences, of rows and keys that are gone or have too long a name",
        f"  object writes       {planned.pending} under way, to be settled first",
        f"  live leases         {len(planned.holders)}",
    ]
    for lock, holder in list(planned.holders.items())[:_SHOWN]:
        lines.append(f"    {lock} is held by {holder}")
    lines.append(f"  with --new-locks    tokens of the new locks begin with epoch {planned.new_epoch}")
    for line in lines:
        typer.echo(visible(line))
