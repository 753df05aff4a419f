"""The live page shows few entries one by one, and sums up many."""

from dataclasses import fields, replace
from datetime import UTC, datetime
from uuid import UUID

from gateway.fencing.record import Entry, Kind
from gateway.web.live_page import A_SECOND, EntryPacer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_NOTHING = dict.fromkeys((field.name for field in fields(Entry)), None)
ENTRY = Entry(**{**_NOTHING, "id": UUID(int=0), "at": NOON, "kind": Kind.REJECTION})  # type: ignore[arg-type]


def entries(count: int, resource: str = "r") -> list[Entry]:
    return [replace(ENTRY, position=number, resource=resource) for number in range(1, count + 1)]


def test_a_few_are_shown_at_once() -> None:
    pace = EntryPacer(100.0)
    assert len(pace.take(entries(A_SECOND), 100.5)) == A_SECOND
    assert pace.wait(100.5) is None
    assert len(pace.take(entries(1), 101.1)) == 1
    assert pace.due(200.0) is None


def test_a_storm_is_summed_up_at_the_end_of_its_second() -> None:
    pace = EntryPacer(100.0)
    assert len(pace.take(entries(100, "a"), 100.2)) == A_SECOND
    assert pace.take(entries(300, "b"), 100.4) == ()
    assert pace.due(100.9) is None
    assert round(pace.wait(100.4) or 0, 6) == 0.6
    storm = pace.due(101.0)
    assert storm is not None
    assert (storm.count, storm.busiest) == (100 - A_SECOND + 300, [("b", 300), ("a", 80)])
    assert len(pace.take(entries(3), 101.1)) == 3


def test_every_entry_is_shown_or_counted() -> None:
    pace, now, shown, summed = EntryPacer(0.0), 0.0, 0, 0
    for step in range(400):
        now += 0.07
        shown += len(pace.take(entries(step % 9), now))
        storm = pace.due(now)
        summed += storm.count if storm else 0
    storm = pace.due(now + 2)
    summed += storm.count if storm else 0
    assert shown + summed == sum(step % 9 for step in range(400))
    assert shown <= (now + 1) * A_SECOND
