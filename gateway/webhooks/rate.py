"""The rule of an alarm: more than so many refused writes within so many minutes, by the times in the record.

A window slides over the entries. It holds the times of the newest ones, at most one more than the rule allows. Older
ones change nothing: the newest tell whether an alarm begins or ends. So a storm of a million refusals takes no more
room than the beginning of an alarm. A row of the database can hold the window between two looks. Exactly the refusals
younger than the minutes of the rule count.

An alarm begins when the window holds more than the rule allows. It ends when the window holds no more than half of
that. So a rate near the limit is one incident, not twenty.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """More than ``more_than`` within ``minutes``."""

    more_than: int
    minutes: int

    @property
    def few(self) -> int:
        """An alarm is over when the window holds no more than this."""
        return self.more_than // 2


@dataclass(frozen=True, slots=True)
class Window:
    """The state of an alarm. Times are aware.

    ``moment`` is the end of the window and never goes back. ``times`` are the newest times in it, ascending, at most
    one more than the rule allows. While the alarm is on, ``since`` is when it began, and ``total`` is its count from
    the beginning of that window.
    """

    moment: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    times: tuple[datetime, ...] = ()
    since: datetime | None = None
    total: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    """The alarm is raised. ``index``: the position of the entry that raised it, among the entries looked at."""

    at: datetime
    count: int
    index: int


@dataclass(frozen=True, slots=True)
class Cleared:
    """The alarm is over: at ``at`` the window held few. ``total`` is the count since ``since``."""

    at: datetime
    since: datetime
    total: int


Change = Raised | Cleared


def seen(rule: AlarmRule, window: Window, times: Iterable[datetime]) -> tuple[Window, list[Change]]:
    """Take new entries in the order of the record. Return the new window and the changes, in order."""
    sliding = _Sliding(rule, window)
    changes: list[Change] = []
    for index, at in enumerate(times):
        ended = sliding.reaches(at)
        began = sliding.takes(at, index)
        changes += [change for change in (ended, began) if change]
    return sliding.stands(), changes


def passed(rule: AlarmRule, window: Window, now: datetime) -> tuple[Window, Cleared | None]:
    """Move the window to ``now``. All entries recorded before then have been seen."""
    sliding = _Sliding(rule, window)
    ended = sliding.reaches(now)
    return sliding.stands(), ended


class _Sliding:
    """A window on its way through a stretch of the record."""

    def __init__(self, rule: AlarmRule, window: Window) -> None:
        self._rule, self._length = rule, timedelta(minutes=rule.minutes)
        self._moment, self._since, self._total = window.moment, window.since, window.total
        self._times = list(window.times)

    def stands(self) -> Window:
        return Window(self._moment, tuple(self._times), self._since, self._total)

    def reaches(self, now: datetime) -> Cleared | None:
        """Move the end of the window to ``now``, unless it is there already; the alarm may be over."""
        if now <= self._moment:
            return None
        self._moment = now
        del self._times[: bisect_right(self._times, now - self._length)]
        if self._since is None or len(self._times) > self._rule.few:
            return None
        ended = Cleared(now, self._since, self._total)
        self._since, self._total = None, 0
        return ended

    def takes(self, at: datetime, index: int) -> Raised | None:
        """Add an entry, unless it is older than the window. Entries come in nearly the order of time."""
        if at <= self._moment - self._length:
            return None
        insort(self._times, at)
        del self._times[: -(self._rule.more_than + 1)]
        if self._since is not None:
            self._total += 1
        elif len(self._times) > self._rule.more_than:
            self._since, self._total = self._moment, len(self._times)
            return Raised(self._moment, self._total, index)
        return None
