"""``gateway config``: check a configuration, show it, and compare it with that of a running gateway."""

import asyncio
import difflib
import tomllib
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from gateway.commands.console import (
    AsJson,
    ConfigPath,
    ExitCode,
    load,
    places,
    print_facts,
    print_json,
    say,
    tell,
)
from gateway.commands.environment import AdminKeyFile, api_key
from gateway.errors import ConfigurationError

configuration = typer.Typer(help="Check, show and compare configurations.", no_args_is_help=True)

AllowMissing: TypeAlias = Annotated[
    bool,
    typer.Option("--allow-missing", help="Only warn of tables, functions and buckets that do not exist yet."),
]


@configuration.command()
def check(config: ConfigPath = None, *, allow_missing: AllowMissing = False, as_json: AsJson = False) -> None:
    """Check the configuration as 'gateway serve' does. Exit code 78: it is wrong."""
    try:
        warnings = check_configuration(config, allow_missing=allow_missing)
    except ConfigurationError as error:
        if as_json:
            print_json({"usable": False, "problem": error.told, "advice": error.remedy, "warnings": []})
        else:
            tell(error)
        raise typer.Exit(ExitCode.WRONG_CONFIGURATION) from error
    for line in () if as_json else warnings:
        say(f"gateway: {line}")
    facts = {"usable": True, "problem": None, "advice": None, "warnings": warnings}
    print_facts(facts, ["The configuration can be used."], as_json=as_json)


def check_configuration(config: Path | None, *, allow_missing: bool = False) -> list[str]:
    """Check a configuration against its files, databases and stores. Return warnings. Raises ``ConfigurationError``."""
    from gateway import serving, targets  # noqa: PLC0415 - it imports the libraries of both planes
    from gateway.changes import ownership  # noqa: PLC0415 - the same
    from gateway.config import former_keys  # noqa: PLC0415 - help needs no settings
    from gateway.doctor import grants  # noqa: PLC0415 - the same

    settings = load(config)
    serving.check_tls(settings.server)
    known, warnings = places(config), former_keys(config)
    for part in settings.parts:
        found = asyncio.run(targets.check(part, part.places_in(known), allow_missing=allow_missing))
        found += [f"{one.name}: {one.detail}. {one.advice}" for one in grants.observed(part)]
        warnings += found if part.name is None else [f"{part.name}: {line}" for line in found]
    asyncio.run(ownership.check_agreement(settings))
    return warnings


@configuration.command()
def show(config: ConfigPath = None, *, as_json: AsJson = False) -> None:
    """Print the configuration in force as TOML, with all defaults. Secrets are redacted."""
    from gateway.config import toml  # noqa: PLC0415 - help needs no settings

    text = toml.document(load(config))
    if as_json:
        print_json(tomllib.loads(text))
    else:
        typer.echo(text, nl=False)


@configuration.command()
def diff(
    url: Annotated[list[str], typer.Option(help="The address of a running gateway; repeatable.")],
    config: ConfigPath = None,
    api_key_file: AdminKeyFile = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Compare the configuration with that of running gateways. Secrets are not compared. Exit code 1: they differ."""
    from gateway.commands.api_client import Gateway  # noqa: PLC0415 - serving needs no HTTP client
    from gateway.config import toml  # noqa: PLC0415 - help needs no settings

    own = toml.document(load(config)).splitlines()
    key = api_key(api_key_file)
    differ = False
    for address in url:
        running = Gateway(address, key).call("GET", "/v1/config", lambda answer: str(answer["toml"])).splitlines()
        lines = list(difflib.unified_diff(running, own, address, str(config or "the environment"), lineterm=""))
        differ = differ or bool(lines)
        facts = {"url": address, "differs": bool(lines), "diff": lines}
        print_facts(facts, lines, as_json=as_json, folded=False)
    if differ:
        raise typer.Exit(ExitCode.NO)
