"""Raises are merged, missing segments are found, and snapshots drop only what every backup has."""

from datetime import timedelta
from uuid import UUID

import pytest

from gateway.journal.contents import ADVICE, Keeping, Problem, compact, find_gap, merge, number_of, segment_name
from tests.journal.examples import NOW, WRITER, days, entry, segment, snapshot

OTHER = UUID(int=8)


def keeping(noted: int = 0, began: int = 0, at: timedelta = timedelta()) -> Keeping:
    return Keeping(NOW + at, days(35), noted, began)


def test_the_highest_token_counts_and_the_last_announcement_of_object_writes() -> None:
    later = NOW + days(1)
    merged = merge([entry("r", 5, objects=NOW), entry("r", 7), entry("r", 6, objects=later), entry("s", 1)])
    assert merged == {"r": entry("r", 7, objects=later), "s": entry("s", 1)}


def test_a_token_keeps_the_snapshot_that_it_was_in_first() -> None:
    assert merge([entry("r", 5, since=2), entry("r", 5, since=9)])["r"].since == 2
    assert merge([entry("r", 5, since=2), entry("r", 6, since=9)])["r"].since == 9
    assert merge([entry("r", 5), entry("r", 5, since=9)])["r"].since == 9


def test_a_segment_that_another_one_follows_must_be_there() -> None:
    third = segment(3, follows=2)
    found = find_gap([third], [third.name], {})
    assert found is not None
    assert (found.problem, found.name) == (Problem.MISSING, segment_name(WRITER, 2))
    assert find_gap([third], [third.name, segment_name(WRITER, 2)], {}) is None
    assert find_gap([third], [third.name], {WRITER: 2}) is None
    assert find_gap([third], [third.name], {OTHER: 2}) is not None


def test_a_segment_whose_write_failed_leaves_no_gap() -> None:
    """Nothing follows a segment that the store has not confirmed."""
    assert find_gap([segment(1), segment(3, follows=1)], [segment_name(WRITER, one) for one in (1, 3)], {}) is None


def test_a_snapshot_has_the_fences_of_the_one_before_and_of_the_segments() -> None:
    before = snapshot(3, position=4, reached={OTHER: (9, NOW)})
    kept = {"r": entry("r", 5, since=1), "s": entry("s", 1, since=3)}
    index, fences = compact(before, kept, [segment(1, entry("r", 6)), segment(2, entry("t", 2))], keeping(), 4)
    assert fences == {"r": entry("r", 6, since=4), "s": entry("s", 1, since=3), "t": entry("t", 2, since=4)}
    assert (index.number, index.position, index.reached) == (4, 4, {OTHER: (9, NOW), WRITER: (2, NOW)})


@pytest.mark.parametrize(
    ("noted", "at", "kept"),
    [(3, days(36), False), (2, days(36), True), (3, days(34), True)],
    ids=["old and noted", "not noted by the database", "younger than the retention"],
)
def test_a_raise_is_dropped_once_it_is_old_and_the_database_has_noted_it(
    noted: int, at: timedelta, *, kept: bool
) -> None:
    index, fences = compact(snapshot(3), {"r": entry("r", 5, since=3)}, [], keeping(noted, at=at), 4)
    assert ("r" in fences) is kept
    assert index.complete_from == (0 if kept else 3)


def test_a_raise_of_a_resource_with_object_writes_is_kept_as_long_as_their_announcement() -> None:
    kept = {"r": entry("r", 5, since=1, objects=NOW + days(20))}
    assert "r" in compact(snapshot(3), kept, [], keeping(3, at=days(50)), 4)[1]
    assert "r" not in compact(snapshot(3), kept, [], keeping(3, at=days(56)), 4)[1]


def test_nothing_is_dropped_while_a_time_lies_in_the_future() -> None:
    """Then one of the clocks is wrong, and it could be the one that makes raises old."""
    old, ahead = entry("r", 5, since=1), entry("s", 1, at=NOW + days(37))
    index, fences = compact(snapshot(3), {"r": old}, [segment(1, ahead)], keeping(3, at=days(36)), 4)
    assert "r" in fences
    assert index.complete_from == 0


def test_the_term_in_which_the_journal_began_anew_is_kept() -> None:
    assert compact(snapshot(3, began=2), {}, [], keeping(began=4), 4)[0].began == 4
    assert compact(snapshot(3, began=5), {}, [], keeping(began=4), 4)[0].began == 5


def test_writers_are_forgotten_after_the_retention() -> None:
    before = snapshot(3, reached={OTHER: (9, NOW)})
    assert compact(before, {}, [segment(1, at=NOW + days(36))], keeping(at=days(36)), 4)[0].reached.keys() == {WRITER}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("snapshots/000000000012", 12),
        ("fences/000000000012-ab", 12),
        ("snapshots/x", 0),
        ("snapshots/", 0),
        (f"snapshots/{10**20}", 0),
    ],
)
def test_numbers_stand_in_names(name: str, number: int) -> None:
    assert number_of(name) == number


def test_each_problem_has_a_next_step() -> None:
    assert ADVICE.keys() == set(Problem)
