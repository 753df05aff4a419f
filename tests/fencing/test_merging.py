"""Several records become one list by time: nothing is lost, nothing comes twice, each record keeps its order."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RequestMalformed
from gateway.fencing.merging import Merged, Page, merge, read_cursor, write_cursor

Entry = tuple[int, datetime]
Records = Mapping[str, Sequence[Entry]]
NAMES = ["north", "south", "a-b_C9"]
START = datetime(2026, 1, 1, tzinfo=UTC)
quickly = settings(max_examples=40, deadline=None)


@st.composite
def records(draw: st.DrawFn) -> Records:
    """Draw records with gaps between positions, equal times, and a clock that was put back now and then."""
    found: dict[str, Sequence[Entry]] = {}
    for name in draw(st.sets(st.sampled_from(NAMES), min_size=1)):
        steps = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(-1, 4)), max_size=12))
        position, seconds, listed = 0, 0, list[Entry]()
        for gap, later in steps:
            position, seconds = position + gap, seconds + later
            listed.append((position, START + timedelta(seconds=seconds)))
        found[name] = listed
    return found


def page(record: Sequence[Entry], size: int, bound: int | None, *, newest_first: bool) -> Page[Entry]:
    """Return the page that one database answers with."""
    inside = [one for one in record if bound is None or (one[0] < bound if newest_first else one[0] > bound)]
    found = (inside[::-1] if newest_first else inside)[:size]
    return Page(found, more=len(found) == size)


def merged(
    given_records: Records, size: int, cursor: dict[str, int], *, newest_first: bool, missing: str = ""
) -> Merged[Entry]:
    pages = {
        name: page(record, size, cursor.get(name), newest_first=newest_first)
        for name, record in given_records.items()
        if name != missing
    }
    return merge(
        pages, size, time=lambda one: one[1], position=lambda one: one[0], newest_first=newest_first, cursor=cursor
    )


def all_pages(given_records: Records, size: int, *, newest_first: bool) -> list[tuple[str, Entry]]:
    found: list[tuple[str, Entry]] = []
    cursor: dict[str, int] = {}
    while True:
        one = merged(given_records, size, cursor, newest_first=newest_first)
        found += one.entries
        if not one.more:
            return found
        assert one.entries
        cursor = read_cursor(write_cursor(one.cursor), NAMES) if one.cursor else {}


@quickly
@given(given_records=records(), size=st.integers(1, 7), newest_first=st.booleans())
def test_pages_of_any_size_have_each_entry_once_in_the_order_of_its_record(
    *, given_records: Records, size: int, newest_first: bool
) -> None:
    found = all_pages(given_records, size, newest_first=newest_first)
    for name, record in given_records.items():
        assert [entry for of, entry in found if of == name] == list(record)[:: -1 if newest_first else 1]
    assert len(found) == sum(map(len, given_records.values()))
    assert found == all_pages(given_records, 1000, newest_first=newest_first), "the size makes no difference"


@quickly
@given(given_records=records(), size=st.integers(1, 7), newest_first=st.booleans())
def test_records_whose_times_rise_become_one_list_by_time(
    *, given_records: Records, size: int, newest_first: bool
) -> None:
    rising = {
        name: [(position, START + timedelta(seconds=position // 2)) for position, _ in record]
        for name, record in given_records.items()
    }
    times = [entry[1] for _, entry in all_pages(rising, size, newest_first=newest_first)]
    assert times == sorted(times, reverse=newest_first)


@quickly
@given(given_records=records(), size=st.integers(1, 7), newest_first=st.booleans(), down_at=st.integers(0, 3))
def test_entries_of_a_database_that_was_missing_come_on_later_pages(
    *, given_records: Records, size: int, newest_first: bool, down_at: int
) -> None:
    found: list[tuple[str, Entry]] = []
    cursor: dict[str, int] = {}
    for number in range(1000):
        missing = next(iter(given_records)) if number == down_at else ""
        one = merged(given_records, size, cursor, newest_first=newest_first, missing=missing)
        found += one.entries
        cursor = one.cursor
        if not one.more and not missing:
            break
    for name, record in given_records.items():
        assert [entry for of, entry in found if of == name] == list(record)[:: -1 if newest_first else 1]


@quickly
@given(records(), st.integers(1, 7))
def test_entries_that_are_recorded_between_two_pages_do_not_get_into_the_later_one(
    given_records: Records, size: int
) -> None:
    one = merged(given_records, size, {}, newest_first=True)
    grown = {
        name: [*record, ((record[-1][0] if record else 0) + 1, START + timedelta(days=1))]
        for name, record in given_records.items()
    }
    later = merged(grown, 1000, one.cursor, newest_first=True)
    assert [*one.entries, *later.entries] == all_pages(given_records, 1000, newest_first=True)


@quickly
@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 10**18 - 1), min_size=1))
def test_a_cursor_is_read_as_it_was_written(cursor: dict[str, int]) -> None:
    assert read_cursor(write_cursor(cursor), NAMES) == cursor


@pytest.mark.parametrize(
    "text",
    [
        *("", "4711", "north", "north:", ":5", "north:-1", "north:+1", "north:01", "north: 1", "north:1 ", "north:1,"),
        *(",north:1", "north:1,north:1", "north:1,north:2", "north:1;south:2", "north:1\n", "north:١", "north:1_0"),
        *(f"north:{10**18}", "nörth:1", "west:1", "north:1:2", f"north:{'9' * 100_000}", "north:1," * 100_000),
    ],
)
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(RequestMalformed):
        read_cursor(text, NAMES)
