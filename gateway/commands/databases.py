"""``gateway databases``: what each of several databases owns, and changes of that."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import ConfigPath, load, say
from gateway.errors import GatewayError
from gateway.fencing.shares import shown
from gateway.text import visible

if TYPE_CHECKING:
    from gateway.changes.ownership import Fleet, Seat

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
def show_plan(config: ConfigPath = None, forget: Forgotten = None) -> None:
    """Show what each database owns, and what a change to the configured rules would do. Nothing is changed.

    Exit code 1: there are changes.
    """
    from gateway.changes import ownership as plan  # noqa: PLC0415 - it imports all libraries of both planes

    async def show() -> bool:
        async with plan.fleet(load(config), opens=False) as fleet:
            for seat in fleet.seats:
                _print(seat)
            fleet.check_applicable(forget or ())
            found = await fleet.planned()
            for one in found.moving:
                typer.echo(visible(f"{one.origin}: {one.count} fences and locks move to {one.to}"))
            for obstacle in found.obstacles:
                typer.echo(visible(f"not yet: {obstacle}"))
            return bool(fleet.concerned)

    if asyncio.run(show()):
        raise typer.Exit(1)
    typer.echo("The configured rules are the ones in force.")


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
            found = await fleet.planned()
            if not found.obstacles and await _applied(fleet):
                return
            for obstacle in found.obstacles:
                say(f"gateway: {visible(obstacle)}")
            say("gateway: Names move only when nothing of theirs is under way. Nothing has changed. Try again later.")
            raise typer.Exit(2)

    async def _applied(fleet: "Fleet") -> bool:
        try:
            return await fleet.apply(lambda line: typer.echo(visible(line)))
        except GatewayError:
            say("gateway: The change has failed. A database that is still closed opens when you run this again.")
            raise

    asyncio.run(apply())


def _print(seat: "Seat") -> None:
    found, target = seat.registered, seat.target
    if found is None:
        typer.echo(visible(f"{seat.label}: does not answer: {seat.problem}"))
        return
    closed = "a change was interrupted" if found.following else "it was put back to before a change"
    lines = [f"{seat.label}{f' (closed: {closed})' if found.following or found.is_put_back else ''}"]
    known = "it is none of several databases" if found.name is None else f"{found.name}: {shown(found.share)}"
    lines.append(f"  in force    {known}")
    if seat.concerned:
        lines.append(f"  configured  {shown(target.share)}")
    for line in lines:
        typer.echo(visible(line))
