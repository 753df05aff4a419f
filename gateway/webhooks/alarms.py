"""Alarms: watch the rate of refused writes, and record when it becomes too high and when it is low again.

A message of an alarm is an entry of the record, written in the transaction that changes the alarm's state. So an alarm
begins once and ends once, even if gateways crash meanwhile, and webhooks deliver it as any other entry.

The rule is more than so many refused writes within so many minutes, by the times in the record. A window slides over
the entries. It holds the times of the newest ones, at most one more than the rule allows. Older ones change nothing:
the newest tell whether an alarm begins or ends. So a storm of a million refusals takes no more room than the
beginning of an alarm. A row of the database can hold the window between two looks. Exactly the refusals younger than
the minutes of the rule count.

An alarm begins when the window holds more than the rule allows. It ends when the window holds no more than half of
that. So a rate near the limit is one incident, not twenty.
"""

from bisect import bisect_right, insort
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.background import background_tasks, repeat
from gateway.db import record
from gateway.db import webhooks as store
from gateway.db.database import Database, Transaction
from gateway.db.record import read_span
from gateway.db.webhooks import AlarmCount, AlarmState, Window
from gateway.fencing.record import Kind, RecordedEvent
from gateway.observe.events import AlarmCleared, AlarmRaised, Event, Observe
from gateway.text import machine_time


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


STRETCH = 1_000
"""Entries of the record that are looked at in one transaction."""
SHOWN = 5
"""So many resources, holders, callers and refused writes are named."""


@dataclass(frozen=True, slots=True)
class ConfiguredAlarm:
    """An alarm as it is configured: a rule for refused writes at resources that begin with ``prefix``."""

    name: str
    prefix: str
    rule: AlarmRule


class AlarmWatch:
    """The alarms of one configuration, as one gateway process watches them. Any number of processes may do so."""

    def __init__(
        self, database: Database, alarms: Sequence[ConfiguredAlarm], observe: Observe, *, look: float = 1.0
    ) -> None:
        """``look``: seconds between two looks."""
        self._database, self._observe, self._look = database, observe, look
        self._alarms = {alarm.name: alarm for alarm in alarms}
        self._introduced = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look in the background. It may stop at any moment without loss."""
        if not self._alarms:
            yield
            return
        async with background_tasks(repeat("alarms", self.look, self._observe, self._look, at_once=True)):
            yield

    async def look(self) -> None:
        """Look once at all entries that have not been looked at. Raise ``GatewayError``."""
        if not self._introduced:
            for alarm in self._alarms.values():
                await store.introduce_alarms(self._database, alarm.name, alarm.prefix, alarm.rule.minutes)
            self._introduced = True
        for name in await store.list_due_alarms(self._database, list(self._alarms)):
            while await self._look_at(self._alarms[name]):
                pass

    async def _look_at(self, alarm: ConfiguredAlarm) -> bool:
        """Look at the next stretch of the record; return whether there is more."""
        happened: list[Event] = []

        async def work(transaction: Transaction) -> bool:
            happened.clear()  # the transaction may be retried
            locked = await store.lock_alarm(transaction, alarm.name)
            if locked is None:
                return False
            state, now = locked
            ahead = await read_span(transaction, state.place, STRETCH)
            found = await store.list_refusals(transaction, state.place, ahead.end.position, alarm.prefix)
            window, changes = seen(alarm.rule, state.window, [one.at for one in found])
            if ahead.whole:
                window, ended = passed(alarm.rule, window, now)
                changes += [ended] if ended else []
            for change in changes:
                state, event = await _put_on_record(transaction, alarm, state, change, found)
                happened.append(event)
            state = replace(state, place=ahead.end, window=window)
            await store.save_alarm(transaction, alarm.name, state)
            return not ahead.whole

        more = await self._database.run(work)
        for event in happened:
            self._observe(event)
        return more


async def _put_on_record(
    transaction: Transaction,
    alarm: ConfiguredAlarm,
    state: AlarmState,
    change: Raised | Cleared,
    found: Sequence[AlarmCount],
) -> tuple[AlarmState, Event]:
    rule = alarm.rule
    about = {"alarm": alarm.name, "prefix": alarm.prefix, "more_than": rule.more_than, "minutes": rule.minutes}
    match change:
        case Raised(at, count, index):
            since = at - timedelta(minutes=rule.minutes)
            named = await store.summarize_refusals(transaction, since, found[index].position, alarm.prefix, SHOWN)
            details = {**about, "count": count, "reached": machine_time(at), **named}
            raised, _ = await record.record_event(transaction, RecordedEvent(Kind.ALARM_RAISED, details=details))
            return replace(state, raised=raised), AlarmRaised(alarm.name, count, rule.minutes)
        case Cleared(at, since, total):
            of = None if state.raised is None else str(state.raised)
            details = {**about, "count": total, "since": machine_time(since), "until": machine_time(at), "raised": of}
            await record.record_event(transaction, RecordedEvent(Kind.ALARM_CLEARED, details=details))
            return replace(state, raised=None), AlarmCleared(alarm.name, total)
