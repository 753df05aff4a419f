"""The output of commands is harmless to a terminal, although names in it come from any writer."""

import re

import pytest

from gateway.commands import incidents
from gateway.commands.console import print_columns, print_report, say
from gateway.doctor.findings import DoctorReport, ReportSection, ok

NAME = "bucket/a\x1b]0;owned\x07\x9b2Jb\u202ec\rd"
SHOWN = "bucket/a\\x1b]0;owned\\x07\\x9b2Jb\\u202ec\\x0dd"


def test_no_name_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(DoctorReport((ReportSection("What is pending", (ok("intents", f"1, the oldest on {NAME}"),)),)))
    say(f"It is {NAME}.")
    said = capsys.readouterr()
    assert f"intents: 1, the oldest on {SHOWN}\n" in said.out
    assert said.err == f"It is {SHOWN}.\n"


STORM = (
    *(
        "going-on",
        "dataset/sales-2026-q4-europe-and-middle-east",
        "compactor-eu-central-1b-0a3f99c2 (5)",
        "token-stale",
    ),
    *("compactor-eu-central-1c-77b100de (6)", "3200", "2026-11-24 13:43:45", "2026-11-24 13:43:58"),
    "637a222d-ad3e-487c-a7b5-eec37407fa4c",
)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_an_incident_is_one_line_of_a_terminal(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id can be pasted: it is whole, or the columns that went name it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    lost = print_columns(incidents.COLUMNS, [STORM], incidents.OPTIONAL)
    head, row = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(head), len(row)) <= width
    assert ("id" in lost) is (STORM[-1] not in row)
    assert ("refusals" in lost) is ("3200" not in row)
    if width >= 80:
        assert "going-on" in row
        assert "3200" in row
        assert "2026-11-24 13:43" in row
    if width == 200:
        assert lost == ()
