"""The gateway answers each row as PostgREST does, or as ``differences.txt`` says it does, and why."""

import pytest

from tests.conformance.tables.asking import Asker
from tests.conformance.tables.differences import DIFFERENCES
from tests.conformance.tables.play import fencing_headers, play
from tests.conformance.tables.row import ROWS
from tests.conformance.tables.stage import Stage

pytestmark = pytest.mark.xdist_group("tables")


@pytest.mark.parametrize("name", ROWS)
def test_the_gateway_speaks_the_dialect(name: str, stage: Stage, asker: Asker) -> None:
    row = ROWS[name]
    found = play(row, stage, asker, fencing_headers(row))
    listed = DIFFERENCES.get(name)
    if listed is None:
        assert not found, "\n" + "\n".join([row.reference, *found])
    else:
        assert found, f"the same by now, so it is listed for no reason: {listed.reason}"
        assert found[0].startswith(listed.seen), "\n".join([f"not what is listed: {listed.seen}", *found])


def test_each_difference_is_about_a_row_and_has_its_reason() -> None:
    assert set(DIFFERENCES) <= set(ROWS)
    assert all(difference.seen and difference.reason for difference in DIFFERENCES.values())


def test_there_are_as_many_rows_as_there_should_be() -> None:
    writes = sum(row.writes and not row.target.startswith("/rpc/") for row in ROWS.values())
    assert (writes >= 120, len(ROWS) - writes >= 150) == (True, True)


def test_every_row_has_a_reference() -> None:
    assert all(row.reference.endswith((".hs", ".rst")) for row in ROWS.values())
