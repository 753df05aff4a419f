"""What the commands of this program have in common: naming the configuration, lines for people, findings."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.doctor.findings import Report, render
from gateway.text import visible

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}

ConfigPath = Annotated[
    Path | None, typer.Option("--config", help="gateway.toml. Without it, everything comes from GATEWAY_… variables.")
]


def say(line: str) -> None:
    """A line for people: on standard error, so that what a command prints can be piped on.

    Names in it may be anybody's: whatever could act on a terminal is shown as an escape.
    """
    Console(stderr=True, soft_wrap=True, markup=False, highlight=False).print(visible(line))


def show(report: Report) -> None:
    """Print what was found, the keys of objects among it, as harmless text; leave with 1 if something is wrong."""
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for line in render(report):
        console.print(visible(line), style=STYLES.get(line.strip().partition(" ")[0]))
    if report.problems:
        raise typer.Exit(1)
