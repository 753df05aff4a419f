"""The terminal and the API have the same filters of the record."""

import re
from typing import Annotated

import typer
from typer.testing import CliRunner

from gateway.api.record_views import EventFilters
from gateway.commands.record_client import WHAT, WHEN, Filters, takes_filters
from gateway.fencing.decision import Decision
from gateway.fencing.record import EntryReason
from tests import ROOT

DATABASE = ROOT / "gateway/db"


def test_each_reason_that_the_database_writes_can_be_asked_for() -> None:
    sql = "".join(path.read_text() for folder in ("schema", "queries") for path in (DATABASE / folder).glob("*.sql"))
    (listed,) = re.findall(r"FUNCTION fencing\.reasons_v1\(\).*?ARRAY\[(.*?)\]", sql, re.DOTALL)
    bypasses = set(re.findall(r"'((?:row|object|bucket|guard)-(?:changed|appeared|vanished|disabled|removed))'", sql))
    assert len(bypasses) == 9
    assert {*re.findall(r"'([a-z-]+)'", listed), *bypasses, *Decision} - {*EntryReason} == {"raised", "held"}


def test_there_is_an_option_for_each_filter_of_the_api() -> None:
    assert {*WHAT, *WHEN} == {*EventFilters.model_fields}


def test_a_command_gets_what_was_said_and_keeps_its_own_options() -> None:
    application = typer.Typer()
    got: list[tuple[Filters, int]] = []

    @application.command()
    @takes_filters(WHAT, WHEN)
    def look(*, filters: Filters, most: Annotated[int, typer.Option()] = 50) -> None:
        """Look into it."""
        got.append((filters, most))

    nothing = dict.fromkeys((*WHAT, *WHEN))
    said = ("--kind", "raised", "--kind", "epoch", "--observed", "--since", "2026-03-01T04:05", "--most", "3")
    assert CliRunner().invoke(application, []).exit_code == 0
    assert CliRunner().invoke(application, said).exit_code == 0
    assert got == [
        (nothing, 50),
        (nothing | {"kind": ["raised", "epoch"], "enforced": False, "since": "2026-03-01T04:05:00+00:00"}, 3),
    ]
    assert "Look into it." in CliRunner().invoke(application, ["--help"]).output


def test_one_that_follows_the_record_has_none_about_time() -> None:
    application = typer.Typer()

    @application.command()
    @takes_filters(WHAT)
    def follow(*, filters: Filters) -> None:
        assert {*filters} == {*WHAT}

    assert CliRunner().invoke(application, []).exit_code == 0
    assert CliRunner().invoke(application, ["--since", "2026-03-01"]).exit_code == 2
