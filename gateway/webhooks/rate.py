"""The rule of an alarm: more than so many refused writes within so many minutes, by the times that stand in the record.

A window slides over the entries, and knows the times of what is in it: of the newest, one more than the rule allows.
The others change nothing: whether there are more than that, and whether they have become few again, the newest tell. So
a storm of a million takes no more room than what begins an alarm, and the window can be kept in a row of the database
between two looks. What counts is younger than the minutes of the rule, all of that and nothing else.

An alarm begins when the window holds more than the rule allows, and is over when it holds no more than half of that:
a rate about the limit is one incident, not twenty.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class Rule:
    """More than ``more_than`` within ``minutes``."""

    more_than: int
    minutes: int

    @property
    def few(self) -> int:
        """An alarm is over when the window holds no more than this."""
        return self.more_than // 2


@dataclass(frozen=True, slots=True)
class Window:
    """What an alarm knows. Times are aware.

    ``moment`` is where the window ends, which never goes back; ``times`` are those of what it holds, ascending: of the
    newest, at most one more than the rule allows. While the alarm is on, ``since`` is when it began, and ``total``
    what it has counted from the beginning of that window.
    """

    moment: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    times: tuple[datetime, ...] = ()
    since: datetime | None = None
    total: int = 0


@dataclass(frozen=True, slots=True)
class Began:
    """The alarm is raised. ``index``: of the entry that did it, among those that were looked at."""

    at: datetime
    count: int
    index: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The alarm is over: at ``at`` the window held few. ``total`` is what it has counted since ``since``."""

    at: datetime
    since: datetime
    total: int


Change = Began | Ended


def seen(rule: Rule, window: Window, times: Iterable[datetime]) -> tuple[Window, list[Change]]:
    """Entries have come, in the order of the record. What has changed by them, in order: each begins or ends it."""
    sliding = _Sliding(rule, window)
    changes: list[Change] = []
    for index, at in enumerate(times):
        ended = sliding.reaches(at)
        began = sliding.takes(at, index)
        changes += [change for change in (ended, began) if change]
    return sliding.stands(), changes


def passed(rule: Rule, window: Window, now: datetime) -> tuple[Window, Ended | None]:
    """It has become ``now``, and whatever is on record of the time before has been seen."""
    sliding = _Sliding(rule, window)
    ended = sliding.reaches(now)
    return sliding.stands(), ended


class _Sliding:
    """A window on its way through a stretch of the record."""

    def __init__(self, rule: Rule, window: Window) -> None:
        self._rule, self._length = rule, timedelta(minutes=rule.minutes)
        self._moment, self._since, self._total = window.moment, window.since, window.total
        self._times = list(window.times)

    def stands(self) -> Window:
        return Window(self._moment, tuple(self._times), self._since, self._total)

    def reaches(self, now: datetime) -> Ended | None:
        """Its end moves on to here, unless it is there already; the alarm may be over."""
        if now <= self._moment:
            return None
        self._moment = now
        del self._times[: bisect_right(self._times, now - self._length)]
        if self._since is None or len(self._times) > self._rule.few:
            return None
        ended = Ended(now, self._since, self._total)
        self._since, self._total = None, 0
        return ended

    def takes(self, at: datetime, index: int) -> Began | None:
        """One more, unless it is from before the window: entries come in nearly the order of their times, not quite."""
        if at <= self._moment - self._length:
            return None
        insort(self._times, at)
        del self._times[: -(self._rule.more_than + 1)]
        if self._since is not None:
            self._total += 1
        elif len(self._times) > self._rule.more_than:
            self._since, self._total = self._moment, len(self._times)
            return Began(self._moment, self._total, index)
        return None
