"""The guides name commands, options and error codes that exist, also where no test runs them."""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from gateway import cli, errors
from tests import ROOT

PAGES = sorted(chain(ROOT.glob("docs/guides/*.md"), ROOT.glob("docs/ideas/*.md")))
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_CALL = re.compile(r"(?<![\w@-])gateway ([a-z][^|&;#\n]*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_ANSWER = re.compile(r"^\| (\d{3}) `([a-z-]+)`", re.MULTILINE)


def calls(text: str) -> Iterator[list[str]]:
    """Return the words of each call of the command in a page, up to the command that it runs itself."""
    blocks = [block.replace("\\\n", " ") for kind, block in _FENCED.findall(text) if kind != "text"]
    for piece in chain(blocks, _INLINE.findall(_FENCED.sub("", text))):
        for call in _CALL.findall(piece):
            yield call.partition(" -- ")[0].split()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_options(page: Path) -> None:
    for words in calls(page.read_text()):
        command: Any = get_command(cli.application)
        rest = list(words)
        while hasattr(command, "commands") and rest:
            assert rest[0].rstrip(",") in command.commands, f"there is no command: gateway {' '.join(words)}"
            command = command.commands[rest.pop(0).rstrip(",")]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        assert set(_OPTION.findall(" ".join(rest))) <= known, f"unknown options: gateway {' '.join(words)}"


def test_answers_of_the_page_for_troubleshooting() -> None:
    known = {
        (str(error.status), error.code)
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.GatewayError)
    }
    named = set(_ANSWER.findall((ROOT / "docs/guides/troubleshooting.md").read_text()))
    assert len(named) > 5
    assert named <= known
