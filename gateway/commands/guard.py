"""``gateway guard``: guards on tables, for sessions that bypass the gateway."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import ConfigPath, DatabaseName, ReportAsJson, each, load, of_table, print_report, say
from gateway.commands.environment import secret_of
from gateway.findings import DoctorReport, ReportSection

if TYPE_CHECKING:
    from gateway.config.databases import DatabaseConfig

guard = typer.Typer(
    help="Require fencing tokens of sessions that bypass the gateway (docs/guard.md).",
    no_args_is_help=True,
)

GuardedTable = Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or a table of the first schema.")]
InstallingDsn = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        callback=lambda given: secret_of("--dsn", given, None),
        help="Connect as this role, which owns the table and the schema fencing.",
    ),
]
Granted = Annotated[
    list[str] | None, typer.Option("--grants", metavar="ROLE", help="Let this role acquire locks and claim tokens.")
]


@guard.command("install")
def install_guard(
    table: GuardedTable,
    config: ConfigPath = None,
    dsn: InstallingDsn = None,
    gateway_role: Annotated[
        str | None,
        typer.Option(help="The gateway's role, whose sessions pass. The default is that of postgres.dsn, or none."),
    ] = None,
    grants: Granted = None,
    *,
    observe: Annotated[bool, typer.Option("--observe", help="Let every write pass, but record it.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Find rows that change while the guard is disabled.")] = False,
    print_only: Annotated[bool, typer.Option("--print", help="Print the SQL instead of running it.")] = False,
) -> None:
    """Install the guard of a table, or replace an older one. Repeat it after each change of its rule or columns."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    wanted = guards.GuardRequest(table, observe, gateway_role, dsn, tuple(grants or ()), watch)
    prepared = asyncio.run((guards.prepare if print_only else guards.install)(of_table(config, table, dsn), wanted))
    if print_only:
        typer.echo(f"BEGIN;\n{prepared.script}\nCOMMIT;")
    else:
        typer.echo(prepared.summary)
    for note in prepared.notes:
        say(note)


@guard.command("stamp")
def stamp_rows(table: GuardedTable, config: ConfigPath = None, dsn: InstallingDsn = None) -> None:
    """Accept the rows of a watched table as they are now, after a restore or a resolved finding."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    asyncio.run(guards.take_stamps(of_table(config, table, dsn), table, dsn))
    typer.echo(f"{table}: its rows have new stamps")


@guard.command("remove")
def remove_guard(table: GuardedTable, config: ConfigPath = None, dsn: InstallingDsn = None) -> None:
    """Remove the guard of a table."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    removed = asyncio.run(guards.remove(of_table(config, table, dsn), table, dsn))
    typer.echo(f"{table}: {'the guard is removed' if removed else 'there is no guard'}")


@guard.command("show")
def show_guards(
    config: ConfigPath = None,
    dsn: InstallingDsn = None,
    database: DatabaseName = None,
    *,
    as_json: ReportAsJson = False,
) -> None:
    """List guards, and check each against the rule of its table. Exit code 1: one does not match."""
    from gateway.guard import installation as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    def act(part: "DatabaseConfig") -> None:
        report = DoctorReport((ReportSection("guards", tuple(asyncio.run(guards.examine_guards(part, dsn)))),))
        print_report(report, as_json=as_json)

    each(load(config, dsn), database, act, alone="--json is about one database" if as_json else None)


@guard.command("pack")
def print_pack(grants: Granted = None) -> None:
    """Print SQL that makes a stock PostgREST, or Supabase, claim the resources in the headers of a request."""
    from gateway.guard.script import pack  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    typer.echo(pack(tuple(grants or ())))
