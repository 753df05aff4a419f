"""The command line: serve, migrate, doctor, sweep, guard, credentials, demo.

Every problem its user can solve is one line on standard error, and exit code 2.
"""

import asyncio
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway import serving
from gateway.config import Config, Server, api_key, load
from gateway.errors import ConfigurationError, GatewayError, Unavailable
from gateway.findings import Report, Section, render
from gateway.store import schema

PROBLEM = 2
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}

application = typer.Typer(
    help="Fencing tokens in front of Postgres tables and S3 buckets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

guard = typer.Typer(
    help="Make sessions that write tables without the gateway hold fencing tokens too (docs/guard.md).",
    no_args_is_help=True,
)
application.add_typer(guard, name="guard")

ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="gateway.toml. Without it, everything comes from GATEWAY_… variables.")
]

GuardedTable = Annotated[str, typer.Argument(metavar="TABLE", help="schema.table, or a table of the first schema.")]
InstallingDsn = Annotated[
    str | None, typer.Option("--dsn", help="Do it as this role, which owns the table and the schema fencing.")
]
Granted = Annotated[list[str] | None, typer.Option("--grants", metavar="ROLE", help="Let this role claim tokens.")]


def main() -> None:
    """The entry point of the command ``gateway``."""
    try:
        application()
    except GatewayError as error:
        advice = "" if error.advice == error.default_advice else error.advice
        _say(f"gateway: {error.message} {advice}".rstrip())
        sys.exit(PROBLEM)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the signature is typer's
    if wanted:
        typer.echo(f"gateway {version('fencing-gateway')}")
        raise typer.Exit


@application.callback()
def options(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What holds for every command."""


@application.command()
def serve(
    config: ConfigPath = None,
    listen: Annotated[str | None, typer.Option(help="host:port, instead of server.listen.")] = None,
) -> None:
    """Run the gateway."""
    settings = _listening(load(config), listen)
    from gateway.app import build  # noqa: PLC0415 - all the libraries of both planes hang on it

    with serving.Signals(), serving.bind(settings.server.host, settings.server.port) as listener:
        server = serving.server(build(settings), settings.server)
        _check_schema(settings)
        _say(f"gateway: listening on {_url(settings.server, listener.getsockname()[1])}")
        server.run(sockets=[listener])


@application.command()
def migrate(
    config: ConfigPath = None,
    dsn: Annotated[
        str | None, typer.Option(help="Migrate as this role instead of the gateway's own, which then needs no DDL.")
    ] = None,
) -> None:
    """Install the fencing schema, or bring it to this version."""
    target = dsn or load(config).postgres.dsn.get_secret_value()
    before = asyncio.run(serving.revision(target))
    schema.upgrade(target)
    after = asyncio.run(serving.revision(target))
    typer.echo(f"fencing schema: {before or 'not installed'} -> {after}")


@application.command()
def doctor(config: ConfigPath = None) -> None:
    """Examine configuration, database and object store, and say what follows. Exit code 1: something is wrong."""
    from gateway.doctor import examine  # noqa: PLC0415 - all the libraries of the object plane hang on it

    _show(asyncio.run(examine(load(config))))


@application.command()
def sweep(config: ConfigPath = None) -> None:
    """Clear away now what a running gateway clears away by and by: tombstones, uploads and writes left behind."""
    from gateway import app  # noqa: PLC0415 - all the libraries of both planes hang on it

    swept = asyncio.run(app.sweep(load(config)))
    typer.echo(f"swept: {swept.tombstones} tombstones, {swept.uploads} uploads, {swept.intents} pending writes")


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
    print_only: Annotated[bool, typer.Option("--print", help="Print the SQL instead.")] = False,
) -> None:
    """Put the guard on a table, or in the place of an older one: after each change of its rule or its columns."""
    from gateway import guard as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    wanted = guards.Wanted(table, observe, gateway_role, dsn, tuple(grants or ()))
    prepared = asyncio.run((guards.prepare if print_only else guards.install)(load(config), wanted))
    if print_only:
        typer.echo(f"BEGIN;\n{prepared.script}\nCOMMIT;")
    else:
        typer.echo(prepared.summary)
    for note in prepared.notes:
        _say(note)


@guard.command("remove")
def remove_guard(table: GuardedTable, config: ConfigPath = None, dsn: InstallingDsn = None) -> None:
    """Take the guard off a table."""
    from gateway import guard as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    removed = asyncio.run(guards.remove(load(config), table, dsn))
    typer.echo(f"{table}: {'the guard is off' if removed else 'there is no guard'}")


@guard.command("show")
def show_guards(config: ConfigPath = None) -> None:
    """Say which tables have a guard, and whether it fits their rules. Exit code 1: one does not."""
    from gateway import guard as guards  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    _show(Report((Section("guards", tuple(asyncio.run(guards.show(load(config))))),)))


@guard.command("pack")
def print_pack(grants: Granted = None) -> None:
    """Print SQL that has a stock PostgREST, or Supabase, claim what the headers of a request name."""
    from gateway.guard_pack import pack  # noqa: PLC0415 - the compiler of the table plane's SQL hangs on it

    typer.echo(pack(tuple(grants or ())))


@application.command()
def credentials(
    url: Annotated[str, typer.Option(help="Where the gateway is, e.g. https://gateway.example.com.")],
    resource: Annotated[str, typer.Option(help="The resource whose lock is held; * and a last /** as wildcards.")],
    token: Annotated[str, typer.Option(help="The fencing token that the lock service gave.")],
    holder: Annotated[str | None, typer.Option(help="The name of the holder.")] = None,
    ttl: Annotated[int, typer.Option(help="Seconds until they expire.", min=60, max=43200)] = 3600,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Holds the API key. Without it, GATEWAY_API_KEY does.")
    ] = None,
) -> None:
    """Print temporary S3 keys that write with a fencing token, for credential_process in ~/.aws/config."""
    from gateway.credential_process import Wanted, fetch  # noqa: PLC0415 - serving needs no HTTP client

    key = api_key(api_key_file).get_secret_value()
    typer.echo(fetch(url, key, Wanted(resource, token, holder, ttl)))


@application.command()
def demo(
    port: Annotated[int, typer.Option(help="Where the gateway listens, on 127.0.0.1.", min=0, max=65535)] = 8080,
    data: Annotated[
        Path | None, typer.Option(help="Keep the tables here. Without it they are thrown away, as objects always are.")
    ] = None,
    *,
    story: Annotated[bool, typer.Option("--story", help="Play the story of the paused writer, then leave.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="With --story: stay for trying things out.")] = False,
) -> None:
    """Try the gateway out, with an embedded Postgres and S3."""
    from gateway import demo as demonstration  # noqa: PLC0415 - optional packages hang on it

    with serving.Signals() as signals:
        told = demonstration.run(port, data, signals, with_story=story, keep=keep)
    if not told:
        raise typer.Exit(1)


def _show(report: Report) -> None:
    """Print what was found; leave with 1 if something is wrong."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for line in render(report):
        console.print(line, style=STYLES.get(line.strip().partition(" ")[0]))
    if report.problems:
        raise typer.Exit(1)


def _listening(config: Config, listen: str | None) -> Config:
    if listen is None:
        return config
    try:
        server = Server.model_validate({**config.server.model_dump(), "listen": listen})
    except ValueError as error:
        raise ConfigurationError("--listen: must be host:port, such as 127.0.0.1:8080", advice="") from error
    return config.model_copy(update={"server": server})


def _check_schema(config: Config) -> None:
    try:
        asyncio.run(serving.check_schema(config.postgres.dsn.get_secret_value()))
    except Unavailable as error:
        _say(f"gateway: {error.message} Answering with 503 until it is back.")


def _url(server: Server, port: int) -> str:
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"{'https' if server.tls_certificate else 'http'}://{host}:{port}"


def _say(line: str) -> None:
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(line)
