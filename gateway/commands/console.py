"""The terminal: notices on standard error, findings of the doctor, tables, ``--config`` and ``--database``.

A help text, or a completion, waits for the imports of this module and of ``gateway.cli``. So they import no library of
the configuration, the planes or HTTP: only the functions that need one do.

Columns fit the terminal: long texts are shortened or folded, and widths count its cells. A wide character takes two.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gateway import findings
from gateway.commands.record_client import Entry
from gateway.errors import ConfigurationError, GatewayError
from gateway.fencing.record import EntryReason, Kind, also_denied, missing_grant
from gateway.findings import DoctorReport
from gateway.text import plain_time, span, visible

if TYPE_CHECKING:
    from gateway.config import Config
    from gateway.config.databases import DatabaseConfig
    from gateway.config.explanations import Places


class ExitCode(IntEnum):
    """The exit codes of all commands, beside 0, those of the program that ``gateway run`` starts, and 128 + a signal.

    The codes from 64 to 78 are of sysexits.h.
    """

    NO = 1
    """The answer is no, or something was found. The help of each command says what."""
    PROBLEM = 2
    """The user has to correct something first: a line on standard error has the next step."""
    UNREACHABLE = 69
    """``gateway run``: the gateway or the lock service cannot be reached. Nothing was started."""
    NOT_ACQUIRED = 75
    """``gateway run``: another holder had the lock until the time of ``--wait`` was over. Nothing was started."""
    WRONG_CONFIGURATION = 78
    """``gateway config check``: the configuration is wrong."""
    LOST = 79
    """``gateway run``: the lock was lost. The command was stopped, or had failed by itself before."""
    NOT_EXECUTABLE = 126
    """``gateway run``: the command cannot be executed. The lock was not touched."""
    NOT_FOUND = 127
    """``gateway run``: the command does not exist. The lock was not touched."""


GAP = 2
"""Cells between two columns."""
_LEAST = 12
"""Cells that a long text needs to be told from others."""
_ELLIPSIS = "…"


def shorten(text: str, width: int) -> str:
    """Return a text of at most so many cells. A longer one loses its middle, because names differ at their ends."""
    if cell_len(text) <= width:
        return text
    if width < 3:
        return _ELLIPSIS[:width]
    head, tail = _head(text, (width - 1) - (width - 1) // 2), _head(text[::-1], (width - 1) // 2)[::-1]
    return f"{head}{_ELLIPSIS}{tail}"


def cut(text: str, width: int) -> str:
    """Return a text of at most so many cells. A longer one loses its end."""
    return text if cell_len(text) <= width else _head(text, width - 1) + _ELLIPSIS


def fold(text: str, width: int) -> list[str]:
    """Return a text as lines of at most so many cells, whole: they end between words, if a word is not longer."""
    lines: list[str] = []
    while cell_len(text) > width:
        # A character that is wider than the column has a line of its own.
        head = _head(text, width) or text[:1]
        if (end := head.rfind(" ")) > 0 and text[len(head) : len(head) + 1] != " ":
            head = text[:end]
        lines.append(head)
        text = text[len(head) :].removeprefix(" ")
    return [*lines, text]


def fit(wanted: Mapping[str, int], room: int, optional: Sequence[str], least: Mapping[str, int]) -> dict[str, int]:
    """Return the columns that fit into so many cells, in order, with their widths.

    ``wanted`` has the columns with the widths of their longest texts. Columns that are too wide together shrink, but
    each keeps its ``least`` width. If that is not enough, ``optional`` columns go, the first first.
    """
    widths = {name: width for name, width in wanted.items() if width}
    kept = {name: min(width, least.get(name, _LEAST)) for name, width in widths.items()}
    droppable = [name for name in optional if name in widths]
    while droppable and _total(kept) > room:
        del widths[droppable[0]], kept[droppable.pop(0)]
    excess = _total(widths) - room
    # The widest gives first, so that short columns stay whole. A very narrow terminal takes from all.
    for floor in (kept, dict.fromkeys(widths, 1)):
        while excess > 0 and (large := [name for name in widths if widths[name] > floor[name]]):
            widths[max(large, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _head(text: str, width: int) -> str:
    kept = 0
    for number, character in enumerate(text):
        kept += cell_len(character)
        if kept > width:
            return text[:number]
    return text


STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}

ConfigPath = Annotated[
    Path | None,
    typer.Option("--config", help="The file gateway.toml. Without it, all settings come from GATEWAY_… variables."),
]


def load(config: Path | None, dsn: str | None = None) -> "Config":
    """Read the configuration that ``--config`` names. Raises ``ConfigurationError``.

    ``dsn``: of the operator's session, which is enough where no gateway is configured.
    """
    from gateway import config as configuration  # noqa: PLC0415 - help needs no settings

    return configuration.load(config, dsn)


def places(config: Path | None) -> "Places":
    from gateway import config as configuration  # noqa: PLC0415 - help needs no settings

    return configuration.places(config)


def say(line: str) -> None:
    """Print a line on standard error, so that the output of a command can be piped on.

    Names in it come from any writer, so characters that could control a terminal are printed as escapes.
    """
    terminal(stderr=True).print(visible(line))


def terminal(*, stderr: bool = False) -> Console:
    """Return a console that prints texts as they are, and folds them between words if it is a terminal."""
    console = Console(stderr=stderr, markup=False, highlight=False)
    console.soft_wrap = not console.is_terminal
    return console


def print_json(document: object) -> None:
    """Print one line. It has only ASCII: JSON escapes all other characters."""
    typer.echo(json.dumps(document))


def print_facts(facts: Mapping[str, object], lines: Iterable[str], *, as_json: bool, folded: bool = True) -> None:
    """Print facts as one line of JSON, or the lines that tell them to people, as harmless text.

    With ``--json`` a command prints one object a line: one for each thing that it lists, so none for an empty list. An
    object about all of them comes last. Only a report of checks is one document. ``folded``: lines may be folded.
    """
    if as_json:
        print_json(facts)
        return
    console = terminal()
    for line in lines:
        console.print(visible(line), soft_wrap=None if folded else True)


def tell(problem: GatewayError, about: str | None = None) -> None:
    """Print what went wrong, with the advice on it. ``about``: the database, gateway or fence, if there are several."""
    advice = "" if problem.remedy == problem.cause.default_advice else problem.remedy
    for line in f"{problem.told} {advice}".rstrip().split("\n"):
        say(f"gateway: {line}" if about is None else f"gateway: {about}: {line}")


AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object a line, with all fields.")]
ReportAsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


def print_report(report: DoctorReport, *, as_json: bool = False, strict: bool = False) -> None:
    """Print a report as harmless text, because it contains keys of objects, or as JSON.

    Exit with 1 if there are problems, or with ``strict`` warnings.
    """
    console = terminal()
    if as_json:
        typer.echo(findings.as_json(report))
    else:
        for line in findings.render(report):
            console.print(visible(line), style=STYLES.get(line.strip().partition(" ")[0]))
    if report.problems or (strict and report.warnings):
        raise typer.Exit(ExitCode.NO)


_STYLES = {
    "rejection": "bold red",
    "guard-refused": "bold red",
    "bypass": "bold magenta",
    "alarm-raised": "bold magenta",
    "raised": "cyan",
    "barrier": "cyan",
    "epoch": "cyan",
    "settled": "yellow",
}
_OBSERVED = "yellow"
_COLUMNS = ("time", "what", "resource", "token", "holder", "caller", "fence", "by", "late")
_HOLDER, _CALLER = _COLUMNS.index("holder"), _COLUMNS.index("caller")
_OPTIONAL = ("late", "by", "caller", "fence", "token")
"""Columns that a narrow terminal loses, the first first."""
_GUARD = "guard: "
_CUT = ("what", "first", "last")
_LEAST_OF_ENTRY = {"time": 19, "what": max(len(word) for word in (*Kind, *EntryReason))}
_MINUTES = 17
"""Cells of a time that loses its seconds, with the sign that it does."""
_WIDE = 120
"""Cells of a terminal that has room for whole texts. There a long text is folded, and in a narrower one it is cut."""
_USUAL = dict(zip(_COLUMNS, (19, 24, 40, 9, 24, 24, 9, 24, 20), strict=True))
"""Widths of a table whose rows are not known yet."""

_LEAST_OF_ALL = {"resource": 10, "writer": 10, "last": 13}
"""Less than a long text needs, so that 80 columns have room for both counts of an incident."""

Cells: TypeAlias = tuple[str, ...]


def entry_cells(entry: Entry) -> Cells:
    by = entry["fence_holder"] or entry["fence_caller"]
    values = (
        _time(entry["at"]),
        _what(entry),
        *(entry[name] for name in ("resource", "token", "holder", "caller", "fence")),
        by,
        _late(entry),
    )
    return tuple(visible(str(value)) if value is not None else "" for value in values)


def print_table(console: Console, entries: Sequence[Entry]) -> None:
    """Print entries as a table that fits the terminal, or with tabs between columns if this is none.

    Writer and reason are in every table. A caller without a column of its own stands in for a missing holder.
    """
    if not console.is_terminal:
        _plain(console, _COLUMNS)
        for entry in entries:
            print_entry(console, entry)
        return
    rows = [(entry, entry_cells(entry)) for entry in entries]
    wanted = _wanted(_COLUMNS, [cells for _, cells in rows])
    if not wanted["holder"] and any(cells[_CALLER] for _, cells in rows):
        wanted["holder"] = len("holder")
    reasons = max((_reason_length(entry) for entry, _ in rows), default=0)
    widths = fit(wanted, console.width, _OPTIONAL, {**_LEAST_OF_ENTRY, "what": reasons})
    _print_lines(console, _COLUMNS, _COLUMNS, widths, "bold")
    for entry, cells in rows:
        _print_row(console, entry, cells, widths)


def _wanted(titles: Cells, rows: Sequence[Cells]) -> dict[str, int]:
    """Return the width that each column needs; 0 for one without texts."""
    columns = zip(titles, *rows, strict=True)
    return {title: max(map(cell_len, (title, *texts))) if any(texts) else 0 for title, *texts in columns}


def _reason_length(entry: Entry) -> int:
    said = len(entry["reason"] or entry["kind"])
    return said + len(_GUARD) if entry["kind"] == "guard-refused" else said


def _print_row(console: Console, entry: Entry, cells: Cells, widths: Mapping[str, int]) -> None:
    if "caller" not in widths and not cells[_HOLDER]:
        cells = (*cells[:_HOLDER], cells[_CALLER], *cells[_HOLDER + 1 :])
    style = _OBSERVED if entry["enforced"] is False else _STYLES.get(entry["kind"], "")
    time = widths.get("time", 0)
    for text in _lines(console, _COLUMNS, cells, widths):
        line = Text(text)
        line.stylize("dim", 0, time)
        line.stylize(style, time + GAP, time + GAP + widths.get("what", 0))
        console.print(line, soft_wrap=True)


def _print_lines(
    console: Console, titles: Cells, cells: Cells, widths: Mapping[str, int], style: str = "", *, whole: bool = False
) -> None:
    for line in _lines(console, titles, cells, widths, whole=whole):
        console.print(line, style=style, soft_wrap=True)


def _lines(
    console: Console, titles: Cells, cells: Cells, widths: Mapping[str, int], *, whole: bool = False
) -> Iterator[str]:
    """Yield the lines of a row: one, unless a text is longer than its column, and is to be ``whole`` or has room."""
    columns = []
    for title, cell in zip(titles, cells, strict=True):
        if (width := widths.get(title)) is not None:
            # The reason comes first in its column, and a time is still one without its seconds. Names differ at their
            # ends.
            if whole or console.width >= _WIDE:
                texts = fold(cell, width)
            else:
                texts = [cut(cell, width) if title in _CUT else shorten(cell, width)]
            columns.append([text + " " * (width - cell_len(text)) for text in texts])
    for parts in zip_longest(*columns):
        padded = (part or " " * len(column[0]) for part, column in zip(parts, columns, strict=True))
        yield (" " * GAP).join(padded).rstrip()


def print_columns(
    titles: Cells, rows: Iterable[Sequence[str]], optional: Sequence[str] = (), *, as_json: bool = False
) -> tuple[str, ...]:
    """Print rows of text as a table on standard output, or with tabs between columns if that is no terminal.

    With ``optional`` columns each row is one line, or a few in a wide terminal, which cuts no text. These columns go
    if the terminal is too narrow, the first first. Without them no text is cut.
    An ``id`` is whole or not there, because half of it cannot be used. Return the columns that went.
    ``as_json``: each row is an object instead.
    """
    if as_json:
        for row in rows:
            print_json({title.replace(" ", "_"): text for title, text in zip(titles, row, strict=True)})
        return ()
    console = terminal()
    harmless = [tuple(map(visible, row)) for row in rows]
    if not console.is_terminal:
        for row in (titles, *harmless):
            _plain(console, row)
        return ()
    wanted = _wanted(titles, harmless)
    widths = fit(wanted, console.width, optional, {"id": wanted.get("id", 0), "first": _MINUTES, **_LEAST_OF_ALL})
    _print_lines(console, titles, titles, widths, "bold", whole=not optional)
    for row in harmless:
        _print_lines(console, titles, row, widths, whole=not optional)
    return tuple(title for title in wanted if wanted[title] and title not in widths)


def print_entry(console: Console, entry: Entry) -> None:
    if console.is_terminal:
        _print_row(console, entry, entry_cells(entry), fit(_USUAL, console.width, _OPTIONAL, _LEAST_OF_ENTRY))
    else:
        _plain(console, entry_cells(entry))


def _plain(console: Console, columns: Cells) -> None:
    """Print without rich, which would replace tabs by spaces."""
    console.file.write("\t".join(columns) + "\n")


def _what(entry: Entry) -> str:
    said = [entry["kind"] if entry["reason"] is None else entry["reason"]]
    if entry["kind"] == "guard-refused":
        # It has no resource. A refused write has a table, and a refused claim has none.
        on = "" if entry["target"] is None else f" on {entry['target']}"
        said = [f"{_GUARD}{entry['reason']}{on}"]
    if (missing := missing_grant(entry.get("details"))) is not None:
        said.append(f"{missing.action} for {missing.on}")
    if also := also_denied(entry.get("details")):
        said.append(f"(and {also:,} more)")
    if entry["enforced"] is False:
        said.append("(observed)")
    return " ".join(said)


def _time(text: str) -> str:
    return plain_time(datetime.fromisoformat(text))


def _late(entry: Entry) -> str:
    """Return how long the fence had been above the token of the refused writer."""
    if entry["kind"] != "rejection" or None in (entry["fence_raised_at"], entry["token"]):
        return ""
    if entry["fence"] == entry["token"]:
        return ""
    late = datetime.fromisoformat(entry["at"]) - datetime.fromisoformat(entry["fence_raised_at"])
    return span(max(late, timedelta()))


DatabaseName = Annotated[
    str | None,
    typer.Option("--database", metavar="NAME", help="One of several databases. The default is all of them."),
]


def chosen(settings: "Config", name: str | None) -> "Sequence[DatabaseConfig]":
    """Return the configurations of the databases alone: all, or the one of this name.

    Raises ``ConfigurationError`` if there is no such database.
    """
    parts = settings.parts
    found = [one for one in parts if name in (None, one.name)]
    if not found:
        known = ", ".join(one.name for one in parts if one.name) or "only [postgres], which needs no --database"
        raise ConfigurationError(f"--database: there is no database {name}; there are: {known}", advice="")
    return found


def the_one(settings: "Config", name: str | None, why: str) -> "DatabaseConfig":
    """Return the configuration of one database alone. Raises ``ConfigurationError`` if it is not clear which one."""
    found = chosen(settings, name)
    if len(found) > 1:
        raise ConfigurationError(f"{why}; name the database with --database", advice="")
    return found[0]


def of_table(config: Path | None, table: str, dsn: str | None) -> "DatabaseConfig":
    """Return the configuration of the database that has a table, ``schema.table``. Without a schema: the default."""
    settings = load(config, dsn)
    if "." not in table:
        return settings.default
    schema = table.partition(".")[0]
    for one in settings.parts:
        if one.name is None or schema in one.postgres.schemas:
            return one
    raise ConfigurationError(f"No database exposes the schema {schema}.", advice="Add it to schemas of one of them.")


def each(
    settings: "Config", name: str | None, act: "Callable[[DatabaseConfig], None]", *, alone: str | None = None
) -> None:
    """Act on each of the chosen databases. One that fails does not stop the others: the exit code tells it.

    ``alone``: why it is to be one of them, if it is. Standard output has nothing else on it then.
    """
    parts = chosen(settings, name)
    if alone is not None or parts[0].name is None:
        act(the_one(settings, name, alone or ""))
        return
    code: int = 0
    for part in parts:
        typer.echo(f"{part.name}:")
        try:
            act(part)
        except typer.Exit as left:
            code = max(code, left.exit_code)
        except GatewayError as error:
            code = ExitCode.PROBLEM
            tell(error, part.name)
    if code:
        raise typer.Exit(code)
