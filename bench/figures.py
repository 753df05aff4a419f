"""The last figures, in ``figures.json``. docs/reference/figures.md shows them, and a new run is compared with them."""

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bench.measure import Row

FILE = Path(__file__).with_name("figures.json")
FALL = 0.1
"""The part of its ratio that a row may lose between two runs without being named."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A row, the subject that it belongs to, and the day and the machine on which it was measured."""

    subject: str
    day: str
    machine: str
    row: Row


_FIGURES = TypeAdapter(list[Figure])


def read() -> list[Figure]:
    """Return the newest figure of each row that was ever measured."""
    return _FIGURES.validate_json(FILE.read_bytes())


def committed() -> list[Figure]:
    """Return the figures of the last commit. A run may have written others since."""
    command = ["git", "show", f"HEAD:./{FILE.name}"]
    done = subprocess.run(command, cwd=FILE.parent, check=False, capture_output=True)
    return _FIGURES.validate_json(done.stdout) if done.returncode == 0 else []


def keep(measured: Iterable[Figure]) -> None:
    """Write the file: each new row in place of the older one of its work and its peer."""
    figures = {figure.row.key: figure for figure in (*read(), *measured)}
    lines = (_FIGURES.dump_json([figure])[1:-1] for figure in figures.values())
    FILE.write_bytes(b"[\n%b\n]\n" % b",\n".join(lines))


def falls(before: Iterable[Figure], rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line in Markdown for each row whose ratio to its peer has fallen by a tenth or more."""
    ratios = {figure.row.key: figure.row.ratio for figure in before}
    for row in rows:
        then = ratios.get(row.key)
        if then is not None and row.ratio <= then * (1 - FALL):
            yield f"| {row.work} | {row.against} | {then:.2f} | {row.ratio:.2f} |"
