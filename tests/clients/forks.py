"""Programs in Python that need not start anew each time: see ``forking.py``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.clients.commands import Ended, Shell
from tests.clients.conversation import Conversation, conversation


class Forks:
    """Runs what needs the libraries that it was started with."""

    def __init__(self, starting: Conversation) -> None:
        self._starting = starting

    def run(self, shell: Shell, *command: str) -> Ended:
        """Run a command to its end, whatever comes of it. The program is one in Python, by its path."""
        return self._ended(shell, command=command)

    def run_code(self, shell: Shell, code: str) -> Ended:
        """The same, as ``python -c`` does."""
        return self._ended(shell, code=code)

    def _ended(self, shell: Shell, **what: Any) -> Ended:
        out, error = shell.home / "stdout", shell.home / "stderr"
        files = {"out": str(out), "error": str(error), "directory": str(shell.home)}
        status = self._starting.ask(**what, **files, environment=shell.environment)
        return Ended(status, out.read_text(), error.read_text())


@contextmanager
def forks(home: Path, *libraries: str) -> Iterator[Forks]:
    with conversation([sys.executable, "-m", "tests.clients.forking", *libraries], Shell(home, {})) as starting:
        yield Forks(starting)
