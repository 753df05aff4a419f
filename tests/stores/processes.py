"""Programs that run in the foreground and are killed in the end: what a test's store holds is never needed again."""

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

PATIENCE = 60.0


@contextmanager
def daemon(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program with its output in ``log``; SIGKILL on exit."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait, and fail with the program's own words where it ends or takes too long."""
    give_up = time.monotonic() + PATIENCE
    while not ready():
        assert process.poll() is None, f"{process.args!r} ended:\n{log.read_text()}"
        assert time.monotonic() < give_up, f"{process.args!r} is not ready:\n{log.read_text()}"
        time.sleep(0.03)


def answers(endpoint: str, *, well: bool = False) -> bool:
    """Whether an HTTP server says anything at all. ``well``: whether it says that it is well."""
    try:
        with urlopen(endpoint, timeout=5):
            return True
    except HTTPError:
        return not well
    except (URLError, OSError):
        return False
