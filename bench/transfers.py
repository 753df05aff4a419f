"""Large objects, one at a time, by curl and presigned URLs: what a proxy costs where only bytes count."""

import subprocess
import time
from pathlib import Path

from bench.measure import MEBIBYTE

GIBIBYTE = 1024 * MEBIBYTE


def upload(url: str, file: Path) -> float:
    """Seconds that a PUT of the file takes."""
    return _timed(["--upload-file", str(file), "--header", "Expect:", url])


def download(url: str) -> float:
    """Seconds that a GET takes."""
    return _timed(["--output", "/dev/null", url])


def _timed(arguments: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(["curl", "--silent", "--show-error", "--fail", *arguments], check=True)
    return time.perf_counter() - start


def large_file(directory: Path, size: int) -> Path:
    """Write a file of random bytes, in memory if the machine has room for files there, and return its path."""
    path = (Path("/dev/shm") if Path("/dev/shm").is_dir() else directory) / f"bench-{size}"
    with Path("/dev/urandom").open("rb") as source, path.open("wb") as target:
        for _ in range(size // MEBIBYTE):
            target.write(source.read(MEBIBYTE))
    return path
