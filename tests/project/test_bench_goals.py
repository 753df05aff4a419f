"""A goal of a benchmark is met or missed by what was measured, and says so."""

import pytest

from bench.measure import Cost, Goal, Load, Measured, Row
from bench.usage import Usage

OWN = Load(800.0, 2.0, 5.0, requests=100, used=Usage(0.0004), database=Usage(0.0002))
PEER = Load(1000.0, 1.5, 4.0, requests=100, used=Usage(0.0001), database=Usage(0.0003))


def row(*goals: Goal, own: Load = OWN) -> Row:
    return Row("a work", "a peer", own, PEER, Cost(cores=0.5), goals=goals)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (Measured.RATIO, 0.8),
        (Measured.ADDED, 0.5),
        (Measured.RATE, 800.0),
        (Measured.MEDIAN, 2.0),
        (Measured.CORES, 0.5),
        (Measured.PROCESSOR, 1.5),
    ],
)
def test_a_goal_is_a_bound_of_what_was_measured(of: Measured, value: float) -> None:
    assert row().value(of) == pytest.approx(value)
    at_least = of in (Measured.RATIO, Measured.RATE)
    for bound, below in ((value * 1.1, True), (value * 0.9, False)):
        said = "**missed**" if at_least is below else "met"
        (line,) = row(Goal(bound, of)).goal_lines()
        assert line.endswith(f"| {said} |"), line


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    (line,) = row(Goal(1.5, Measured.PROCESSOR), own=Load(800.0, 2.0, 5.0)).goal_lines()
    assert line.endswith("| not measured |")


def test_the_table_shows_the_first_goal() -> None:
    assert "| 0.80 (≥ 0.7) |" in row(Goal(0.7), Goal(1.5, Measured.PROCESSOR)).line()
