"""The databases that a command is about, if a configuration has several: all of them, or one by its name or a table."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.console import load, say
from gateway.errors import ConfigurationError, GatewayError

if TYPE_CHECKING:
    from gateway.config import Config

DatabaseName = Annotated[
    str | None,
    typer.Option("--database", metavar="NAME", help="One of several databases. The default is all of them."),
]
PROBLEM = 2


def chosen(settings: "Config", name: str | None) -> "dict[str | None, Config]":
    """Return the configurations of the databases alone: all, or the one of this name.

    Raises ``ConfigurationError`` if there is no such database.
    """
    parts = settings.parts
    if name is None:
        return parts
    if name not in parts:
        known = ", ".join(one for one in parts if one is not None) or "only [postgres], which needs no --database"
        raise ConfigurationError(f"--database: there is no database {name}; there are: {known}", advice="")
    return {name: parts[name]}


def the_one(settings: "Config", name: str | None, why: str) -> "Config":
    """Return the configuration of one database alone. Raises ``ConfigurationError`` if it is not clear which one."""
    found = list(chosen(settings, name).values())
    if len(found) > 1:
        raise ConfigurationError(f"{why}; name the database with --database", advice="")
    return found[0]


def of_table(config: Path | None, table: str) -> "Config":
    """Return the configuration of the database that has a table, ``schema.table``. Without a schema: the default."""
    settings = load(config)
    if not settings.databases:
        return settings
    schema = table.partition(".")[0] if "." in table else None
    for one in settings.databases:
        if one.default if schema is None else schema in one.schemas:
            return settings.parts[one.name]
    raise ConfigurationError(f"No database exposes the schema {schema}.", advice="Add it to schemas of one of them.")


def each(settings: "Config", name: str | None, act: "Callable[[str | None, Config], None]") -> None:
    """Act on each of the chosen databases. One that fails does not stop the others: the exit code tells it."""
    parts = chosen(settings, name)
    if list(parts) == [None]:
        act(None, parts[None])
        return
    code = 0
    for database, part in parts.items():
        typer.echo(f"{database}:")
        try:
            act(database, part)
        except typer.Exit as left:
            code = max(code, left.exit_code)
        except GatewayError as error:
            code = PROBLEM
            advice = "" if error.advice == error.default_advice else error.advice
            say(f"gateway: {database}: {error.message} {advice}".rstrip())
    if code:
        raise typer.Exit(code)
