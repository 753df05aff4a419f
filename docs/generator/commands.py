"""The page of the command line: each command with its arguments and options, as typer knows them."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import typer.main

from docs.generator import attributes, grouped, markdown, page
from gateway.cli import application
from gateway.commands import console

INTRODUCTION = """\
`gateway --help` and `gateway COMMAND --help` print the same. `gateway completion` completes commands and options in a
shell. An option that names a variable takes its value from there, unless it is given.

Commands that print facts take `--json`. A terminal gets lines that fit it, with colours unless `NO_COLOR` is set. A
pipe gets neither, and tabs between columns."""


def make() -> str:
    """Return the page."""
    commands = list(_commands(typer.main.get_command(application), "gateway"))
    shared = _shared([one for _, one in commands])
    return page(
        "The command line",
        INTRODUCTION,
        "## Exit codes",
        _exit_codes(),
        "## Options of several commands",
        "A command that has one of these names it after *Also*. Parentheses have the default.",
        _list(row for name, row in shared.items() if name not in (*FILTERS, *TIMES)),
        f"*The filters* are {', '.join(f'`{name}`' for name in FILTERS[:-1])}, and `--enforced` or `--observed`. These "
        "two show only refused writes, or only those that observe mode let pass. The filters are explained as "
        f"[parameters of the API](http.md#common-parameters), and so are {', '.join(f'`{name}`' for name in TIMES)}.",
        *(part for name, command in commands for part in _command(command, name, shared)),
    )


def _exit_codes() -> str:
    meanings = attributes(console)["ExitCode"]
    rows = {
        "0": "It succeeded.",
        **{str(code.value): meanings[code.name] for code in console.ExitCode},
        "128 + n": "`gateway run`: signal n has ended the command, or arrived during the wait for the lock.",
        "any other": "`gateway run`: the exit code of the command, which has run to its end.",
    }
    lines = [f"| {code} | {markdown(meaning)} |" for code, meaning in rows.items()]
    return "\n".join(["| exit code | meaning |", "|---|---|", *lines])


Row = tuple[str, str, str]

FILTERS = ("--resource", "--prefix", "--holder", "--caller", "--reason", "--plane", "--rule", "--token", "--enforced")
"""The options that commands about the record share."""
TIMES = ("--kind", "--since", "--until")
"""Further ones, which some of these commands have."""


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the commands and their groups, each group before its commands."""
    for part, inner in sorted(getattr(command, "commands", {}).items()):
        if not inner.hidden:
            yield f"{name} {part}", inner
            yield from _commands(inner, f"{name} {part}")


def _options(command: Any) -> dict[str, Row]:
    return {one.opts[0]: _option(one) for one in command.params if one.param_type_name == "option"}


def _shared(commands: list[Any]) -> dict[str, Row]:
    """Return the options that several commands have alike, each under its name: of two kinds the more frequent one."""
    rows = Counter((name, row) for command in commands for name, row in _options(command).items())
    found: dict[str, Row] = {}
    for (name, row), count in rows.most_common():
        if count > 1:
            found.setdefault(name, row)
    return found


def _command(command: Any, name: str, shared: dict[str, Row]) -> Iterator[str]:
    yield f"{'#' * len(name.split())} {name}"
    yield _text(command.help)
    if hasattr(command, "commands"):
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if arguments:
        yield f"`{' '.join([name, *map(_place, arguments)])}`"
    options = _options(command)
    own = [(f"`{_place(one)}`", "", markdown(one.help or "")) for one in arguments]
    own += [row for option, row in options.items() if shared.get(option) != row]
    if own:
        yield _list(own)
    if others := [option for option, row in options.items() if shared.get(option) == row]:
        yield grouped(others, FILTERS, "*the filters*")


def _place(argument: Any) -> str:
    """Return an argument as help texts show it."""
    named = argument.metavar or argument.name.upper()
    if named.startswith("["):
        return str(named)
    named = named if argument.required else f"[{named}]"
    return f"{named}..." if argument.nargs == -1 else named


def _option(option: Any) -> Row:
    names = ", ".join((*option.opts, *option.secondary_opts))
    shown = names if option.is_flag else f"{names} {option.metavar or option.name.upper()}"
    variable = f" `{option.envvar}`" if option.envvar else ""
    default = "required" if option.required else "" if option.default in (None, False, "") else f"`{option.default}`"
    return f"`{shown}`{variable}", default, markdown(option.help or "")


def _list(rows: Iterable[Row]) -> str:
    return "\n".join(f"- {option}{f' ({default})' if default else ''}. {meaning}" for option, default, meaning in rows)


def _text(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
