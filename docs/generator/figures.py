"""The figures that the bench has measured: docs/reference/figures.md."""

from collections.abc import Iterator
from itertools import groupby

from bench import figures
from bench.measure import HEADER
from docs.generator import page


def make() -> str:
    return page(
        "Figures",
        "`python -m bench` measures these rows again. [Performance](../performance.md) describes machine and peers.",
        "The processor time is that of one request: of the program, and of PostgreSQL where a second figure stands.",
        *_sections(),
    )


def _sections() -> Iterator[str]:
    for subject, found in groupby(sorted(figures.read(), key=lambda figure: figure.subject), lambda one: one.subject):
        rows = list(found)
        yield f"## {subject.capitalize()}"
        days = sorted({figure.day for figure in rows})
        yield f"Measured on {' and '.join(days)}: {rows[-1].machine}."
        yield "\n".join([HEADER, *(figure.row.line() for figure in rows)])
