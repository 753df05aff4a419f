"""A goal of a benchmark is met or missed by what was measured, and says so. A ratio that fell is named."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench import figures
from bench.figures import Figure
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


def measured(rate: float, day: str = "2026-01-02") -> Figure:
    return Figure("tables", day, "a machine", row(own=replace(OWN, rate=rate)))


@pytest.mark.parametrize(("rate", "said"), [(720.0, ["| a work | a peer | 0.80 | 0.72 |"]), (721.0, []), (900.0, [])])
def test_a_ratio_that_has_fallen_by_a_tenth_is_named(rate: float, said: list[str]) -> None:
    assert list(figures.falls([measured(800.0)], [measured(rate).row])) == said


def test_an_added_latency_counts_in_place_of_the_rate() -> None:
    before = replace(measured(800.0), row=replace(row(), added=True))
    slower = replace(before.row, load=replace(OWN, rate=1000.0, p50=3.0))
    assert list(figures.falls([before], [slower])) == ["| a work | a peer | 0.75 | 0.50 |"]


def test_a_new_row_takes_the_place_of_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "figures.json"
    file.write_text("[]")
    monkeypatch.setattr(figures, "FILE", file)
    other = replace(measured(500.0), row=replace(row(), work="another work"))
    figures.keep([measured(800.0, "2026-01-01"), other])
    newest = measured(700.0)
    figures.keep([newest])
    assert figures.read() == [newest, other]


def test_a_row_shows_the_processor_time_of_both_sides() -> None:
    assert row().line().endswith("| 400 + 200 (100 + 300) |")
    assert row(own=Load(800.0, 2.0, 5.0)).line().endswith("| 625 (100 + 300) |")
