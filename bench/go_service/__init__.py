"""The peer that a strong team would write in place of the gateway: a service in Go, built here from ``main.go``."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.services import answers
from tests.processes import free_port


@dataclass(frozen=True, slots=True)
class GoService:
    """The service, up and running."""

    origin: str
    pid: int


@contextmanager
def running(dsn: str) -> Iterator[GoService]:
    """Build the service, and start it in front of the same database."""
    if shutil.which("go") is None:
        raise SystemExit("this row needs go 1.25 or newer; on Debian: apt-get install golang")
    with TemporaryDirectory(prefix="bench") as directory:
        program, port = Path(directory) / "service", free_port()
        subprocess.run(["go", "build", "-o", program, "."], cwd=Path(__file__).parent, check=True)
        with subprocess.Popen([program, dsn, str(port)]) as process:
            try:
                origin = f"http://127.0.0.1:{port}"
                if not answers(f"{origin}/ready"):
                    raise SystemExit("the service in Go did not get ready")
                yield GoService(origin, process.pid)
            finally:
                process.terminate()
