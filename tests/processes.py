"""The command ``gateway`` as a process of its own, and without one."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from random import shuffle
from resource import RLIMIT_NOFILE, setrlimit

import psutil

from gateway import cli
from tests import ROOT

COMMAND = (sys.executable, "-m", "gateway")
PATIENCE = 120.0
_LIMITED = (
    sys.executable,
    "-c",
    """import json, sys
from gateway.cli import main
from gateway.config import Config
from gateway.config.sections import Limits
limits = Limits(**json.loads(sys.argv.pop(1)))
Config.__private_attributes__["_limits"].default_factory = lambda: limits
main()""",
)
"""The command, with limits that its first argument has in JSON."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process in a group of its own, its output in files."""

    process: "subprocess.Popen[bytes]"
    output: Path
    errors: Path

    def wait_for(self, seen: Callable[[], bool]) -> None:
        """Wait until ``seen``, and fail with the output where the process ends or takes too long."""
        give_up = time.monotonic() + PATIENCE
        while not seen():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < give_up, self.said()
            time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGTERM, *, group: bool = False) -> int:
        """Send the signal, to the whole group as a terminal does or to the process alone; the exit code."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        return self.process.wait(PATIENCE)

    def said(self) -> str:
        return self.output.read_text() + self.errors.read_text()


@contextmanager
def started(
    *arguments: str,
    cwd: Path | None = None,
    temporary: Path | None = None,
    more: Mapping[str, str] | None = None,
    files: tuple[int, int] | None = None,
    limits: Mapping[str, float] | None = None,
) -> Iterator[Running]:
    """Start the command; killed on exit if it still runs. ``temporary`` is where it makes its temporary directories.

    ``more``: what its environment has beside ours. ``files``: the soft and the hard limit of its open files.
    ``limits``: those that no file sets and that differ.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    with tempfile.TemporaryDirectory() as name:
        output, errors = Path(name) / "output", Path(name) / "errors"
        with output.open("wb") as standard_output, errors.open("wb") as standard_error:
            process = subprocess.Popen(
                [*(COMMAND if limits is None else (*_LIMITED, json.dumps(limits))), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=standard_output,
                stderr=standard_error,
                cwd=cwd,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(setrlimit, RLIMIT_NOFILE, files) if files else None,  # noqa: PLW1509 - no lock is taken
            )
        with process:
            try:
                yield Running(process, output, errors)
            finally:
                process.kill()


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def called(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """The same without a process of its own, which takes longer to start than most commands take.

    From a thread where a loop is running: commands have loops of their own.
    """
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            cli.main(arguments)
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


_WORKERS = 8


def _shuffled() -> Iterator[int]:
    """Ports outside the kernel's own range for clients, and apart from other workers' ports."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    ports = list(range(10_000 + worker % _WORKERS, 30_000, _WORKERS))
    shuffle(ports)
    return cycle(ports)


_PORTS = _shuffled()


def free_port() -> int:
    """Return a port for a server that needs a fixed one, also after a restart: no other process gets it meanwhile."""
    while True:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def closed_port() -> Iterator[int]:
    """Return a port without a listener, for as long as this lasts: it is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def alive(fragment: str) -> list[str]:
    """The command lines of living processes that contain ``fragment``."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if fragment in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def in_a_terminal(code: str, **environment: str) -> str:
    """Run Python in a terminal of 80 columns. Return all that it shows."""
    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=other, stdout=other, stderr=other,
        env={**inherited, "TERM": "xterm-256color", **environment},
    ) as shown:  # fmt: skip
        os.close(other)
        pieces = []
        with suppress(OSError):  # Linux reports an error at the end of a terminal
            while piece := os.read(own, 65536):
                pieces.append(piece)
        os.close(own)
        assert shown.wait(PATIENCE) == 0, b"".join(pieces)
    return b"".join(pieces).decode()


def called_in_a_terminal(*arguments: str) -> list[str]:
    """Return the lines that the command shows in a terminal of 80 columns, without colours, whatever its exit code."""
    code = f"import contextlib; from gateway import cli\nwith contextlib.suppress(SystemExit): cli.main({arguments!r})"
    return re.sub(r"\x1b\[[0-9;]*m", "", in_a_terminal(code, NO_COLOR="1")).splitlines()
