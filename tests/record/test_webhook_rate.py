"""The rule of an alarm, against a model that keeps every time and counts anew for each entry."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.webhooks import rate
from gateway.webhooks.rate import AlarmRule, Change, Cleared, Raised, Window

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Model:
    """The rule in its plainest form: the model keeps all times for ever."""

    rule: AlarmRule
    times: list[datetime] = field(default_factory=list)
    moment: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    on: datetime | None = None
    total: int = 0

    def counts(self, moment: datetime) -> bool:
        return moment > self.moment - timedelta(minutes=self.rule.minutes)

    def count(self) -> int:
        return sum(map(self.counts, self.times))

    def passed(self, now: datetime) -> list[Change]:
        if now <= self.moment:
            return []
        self.moment = now
        if self.on is None or self.count() > self.rule.more_than // 2:
            return []
        ended = Cleared(now, self.on, self.total)
        self.on = None
        return [ended]

    def seen(self, index: int, moment: datetime) -> list[Change]:
        changes = self.passed(moment)
        if self.counts(moment):
            self.times.append(moment)
            self.total += 1
        if self.on is None and self.count() > self.rule.more_than:
            self.on, self.total = self.moment, self.count()
            changes.append(Raised(self.moment, self.count(), index))
        return changes


rules = st.builds(AlarmRule, more_than=st.integers(0, 6), minutes=st.integers(1, 3))
moments = st.floats(0, 600, allow_nan=False).map(at)
batches = st.lists(st.tuples(st.lists(moments, max_size=12), moments), max_size=6)


@settings(max_examples=300, deadline=None)
@given(rules, batches)
def test_it_is_what_the_model_says_however_the_entries_are_cut_into_looks(
    rule: AlarmRule, looks: list[tuple[list[datetime], datetime]]
) -> None:
    window, model = Window(), Model(rule)
    for times, now in looks:
        window, changes = rate.seen(rule, window, times)
        expected = [change for index, moment in enumerate(times) for change in model.seen(index, moment)]
        window, ended = rate.passed(rule, window, now)
        assert [*changes, *([ended] if ended else [])] == expected + model.passed(now)
        most = rule.more_than + 1
        assert (window.since, window.moment) == (model.on, model.moment)
        assert len(window.times) == min(model.count(), most)


@settings(max_examples=200, deadline=None)
@given(rules, batches)
def test_beginnings_and_ends_take_turns(rule: AlarmRule, looks: list[tuple[list[datetime], datetime]]) -> None:
    window, changes = Window(), []
    for times, now in looks:
        window, some = rate.seen(rule, window, times)
        window, ended = rate.passed(rule, window, now)
        changes += [*some, *([ended] if ended else [])]
    assert [type(change) for change in changes] == [Raised, Cleared] * (len(changes) // 2) + [Raised] * (
        len(changes) % 2
    )


def test_more_than_the_limit_within_the_time_begins_it_and_as_many_do_not() -> None:
    rule = AlarmRule(more_than=5, minutes=10)
    window, changes = rate.seen(rule, Window(), [at(n) for n in range(5)])
    assert (changes, len(window.times)) == ([], 5)
    window, changes = rate.seen(rule, window, [at(599)])
    assert changes == [Raised(at(599), 6, 0)]


@given(st.integers(0, 59_999_999))
def test_a_burst_as_long_as_the_whole_window_is_never_missed(microseconds: int) -> None:
    """Wherever on the clock it begins: less than a minute, if only by a microsecond, is within a minute."""
    rule, first = AlarmRule(more_than=1, minutes=1), START + timedelta(microseconds=microseconds)
    last = first + timedelta(minutes=1)
    _, changes = rate.seen(rule, Window(), [first, last - timedelta(microseconds=1)])
    assert changes == [Raised(last - timedelta(microseconds=1), 2, 1)]
    _, changes = rate.seen(rule, Window(), [first, last])
    assert changes == []


def test_one_that_comes_late_is_measured_by_the_same_bound() -> None:
    rule = AlarmRule(more_than=1, minutes=1)
    assert rate.seen(rule, Window(), [at(60), at(0)])[1] == []
    assert rate.seen(rule, Window(), [at(60), at(0.000001)])[1] == [Raised(at(60), 2, 1)]


def test_a_storm_takes_no_more_room_than_what_begins_an_alarm() -> None:
    rule = AlarmRule(more_than=5, minutes=1)
    window, changes = rate.seen(rule, Window(), [at(n / 1000) for n in range(10_000)])
    assert [type(change) for change in changes] == [Raised]
    assert (len(window.times), window.total) == (6, 10_000)


def test_what_is_older_than_the_time_does_not_count() -> None:
    rule = AlarmRule(more_than=5, minutes=10)
    _, changes = rate.seen(rule, Window(), [*(at(n) for n in range(5)), at(600)])
    assert changes == []


def test_a_rate_about_the_limit_is_one_incident() -> None:
    """66 a minute for two minutes, then 54 for two minutes, and so on for an hour."""
    rule = AlarmRule(more_than=60, minutes=1)
    pace = {0: 60 / 66, 1: 60 / 54}
    times, moment = [], 0.0
    while moment < 3600:
        times.append(at(moment))
        moment += pace[int(moment // 120) % 2]
    _, changes = rate.seen(rule, Window(), times)
    assert [type(change) for change in changes] == [Raised]


def test_none_at_all_is_a_limit_too_and_it_ends_when_none_is_left() -> None:
    rule = AlarmRule(more_than=0, minutes=1)
    window, changes = rate.seen(rule, Window(), [at(0)])
    assert changes == [Raised(at(0), 1, 0)]
    window, ended = rate.passed(rule, window, at(59))
    assert ended is None
    window, ended = rate.passed(rule, window, at(60))
    assert ended == Cleared(at(60), at(0), 1)


def test_two_incidents_in_one_look_are_two() -> None:
    rule = AlarmRule(more_than=1, minutes=1)
    _, changes = rate.seen(rule, Window(), [at(0), at(1), at(7200), at(7201)])
    assert [type(change) for change in changes] == [Raised, Cleared, Raised]


def test_an_entry_that_comes_late_does_not_begin_an_incident_again_that_is_over() -> None:
    rule = AlarmRule(more_than=1, minutes=1)
    window, _ = rate.seen(rule, Window(), [at(0), at(1)])
    window, ended = rate.passed(rule, window, at(120))
    assert ended
    window, changes = rate.seen(rule, window, [at(2)])
    assert (changes, window.times) == ([], ())
