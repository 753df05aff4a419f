"""The page of the command line: each command with its arguments and options, as typer knows them."""

from collections.abc import Iterator
from typing import Any

import typer.main

from docs.generator import cell, page, table
from gateway.cli import application

INTRODUCTION = """\
`gateway --help` and `gateway COMMAND --help` print the same. `gateway completion` completes commands and options in a
shell. An option that names a variable takes its value from there, unless it is given.

| exit code | meaning |
|---|---|
| 0 | it succeeded |
| 1 | the answer is no, or something was found; each command says what |
| 2 | a problem that the user can solve: one line on standard error has the next step |

`gateway run` passes on the exit code of its command, and has [codes of its own](../run.md#exit-codes). `gateway config
check` ends with 78 for a wrong configuration."""


def make() -> str:
    """Return the page."""
    return page("The command line", INTRODUCTION, *_commands(typer.main.get_command(application), "gateway"))


def _commands(command: Any, name: str) -> Iterator[str]:
    for part, inner in sorted(getattr(command, "commands", {}).items()):
        if inner.hidden:
            continue
        whole = f"{name} {part}"
        if hasattr(inner, "commands"):
            yield f"## {whole}"
            yield _text(inner.help)
            yield from _commands(inner, whole)
        else:
            yield from _command(inner, whole)


def _command(command: Any, name: str) -> Iterator[str]:
    yield f"{'#' * len(name.split())} {name}"
    yield _text(command.help)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    line = [name, *(["[OPTIONS]"] if options else []), *map(_place, arguments)]
    yield f"```\n{' '.join(line)}\n```"
    if arguments:
        yield table(("argument", "meaning"), [(f"`{_place(one)}`", cell(one.help or "")) for one in arguments])
    if options:
        yield table(("option", "default", "meaning"), [_option(one) for one in options])


def _place(argument: Any) -> str:
    """Return an argument as help texts show it."""
    named = argument.metavar or argument.name.upper()
    if named.startswith("["):
        return str(named)
    named = named if argument.required else f"[{named}]"
    return f"{named}..." if argument.nargs == -1 else named


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join((*option.opts, *option.secondary_opts))
    shown = names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"
    variable = f"<br>`{option.envvar}`" if option.envvar else ""
    default = "*required*" if option.required else "" if option.default in (None, False) else f"`{option.default}`"
    return f"`{shown}`{variable}", default, cell(option.help or "")


def _text(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
