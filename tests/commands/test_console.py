"""The output of commands: harmless to a terminal, although names come from any writer, and in columns that fit."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.main import get_command

from gateway.cli import application
from gateway.commands import record_client
from gateway.commands.console import GAP, cut, fit, fold, print_columns, print_report, say, shorten
from gateway.findings import DoctorReport, ReportSection, ok
from tests.processes import in_a_terminal
from tests.tiers import first

NAME = "bucket/a\x1b]0;owned\x07\x9b2Jb\u202ec\rd"
SHOWN = "bucket/a\\x1b]0;owned\\x07\\x9b2Jb\\u202ec\\x0dd"


def test_no_name_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(DoctorReport((ReportSection("What is pending", (ok("intents", f"1, the oldest on {NAME}"),)),)))
    say(f"It is {NAME}.")
    said = capsys.readouterr()
    assert f"intents: 1, the oldest on {SHOWN}\n" in said.out
    assert said.err == f"It is {SHOWN}.\n"


STORM = (
    *(
        "going-on",
        "dataset/sales-2026-q4-europe-and-middle-east",
        "compactor-eu-central-1b-0a3f99c2 (5)",
        "token-stale",
    ),
    *("compactor-eu-central-1c-77b100de (6)", "3200", "12", "2026-11-24 13:43:45", "wrote 40 seconds ago"),
    "637a222d-ad3e-487c-a7b5-eec37407fa4c",
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_an_incident_is_one_line_of_a_narrow_terminal_and_whole_in_a_wide_one(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id can be pasted: it is whole, or the columns that went name it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    lost = print_columns(record_client.INCIDENT_COLUMNS, [STORM], record_client.OPTIONAL_COLUMNS)
    head, row, *folded = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, (head, row, *folded))) <= width
    if width >= 120:
        assert "…" not in "".join((head, row, *folded))
        ends = [head.index(title) for title in ("resource", "writer", "reason")]
        for cell, begin, end in zip(STORM[1:3], ends, ends[1:], strict=False):
            assert "".join(line[begin:end].strip() for line in (row, *folded)).replace(" ", "") == cell.replace(" ", "")
    else:
        assert not folded
    assert ("id" in lost) is (STORM[-1] not in row)
    assert ("refused" in lost) is ("3200" not in row)
    if width >= 80:
        assert "going-on" in row
        assert "3200" in row
        assert "wrote 40 sec" in row
    assert ("passed" in head) is ("12" in row)
    if width == 200:
        assert lost == ()


WITHOUT_FACTS = {
    "audit acknowledge": "it changes the record",
    "audit export": "it writes the record itself, as NDJSON or CSV",
    "audit report": "it writes a file",
    "completion": "it prints a script",
    "credentials": "it prints JSON, in the form of credential_process",
    "databases apply": "it changes the databases, and databases plan has the facts",
    "demo": "it is for people",
    "epoch": "it changes fences, and its exit code tells the outcome",
    "guard install": "it changes a table, and guard show has the facts",
    "guard pack": "it prints SQL",
    "guard remove": "it changes a table",
    "guard stamp": "it changes a table",
    "init": "it writes a file with the facts",
    "migrate": "it changes the database, and doctor has the facts",
    "naming apply": "it changes names, and naming plan has the facts",
    "open": "it opens the database, and doctor has the facts",
    "reload": "it changes gateways, and config diff has the facts",
    "run": "its output is that of the command",
    "serve": "its output is the log, which is JSON",
    "sweep": "it removes leftovers, and doctor has the facts",
}
"""The commands without ``--json``, and the reasons."""


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each command that is not hidden with its words; the groups, too."""
    group = get_command(application) if group is None else group
    yield path, group
    for name, inner in getattr(group, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, (*path, name))


def test_each_command_that_prints_facts_takes_json() -> None:
    without = {
        " ".join(path)
        for path, command in commands()
        if not hasattr(command, "commands") and not any("--json" in one.opts for one in command.params)
    }
    assert without == set(WITHOUT_FACTS)


SHOWN_BY_COMMANDS = f"""
import contextlib
from gateway import cli
from gateway.commands import console
from gateway.findings import DoctorReport, ReportSection, problem
for words in {[list(path) for path, _ in commands()]!r}:
    with contextlib.suppress(SystemExit):
        cli.main([*words, "--help"])
long = "a sentence with many words " * 8
with contextlib.suppress(cli.typer.Exit):
    console.print_report(DoctorReport((ReportSection("database", (problem("role", long, long),)),)))
console.print_facts({{}}, [long], as_json=False)
console.say(long)
console.print_columns(("caller", "kind", "key", "last used"), [("billing " * 9, "api key", "0" * 64, "never")])
"""


@pytest.mark.parametrize("no_color", first(["1", ""]))
def test_help_and_output_fit_80_columns_and_have_no_colour_if_that_is_wished(no_color: str) -> None:
    shown = in_a_terminal(SHOWN_BY_COMMANDS, **({"NO_COLOR": no_color} if no_color else {}))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [line for line in plain.splitlines() if cell_len(line) > 80] == []
    assert plain.count("Usage: ") == len(list(commands()))
    assert plain.count("a sentence with many words") >= 24
    colours = re.findall(r"\x1b\[(?:[0-9]+;)*(?:3[0-8]|9[0-7])[0-9;]*m", shown)
    assert bool(colours) is not bool(no_color)


# Columns of a terminal: they fit, and what matters most is kept longest.


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("compactor-host-17", 17, "compactor-host-17"),
        ("compactor-host-17", 11, "compa…st-17"),
        ("写入者写入者", 12, "写入者写入者"),
        ("写入者写入者", 7, "写…者"),
        ("abc", 2, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_long_name_loses_its_middle(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("wrote 40 seconds ago", 20, ["wrote 40 seconds ago"]),
        ("wrote 40 seconds ago", 16, ["wrote 40 seconds", "ago"]),
        ("wrote 40 seconds ago", 12, ["wrote 40", "seconds ago"]),
        ("compactor-host-17 (5)", 10, ["compactor-", "host-17", "(5)"]),
        ("写入者写入", 5, ["写入", "者写", "入"]),
        ("写", 1, ["写", ""]),
        ("", 9, [""]),
    ],
)
def test_a_text_is_folded_between_words(text: str, width: int, lines: list[str]) -> None:
    assert fold(text, width) == lines


@given(st.text(), st.integers(2, 60))
def test_a_folded_text_is_whole_and_fits(text: str, width: int) -> None:
    lines = fold(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert max(map(cell_len, lines)) <= width


@given(st.text(), st.integers(0, 60))
def test_a_shortened_text_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width
    assert cell_len(cut(text, width)) <= max(width, 1)


@given(st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 300), min_size=1), st.integers(30, 250))
def test_columns_fit_and_those_that_are_needed_stay(wanted: dict[str, int], room: int) -> None:
    widths = fit(wanted, room, [name for name in "gfedc" if name in wanted], {"a": 19})
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= room
    assert {"a", "b"} & wanted.keys() <= widths.keys()
    assert all(1 <= width <= wanted[name] for name, width in widths.items())


def test_nothing_shrinks_that_fits() -> None:
    wanted = {"a": 19, "b": 20, "c": 0, "d": 37}
    assert fit(wanted, 80, ["d"], {}) == {"a": 19, "b": 20, "d": 37}
    assert fit(wanted, 79, ["d"], {}) == {"a": 19, "b": 20, "d": 36}
    assert fit(wanted, 40, ["d"], {"a": 19, "b": 19}) == {"a": 19, "b": 19}
