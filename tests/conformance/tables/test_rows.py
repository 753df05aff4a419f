"""PostgREST's behaviour with a table, as rows of data. The gateway does the same, or differs for a stated reason.

``rows/*.toml`` hold the rows, and ``schema.sql`` and ``data.sql`` the tables that they need. ``differences.txt`` lists
the rows that the gateway answers differently on purpose. ``replay.py`` plays the rows against any address.
"""

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.differences import differences_beside
from tests.conformance.tables import replay
from tests.conformance.tables.asking import Asker, fencing_headers, play
from tests.conformance.tables.conftest import configuration, served
from tests.conformance.tables.row import ROWS, Row
from tests.conformance.tables.stage import Stage
from tests.postgres import fresh

pytestmark = pytest.mark.xdist_group("tables")

DIFFERENCES = {row: difference for (_, row), difference in differences_beside(__file__).items()}


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


def test_every_row_has_a_reference_and_there_are_as_many_as_there_should_be() -> None:
    assert all(row.reference.endswith((".hs", ".rst")) for row in ROWS.values())
    writes = sum(row.writes and not row.target.startswith("/rpc/") for row in ROWS.values())
    assert (writes >= 120, len(ROWS) - writes >= 150) == (True, True)


# Behaviours every server of the dialect has in common, reads and writes.
PLAYED = ("deletes", "filters")
FOUND = frozenset(name for name in DIFFERENCES if name.partition(":")[0] in PLAYED)


def played(row: Row) -> bool:
    return row.name.partition(":")[0] in PLAYED


def test_rows_are_played_without_fencing_headers(postgres_server: EmbeddedPostgres) -> None:
    with fresh(postgres_server) as dsn, served(configuration(dsn, "observe")) as address:
        found = dict(replay.replay(address, dsn, played))
    assert len(found) > 100
    assert {name for name, differences in found.items() if differences} == FOUND


def test_the_command_says_how_many_are_otherwise(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the server refuses every write for want of a token, the replay lists each write with the actual answer."""
    wanted = {name: row for name, row in ROWS.items() if name.startswith(("upserts: PUT", "selects"))}
    monkeypatch.setattr(replay, "ROWS", wanted)
    with fresh(postgres_server) as dsn, served(configuration(dsn)) as address:
        monkeypatch.setenv("POSTGREST_URL", address)
        monkeypatch.setenv("POSTGREST_DSN", dsn)
        assert replay.main() == 1
    printed = capsys.readouterr().out
    assert "upserts: PUT makes a row  (Query/UpsertSpec.hs)\n    status: 201 → 428 token-required\n" in printed
    assert "selects: no select is everything" not in printed
    assert printed.splitlines()[-1].startswith(f"{len(wanted)} rows, ")
