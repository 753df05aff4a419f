"""The replayer: against a gateway that takes writes without a token it finds what there is to be found, and no more."""

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.conformance.tables import replay
from tests.conformance.tables.differences import DIFFERENCES
from tests.conformance.tables.row import ROWS, Row
from tests.conformance.tables.serving import configuration, database, served

pytestmark = pytest.mark.xdist_group("tables")

# Behaviours every server of the dialect has in common, reads and writes.
PLAYED = ("deletes", "filters")
FOUND = frozenset(name for name in DIFFERENCES if name.partition(":")[0] in PLAYED)


def played(row: Row) -> bool:
    return row.name.partition(":")[0] in PLAYED


def test_rows_are_played_without_fencing_headers(postgres_server: EmbeddedPostgres) -> None:
    with database(postgres_server) as dsn, served(configuration(dsn, "observe")) as address:
        found = dict(replay.replay(address, dsn, played))
    assert len(found) > 100
    assert {name for name, differences in found.items() if differences} == FOUND


def test_the_command_says_how_many_are_otherwise(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the server refuses every write for want of a token, the replay lists each write with the actual answer."""
    wanted = {name: row for name, row in ROWS.items() if name.startswith(("upserts: PUT", "selects"))}
    monkeypatch.setattr(replay, "ROWS", wanted)
    with database(postgres_server) as dsn, served(configuration(dsn)) as address:
        monkeypatch.setenv("POSTGREST_URL", address)
        monkeypatch.setenv("POSTGREST_DSN", dsn)
        assert replay.main() == 1
    printed = capsys.readouterr().out
    assert "upserts: PUT makes a row  (Query/UpsertSpec.hs)\n    status: 201 → 428 token-required\n" in printed
    assert "selects: no select is everything" not in printed
    assert printed.splitlines()[-1].startswith(f"{len(wanted)} rows, ")


def test_the_command_wants_to_know_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("POSTGREST_URL", raising=False)
    assert replay.main() == 2
    assert "POSTGREST_URL is not set." in capsys.readouterr().err
