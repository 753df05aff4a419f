"""The command ``gateway`` as a process of its own."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

COMMAND = (sys.executable, "-m", "gateway")
PATIENCE = 60.0


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
def started(*arguments: str, cwd: Path | None = None, temporary: Path | None = None) -> Iterator[Running]:
    """Start the command; killed on exit if it still runs. ``temporary`` is where it makes its temporary directories."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    with tempfile.TemporaryDirectory() as name:
        output, errors = Path(name) / "output", Path(name) / "errors"
        with output.open("wb") as standard_output, errors.open("wb") as standard_error:
            process = subprocess.Popen(
                [*COMMAND, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=standard_output,
                stderr=standard_error,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
        with process:
            try:
                yield Running(process, output, errors)
            finally:
                process.kill()


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end."""
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def alive(fragment: str) -> list[str]:
    """The command lines of living processes that contain ``fragment``."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or ())
        if fragment in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found
