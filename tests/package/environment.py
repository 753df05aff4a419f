"""An environment that has a wheel, and only the packages that the wheel's metadata asks for. It needs no network.

The packages come from the environment of the tests. Packages that the metadata does not lead to cannot be imported.
"""

import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NAME = "fencing-gateway"


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with its own Python, in which nothing of this process's environment can be imported."""

    folder: Path

    def run(self, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the environment to its end, away from any checkout."""
        program, *arguments = command
        return subprocess.run(
            [self.folder / "bin" / program, *arguments],
            cwd=self.folder,
            env={"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def metadata(wheel: zipfile.ZipFile) -> Message:
    """Return the core metadata of a wheel."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return HeaderParser().parsestr(wheel.read(name).decode())


def needed(wheel: zipfile.ZipFile, *extras: str) -> set[str]:
    """Return the canonical names of all packages that an installation of the wheel with these extras brings."""
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [(NAME, extra) for extra in ("", *extras)]
    while waiting:
        if (step := waiting.pop()) in seen:
            continue
        seen.add(step)
        name, extra = step
        listed = metadata(wheel).get_all("Requires-Dist") if name == NAME else distribution(name).requires
        for wanted in _applying(listed or (), extra):
            needs = canonicalize_name(wanted.name)
            found.add(needs)
            waiting += [(needs, more) for more in ("", *wanted.extras)]
    return found - {NAME}


def _applying(lines: Iterable[str], extra: str) -> Iterator[Requirement]:
    for line in lines:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            yield wanted


def make(folder: Path, wheel: zipfile.ZipFile) -> Environment:
    """Make an environment with the wheel, and the packages that it needs without an extra."""
    venv.create(folder, with_pip=False, symlinks=True)
    assert wheel.filename is not None
    options = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    python = folder / "bin/python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel.filename], check=True)
    (target,) = folder.glob("lib/python*/site-packages")
    for name in sorted(needed(wheel)):
        here = distribution(name)
        tops = {file.parts[0] for file in here.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            (target / top).symlink_to(str(here.locate_file(top)))
    return Environment(folder)
