"""``gateway naming`` and ``gateway databases``: changes of names, and of the databases that own them."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import AsJson, ConfigPath, DatabaseName, ExitCode, each, load, print_facts, say, the_one
from gateway.errors import GatewayError
from gateway.fencing.ownership import shown
from gateway.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.changes.naming import PlannedChange
    from gateway.changes.ownership import Fleet, Seat
    from gateway.config import Config
    from gateway.config.databases import DatabaseConfig

naming = typer.Typer(
    help="Change the names that rows and keys have, and carry their fences over (docs/naming.md).",
    no_args_is_help=True,
)

Targets = Annotated[
    list[str] | None, typer.Argument(metavar="TARGET", help="A table as schema.table, or a bucket. Default: all.")
]
_SHOWN = 10


@naming.command("plan")
def show_naming_plan(
    targets: Targets = None, config: ConfigPath = None, database: DatabaseName = None, *, as_json: AsJson = False
) -> None:
    """Show what a change to the configured names would do. Nothing is changed. Exit code 1: there are changes."""
    from gateway.changes import naming as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def planned(part: "DatabaseConfig") -> "list[PlannedChange]":
        async with plan.naming_changes(part, only_look=True) as changes:
            return await changes.planned(targets or ())

    def act(part: "DatabaseConfig") -> None:
        found = asyncio.run(planned(part))
        for one in found:
            print_facts(_facts_of(one), _lines_of(one), as_json=as_json)
        if found:
            raise typer.Exit(ExitCode.NO)
        if not as_json:
            typer.echo("The configured names are the ones in force.")

    _each(load(config), database, targets, act, alone="--json is about one database" if as_json else None)


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

    async def apply(part: "DatabaseConfig") -> None:
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

    _each(load(config), database, targets, lambda part: asyncio.run(apply(part)))


def _each(
    settings: "Config",
    database: str | None,
    targets: "list[str] | None",
    act: "Callable[[DatabaseConfig], None]",
    *,
    alone: str | None = None,
) -> None:
    """Act on each chosen database. Targets are those of one."""
    if targets:
        the_one(settings, database, "a target is in one database")
    each(settings, database, act, alone=alone)


def _facts_of(planned: "PlannedChange") -> dict[str, object]:
    change, count = planned.change, planned.count
    return {
        "name": change.name,
        "closed": change.closed,
        "in_force": str(change.was),
        "configured": str(change.following),
        "carried": count.carried,
        "collisions": count.collisions,
        "not_carried": planned.left,
        "pending": planned.pending,
        "holders": planned.holders,
        "new_epoch": planned.new_epoch,
    }


def _lines_of(planned: "PlannedChange") -> "Iterator[str]":
    change, count = planned.change, planned.count
    yield from (
        f"{change.name}{' (closed: a change was interrupted)' if change.closed else ''}",
        f"  in force            {change.was}",
        f"  configured          {change.following}",
        f"  carried over        {count.carried} fences and locks",
        f"  collisions          {count.collisions} new names take the place of several old ones",
        f"  not carried over    {planned.left} fences, of rows and keys that are gone or have too long a name",
        f"  object writes       {planned.pending} under way, to be settled first",
        f"  live leases         {len(planned.holders)}",
    )
    for lock, holder in list(planned.holders.items())[:_SHOWN]:
        yield f"    {lock} is held by {holder}"
    yield f"  with --new-locks    tokens of the new locks begin with epoch {planned.new_epoch}"


databases = typer.Typer(
    help="Change which of several databases owns which names (docs/guides/many-databases.md).", no_args_is_help=True
)

Forgotten = Annotated[
    list[str] | None,
    typer.Option(
        "--forget", metavar="NAME", help="A database that is lost, with its fences. Their writers can return."
    ),
]


@databases.command("plan")
def show_ownership_plan(config: ConfigPath = None, forget: Forgotten = None, *, as_json: AsJson = False) -> None:
    """Show what each database owns, and what a change to the configured rules would do. Nothing is changed.

    Exit code 1: there are changes.
    """
    from gateway.changes import ownership as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def show() -> bool:
        async with plan.fleet(load(config), opens=False) as fleet:
            for seat in fleet.seats:
                print_facts(_facts_of_seat(seat), _lines_of_seat(seat), as_json=as_json)
            fleet.check_applicable(forget or ())
            moving, obstacles = await fleet.moving(), await fleet.obstacles()
            lines = [*moving, *(f"not yet: {one}" for one in obstacles)]
            if not fleet.concerned:
                lines.append("The configured rules are the ones in force.")
            facts = {"changes": bool(fleet.concerned), "moving": moving, "obstacles": obstacles}
            print_facts(facts, lines, as_json=as_json)
            return bool(fleet.concerned)

    if asyncio.run(show()):
        raise typer.Exit(ExitCode.NO)


@databases.command("apply")
def apply_rules(config: ConfigPath = None, forget: Forgotten = None) -> None:
    """Put the configured rules in force. The databases that they concern are closed until fences are carried over.

    Run it again after an interruption: it goes on. With the former configuration, it goes back.
    """
    from gateway.changes import ownership as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def apply() -> None:
        async with plan.fleet(load(config)) as fleet:
            fleet.check_applicable(forget or ())
            if not fleet.concerned:
                typer.echo("The configured rules are the ones in force.")
                return
            obstacles = await fleet.obstacles()
            if not obstacles and await _applied(fleet):
                return
            for obstacle in obstacles:
                say(f"gateway: {visible(obstacle)}")
            say("gateway: Names move only when nothing of theirs is under way. Nothing has changed. Try again later.")
            raise typer.Exit(ExitCode.PROBLEM)

    async def _applied(fleet: "Fleet") -> bool:
        try:
            return await fleet.apply(lambda line: typer.echo(visible(line)))
        except GatewayError:
            say("gateway: The change has failed. A database that is still closed opens when you run this again.")
            raise

    asyncio.run(apply())


def _facts_of_seat(seat: "Seat") -> dict[str, object]:
    found = seat.registered
    return {
        "database": seat.name,
        "problem": seat.problem or None,
        "closed": found is not None and bool(found.following or found.is_put_back),
        "in_force": None if found is None or found.name is None else shown(found.share),
        "configured": shown(seat.target.share),
        "changes": seat.concerned,
    }


def _lines_of_seat(seat: "Seat") -> "Iterator[str]":
    found, target = seat.registered, seat.target
    if found is None:
        yield f"{seat.label}: does not answer: {seat.problem}"
        return
    closed = "a change was interrupted" if found.following else "it was put back to before a change"
    yield f"{seat.label}{f' (closed: {closed})' if found.following or found.is_put_back else ''}"
    known = "it is none of several databases" if found.name is None else f"{found.name}: {shown(found.share)}"
    yield f"  in force    {known}"
    if seat.concerned:
        yield f"  configured  {shown(target.share)}"
