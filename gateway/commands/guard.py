"""``gateway guard``: guards on tables, for sessions that write them without the gateway."""

import asyncio
from typing import Annotated

import typer

from gateway.commands.console import ConfigPath, print_report, say
from gateway.config import load
from gateway.doctor.findings import Report, Section

guard = typer.Typer(
    help="Make sessions that write tables without the gateway hold fencing tokens too (docs/guard.md).",
    no_args_is_help=True,
)

GuardedTable = Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or a table of the first schema.")]
InstallingDsn = Annotated[
    str | None, typer.Option("--dsn", help="Do it as this role, which owns the table and the schema fencing.")
]
Granted = Annotated[list[str] | None, typer.Option("--grants", metavar="ROLE", help="Let this role claim tokens.")]


@guard.command("install")
def install_guard(
    table: GuardedTable,
    config: ConfigPath = None,
    dsn: InstallingDsn = None,
    gateway_role: Annotated[
        str | None, typer.Option(help="Whose sessions are let through, instead of the role of postgres.dsn.")
    ] = None,
    grants: Granted = None,
    *,
    observe: Annotated[bool, typer.Option("--observe", help="Let everything pass, and put it on record.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Find rows that are changed while the guard is switched off.")
    ] = False,
    print_only: Annotated[bool, typer.Option("--print", help="Print the SQL instead.")] = False,
) -> None:
    """Put the guard on a table, or in the place of an older one: after each change of its rule or its columns."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    wanted = guards.Wanted(table, observe, gateway_role, dsn, tuple(grants or ()), watch)
    prepared = asyncio.run((guards.prepare if print_only else guards.install)(load(config), wanted))
    if print_only:
        typer.echo(f"BEGIN;\n{prepared.script}\nCOMMIT;")
    else:
        typer.echo(prepared.summary)
    for note in prepared.notes:
        say(note)


@guard.command("stamp")
def stamp_rows(table: GuardedTable, config: ConfigPath = None, dsn: InstallingDsn = None) -> None:
    """Take the rows of a watched table as they are now: after a restore, or once a finding has been dealt with."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    asyncio.run(guards.take_stamps(load(config), table, dsn))
    typer.echo(f"{table}: its rows have new stamps")


@guard.command("remove")
def remove_guard(table: GuardedTable, config: ConfigPath = None, dsn: InstallingDsn = None) -> None:
    """Take the guard off a table."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    removed = asyncio.run(guards.remove(load(config), table, dsn))
    typer.echo(f"{table}: {'the guard is off' if removed else 'there is no guard'}")


@guard.command("show")
def show_guards(config: ConfigPath = None) -> None:
    """Say which tables have a guard, and whether it fits their rules. Exit code 1: one does not."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    print_report(Report((Section("guards", tuple(asyncio.run(guards.show(load(config))))),)))


@guard.command("pack")
def print_pack(grants: Granted = None) -> None:
    """Print SQL that has a stock PostgREST, or Supabase, claim what the headers of a request name."""
    from gateway.guard.pack import pack  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    typer.echo(pack(tuple(grants or ())))
