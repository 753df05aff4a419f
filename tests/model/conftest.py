"""Prints how much was explored."""

from collections.abc import Callable

import pytest

_EXPLORED: list[tuple[str, int]] = []


@pytest.fixture
def report_states() -> Callable[[str, int], None]:
    return lambda name, number: _EXPLORED.append((name, number))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _EXPLORED:
        terminalreporter.section("object protocol: states explored, or steps to the broken promise")
    for name, number in _EXPLORED:
        terminalreporter.write_line(f"{number:>9,}  {name}")
