"""``gateway config``: check a configuration, show what is in force."""

import asyncio
from typing import Annotated, TypeAlias

import typer

from gateway.commands.console import ConfigPath, say
from gateway.config import load, places, toml
from gateway.errors import ConfigurationError

WRONG = 78
"""The exit code for a wrong configuration, as sysexits.h has it."""

configuration = typer.Typer(help="Check and show a configuration.", no_args_is_help=True)

AllowMissing: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-missing", help="Only warn of tables, functions and buckets that do not exist yet."),
]


@configuration.command()
def check(config: ConfigPath = None, *, allow_missing: AllowMissing = False) -> None:
    """Check the configuration as 'gateway serve' does. Exit code 78: it is wrong."""
    from gateway import serving, targets  # noqa: PLC0415 - it imports the libraries of both planes

    try:
        settings = load(config)
        serving.check_tls(settings.server.tls_certificate, settings.server.tls_key)
        warnings = asyncio.run(targets.check(settings, places(config), allow_missing=allow_missing))
    except ConfigurationError as error:
        for line in error.message.split("\n"):
            say(f"gateway: {line}")
        raise typer.Exit(WRONG) from error
    for line in warnings:
        say(f"gateway: {line}")
    typer.echo("The configuration can be used.")


@configuration.command()
def show(config: ConfigPath = None) -> None:
    """Print the configuration in force as TOML, with all defaults. Secrets are redacted."""
    typer.echo(toml.document(load(config)), nl=False)
