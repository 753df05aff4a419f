"""Prints how much was explored."""

from collections.abc import Callable

import pytest

_EXPLORED = "explored: "


@pytest.fixture
def report_states(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """As a property of the test's report, which arrives wherever the summary is printed."""
    return lambda name, number: record_property(f"{_EXPLORED}{name}", number)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    explored = [
        (name.removeprefix(_EXPLORED), number)
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, number in report.user_properties
        if name.startswith(_EXPLORED)
    ]
    if explored:
        terminalreporter.section("states explored, or steps to the broken promise")
    for name, number in explored:
        terminalreporter.write_line(f"{number:>9,}  {name}")
