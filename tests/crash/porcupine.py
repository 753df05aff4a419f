"""Porcupine, a checker of linearizability from elsewhere: it judges the histories of ``tests/crash/soak``.

``linearizability`` has the program in Go, and the models of rows, objects and locks.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from tests import ROOT

FOLDER = ROOT / "tests/crash/linearizability"
_BUILDING = 120


class NotHere(Exception):
    """Go or a module is missing. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict about one history. A register that is undecided when the time is over is no success."""

    operations: int
    open: int
    broken: tuple[str, ...]
    undecided: tuple[str, ...]
    pictures: tuple[str, ...]

    @property
    def linearizable(self) -> bool:
        return not self.broken and not self.undecided


@dataclass(frozen=True, slots=True)
class Porcupine:
    """The program."""

    path: Path

    @classmethod
    def built(cls, directory: Path) -> Porcupine:
        """Raises ``NotHere``."""
        if which("go") is None:
            raise NotHere("Porcupine needs Go: https://go.dev/doc/install, 1.26 or newer")
        path = directory / "linearizability"
        built = go("build", "-o", str(path), ".")
        if built.returncode != 0:
            raise NotHere(f"the module of Porcupine is not there: run `make go-modules`. {built.stderr[-500:]}")
        return cls(path)

    def judge(self, *histories: Path, pictures: Path | None = None, timeout: int = 60) -> list[Judged]:
        """``timeout``: seconds for each register."""
        options = ["-timeout", f"{timeout}s", *(["-pictures", str(pictures)] if pictures else [])]
        ran = subprocess.run([self.path, *options, *histories], capture_output=True, text=True, check=False)
        assert ran.returncode in (0, 1, 3), ran.stderr
        verdicts = map(json.loads, ran.stdout.splitlines())
        return [
            Judged(one["operations"], one["open"], *(tuple(one[name]) for name in ("broken", "undecided", "pictures")))
            for one in verdicts
        ]


def go(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Go in the folder of the program, without a network."""
    variables = {**os.environ, "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    return subprocess.run(
        ["go", *arguments], cwd=FOLDER, env=variables, capture_output=True, text=True, timeout=_BUILDING, check=False
    )
