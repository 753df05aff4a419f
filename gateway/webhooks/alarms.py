"""Alarms: watch the rate of refused writes, and record when it becomes too high and when it is low again.

A message of an alarm is an entry of the record, written in the transaction that changes the alarm's state. So an alarm
begins once and ends once, even if gateways crash meanwhile, and webhooks deliver it as any other entry.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.background import background_tasks, repeat
from gateway.db import record
from gateway.db import webhooks as store
from gateway.db.database import Database, Transaction
from gateway.db.record import read_span
from gateway.db.webhooks import AlarmCount, AlarmState
from gateway.fencing.record import Kind, RecordedEvent
from gateway.observe.events import AlarmCleared, AlarmRaised, Event, Observe
from gateway.webhooks import rate
from gateway.webhooks.rate import AlarmRule, Cleared, Raised, Window

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
            window = Window(state.moment, state.times, state.since, state.total)
            window, changes = rate.seen(alarm.rule, window, [one.at for one in found])
            if ahead.whole:
                window, ended = rate.passed(alarm.rule, window, now)
                changes += [ended] if ended else []
            for change in changes:
                state, event = await _put_on_record(transaction, alarm, state, change, found)
                happened.append(event)
            state = replace(
                state,
                place=ahead.end,
                moment=window.moment,
                times=window.times,
                since=window.since,
                total=window.total,
            )
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
            details = {**about, "count": count, "reached": _text(at), **named}
            raised, _ = await record.record_event(transaction, RecordedEvent(Kind.ALARM_RAISED, details=details))
            return replace(state, raised=raised), AlarmRaised(alarm.name, count, rule.minutes)
        case Cleared(at, since, total):
            of = None if state.raised is None else str(state.raised)
            details = {**about, "count": total, "since": _text(since), "until": _text(at), "raised": of}
            await record.record_event(transaction, RecordedEvent(Kind.ALARM_CLEARED, details=details))
            return replace(state, raised=None), AlarmCleared(alarm.name, total)


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
