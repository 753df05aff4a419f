"""Charts: bars over time as numbers, whose last step is said to be partial."""

from datetime import UTC, datetime, timedelta

from gateway.web.chart import Bar, Step, draw, sparks

NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)
QUARTER = timedelta(minutes=15)


def step(number: int, *counts: int) -> Step:
    since = NOON + number * QUARTER
    values = [("zombies", "of zombies", counts[0]), ("others", "for other reasons", sum(counts[1:]))]
    return Step(since, since + QUARTER, values, f"/ui/rejections?n={number}")


def test_the_highest_column_is_full_and_its_parts_stand_upon_each_other() -> None:
    drawn = draw([step(0, 10, 30), step(1, 0), step(2, 20)], NOON + 3 * QUARTER)
    assert drawn.highest == 40
    assert drawn.columns[0].bars == (Bar("zombies", 75.0, 25.0), Bar("others", 0.0, 75.0))
    assert drawn.columns[1].bars == ()
    assert drawn.columns[2].bars == (Bar("zombies", 50.0, 50.0),)
    assert [column.left for column in drawn.columns] == [0, 10, 20]


def test_one_refusal_beside_thousands_is_seen() -> None:
    drawn = draw([step(0, 1), step(1, 100_000)], NOON + 2 * QUARTER)
    assert drawn.columns[0].bars[0].height >= 2


def test_a_step_that_is_not_over_is_partial_and_says_so() -> None:
    done, partial = draw([step(0, 5), step(1, 1)], NOON + 1.5 * QUARTER).columns
    assert not done.partial
    assert partial.partial
    assert done.title == "2026-11-24 12:00:00 to 2026-11-24 12:15:00: 5 of zombies"
    assert partial.title == "2026-11-24 12:15:00 to 2026-11-24 12:22:30, not complete: 1 of zombies"
    assert partial.address == "/ui/rejections?n=1"


def test_a_chart_of_nothing_is_a_chart() -> None:
    drawn = draw([step(0, 0)], NOON)
    assert (drawn.highest, drawn.columns[0].bars) == (0, ())
    assert drawn.columns[0].title.endswith("none")
    assert draw([], NOON).columns == ()


def test_labels_are_times_within_a_day_and_dates_within_a_month() -> None:
    assert draw([step(number, 1) for number in range(4)], NOON).labels == ("12:00", "12:15", "12:30", "12:45", "13:00")
    month = [Step(NOON + timedelta(days=day), NOON + timedelta(days=day + 1), []) for day in range(30)]
    assert draw(month, NOON).labels == ("11-24", "12-02", "12-09", "12-17", "12-24")
    week = draw(month[:7], NOON).labels
    assert week == ("11-24 12:00", "11-26 06:00", "11-28 00:00", "11-29 18:00", "12-01 12:00")


def test_a_small_chart_has_all_counts_within_its_time() -> None:
    counts = [(NOON - QUARTER, 1), (NOON, 2), (NOON + QUARTER, 3), (NOON + 4 * QUARTER, 4)]
    drawn = sparks(counts, NOON, NOON + 4 * QUARTER, 4)
    assert [len(column.bars) for column in drawn.columns] == [1, 1, 0, 1]
    assert drawn.highest == 4
    assert not any(column.partial for column in drawn.columns)


def test_a_small_chart_may_end_where_the_calendar_ends() -> None:
    """A viewer may ask for all time, and a column of it is two centuries."""
    end = datetime(9999, 12, 30, tzinfo=UTC)
    drawn = sparks([(NOON, 1)], datetime(1, 1, 2, tzinfo=UTC), end)
    assert drawn.highest == 1
    assert not any(column.partial for column in drawn.columns)
