"""The command line: serve, migrate, doctor, sweep, credentials, demo.

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
from gateway.store import schema

PROBLEM = 2
STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}

application = typer.Typer(
    help="Fencing tokens in front of Postgres tables and S3 buckets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="gateway.toml. Without it, everything comes from GATEWAY_… variables.")
]


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
    from gateway.doctor import examine, render  # noqa: PLC0415 - all the libraries of the object plane hang on it

    report = asyncio.run(examine(load(config)))
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for line in render(report):
        console.print(line, style=STYLES.get(line.strip().partition(" ")[0]))
    if report.problems:
        raise typer.Exit(1)


@application.command()
def sweep(config: ConfigPath = None) -> None:
    """Clear away now what a running gateway clears away by and by: tombstones, uploads and writes left behind."""
    from gateway import app  # noqa: PLC0415 - all the libraries of both planes hang on it

    swept = asyncio.run(app.sweep(load(config)))
    typer.echo(f"swept: {swept.tombstones} tombstones, {swept.uploads} uploads, {swept.intents} pending writes")


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
