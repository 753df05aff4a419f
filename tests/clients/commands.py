"""Programs that tests run, in an environment of their own: none of the machine's configuration or credentials."""

import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import IO, Any

import pytest

from tests import ROOT
from tests.clients.gateway import REGION, Login
from tests.pausing import pause, resume

PATIENCE = 120


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    error: str


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands, with ``home`` as home and working directory and ``variables`` in the environment."""

    home: Path
    variables: dict[str, str]

    @property
    def path(self) -> str:
        """The search path of programs: our own Python's folder first."""
        return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    @property
    def environment(self) -> dict[str, str]:
        """All that a program sees of it."""
        return {
            "PATH": self.path,
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.home),
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_PAGER": "",
            **self.variables,
        }

    def run(self, *command: str) -> Ended:
        """Run a command to its end, whatever comes of it."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
            cwd=self.home, env=self.environment,
        )  # fmt: skip
        return Ended(done.returncode, done.stdout, done.stderr)


def environment(login: Login) -> dict[str, str]:
    """The login in the variables that the AWS tools and SDKs read."""
    return {
        "AWS_ACCESS_KEY_ID": login.access_key_id,
        "AWS_SECRET_ACCESS_KEY": login.secret_access_key,
        "AWS_SESSION_TOKEN": login.session_token,
    }


def program(name: str, installation: str) -> str:
    """The path of a program; where it is missing the test is skipped, saying how to install it."""
    found = which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: {installation}")
    return found


def javascript() -> tuple[str, Path]:
    """Node, and the directory of the programs with their packages; where either is missing the test is skipped."""
    node, directory = (
        program("node", "install Node 20 or newer, then run `make clients`"),
        ROOT / "tests/clients/javascript",
    )
    if not (directory / "node_modules").is_dir():
        pytest.skip("the packages of the JavaScript client are not installed: run `make clients`")
    return node, directory


# A program that is asked by a line of JSON, and answers by one: started once, asked many times.


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
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=shell.home,
            env=shell.environment,
        )  # fmt: skip
        with process:
            try:
                yield Conversation(process, errors)
            finally:
                process.kill()


# Programs in Python that need not start anew each time: see ``forking.py``.


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
