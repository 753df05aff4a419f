"""The commands of a guide, run in order in one shell, and compared with the output that the page shows.

``<!-- run: NAME -->`` stands before a block of commands that succeeds. ``<!-- refused: NAME -->`` stands before one
that fails. A block ``text`` behind it shows lines of its output, in order. There ``…`` is any text, and a space may be
a tab.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from tests import ROOT
from tests.processes import PATIENCE

_BLOCK = re.compile(
    r"^ *<!-- (run|refused): (\S+) -->\n *```sh\n(.*?)^ *```\n(?:\n *```text\n(.*?)^ *```\n)?", re.MULTILINE | re.DOTALL
)
_END = "\036"


@dataclass(frozen=True, slots=True)
class Block:
    name: str
    refused: bool
    commands: str
    shown: tuple[str, ...]


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page. Each block of commands has to have a mark."""
    text = page.read_text()
    found = [
        Block(name, kind == "refused", dedent(commands), tuple(dedent(shown).splitlines()))
        for kind, name, commands, shown in _BLOCK.findall(text)
    ]
    assert len(found) == len(re.findall(r"^ *```sh$", text, re.MULTILINE)), "a block of commands that is not run"
    assert found
    return found


def play(page: Path, directory: Path, variables: Mapping[str, str], port: int) -> None:
    """Run the blocks of a page in ``directory``. ``port`` stands for 8080. All processes that it starts are ended."""
    listed = blocks(page)
    (directory / "examples").symlink_to(ROOT / "examples")
    script = "".join(f"{block.commands}printf '{_END}%s{_END}' $?\n" for block in listed).replace("8080", str(port))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        **variables,
        "PATH": f"{Path(sys.executable).parent}:{variables.get('PATH', os.environ['PATH'])}",
    }
    said = directory / "said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-u", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
    try:
        # A busy machine takes a second for each command, and a page has thirty.
        process.wait(5 * PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the page does not end:\n{said.read_text()}")
    finally:
        # The gateway of the page is in the group of the shell; what it served is over.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output_of_all = said.read_text()
    *parts, _ = output_of_all.split(_END)
    assert len(parts) == 2 * len(listed), output_of_all
    for block, answer, status in zip(listed, parts[::2], parts[1::2], strict=True):
        assert (status != "0") is block.refused, f"{block.name}: {status}\n{answer}"
        assert re.search(_pattern(block.shown), answer, re.MULTILINE | re.DOTALL), f"{block.name} said\n{answer}"


def _pattern(lines: tuple[str, ...]) -> str:
    """Return an expression for these lines in this order, with others between them."""
    return ".*".join(rf"^{_line(line)}$" for line in lines)


def _line(line: str) -> str:
    escaped = re.escape(line.strip()).replace(re.escape("…"), r"[^\n]*")
    return r"[ \t]*" + re.sub(r"(?:\\ )+", r"[ \\t]*", escaped)
