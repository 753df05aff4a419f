"""Plays one row: prepares the tables, sends the request, says what is not as expected."""

from collections.abc import Mapping

from tests.conformance.tables.asking import Asker, differences
from tests.conformance.tables.row import Row
from tests.conformance.tables.stage import Stage

TOKEN = "7"


def play(row: Row, stage: Stage, asker: Asker, headers: Mapping[str, str] | None = None) -> list[str]:
    """The differences, in words; none where all is as expected. ``headers`` are sent beside those of the row."""
    stage.prepare(row.setup)
    answer = asker.ask(row, headers)
    return [*differences(row.expected, answer), *stage.differences(row.after)]


def fencing_headers(row: Row) -> dict[str, str]:
    """Return the headers that a row's request needs at the gateway: a token on a write, and the row's own ones."""
    named = {**({"Fencing-Token": TOKEN} if row.writes else {}), **row.fence}
    return {name: value for name, value in named.items() if value is not None}
