"""The output of commands is harmless to a terminal, although names in it come from any writer."""

import pytest

from gateway.commands.console import print_report, say
from gateway.doctor.findings import DoctorReport, ReportSection, ok

NAME = "bucket/a\x1b]0;owned\x07\x9b2Jb\u202ec\rd"
SHOWN = "bucket/a\\x1b]0;owned\\x07\\x9b2Jb\\u202ec\\x0dd"


def test_no_name_acts_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(DoctorReport((ReportSection("What is pending", (ok("intents", f"1, the oldest on {NAME}"),)),)))
    say(f"It is {NAME}.")
    said = capsys.readouterr()
    assert f"intents: 1, the oldest on {SHOWN}\n" in said.out
    assert said.err == f"It is {SHOWN}.\n"
