"""A program that is asked by a line of JSON, and answers by one: started once, asked many times."""

import json
import selectors
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from tests.clients.commands import PATIENCE, Shell
from tests.pausing import pause, resume


class Conversation:
    """One process, and what it has said to its standard error."""

    def __init__(self, process: "subprocess.Popen[bytes]", errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors

    def ask(self, **question: Any) -> Any:
        """Its answer. Fails with its own words where the program ends or takes too long."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"no answer to {question}: {self._said()}"
        answer = self._process.stdout.readline()
        assert answer, self._said()
        return json.loads(answer)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the process, as a suspended machine does."""
        pause(self._process.pid)
        try:
            yield
        finally:
            resume(self._process.pid)

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


@contextmanager
def conversation(command: Sequence[str], shell: Shell) -> Iterator[Conversation]:
    """Start the program; killed on exit."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=shell.home,
            env=shell.environment,
        )
        with process:
            try:
                yield Conversation(process, errors)
            finally:
                process.kill()
