"""Alarms: their rule, and one beginning and one end for each incident, whichever gateways look, die or come late."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.db import webhooks
from gateway.db.database import Database
from gateway.db.record import seal
from gateway.db.webhooks import Window
from gateway.observe.events import AlarmCleared, AlarmRaised
from gateway.webhooks import alarms
from gateway.webhooks.alarms import STRETCH, AlarmRule, AlarmWatch, Change, Cleared, ConfiguredAlarm, Raised
from tests.patience import patient
from tests.record.entries import put
from tests.record.receiver import SECRET, receiving, telling, webhook
from tests.running import Events, config

MINUTE = timedelta(minutes=1)
MANY = ConfiguredAlarm("many", "job/", AlarmRule(more_than=5, minutes=10))


@asynccontextmanager
async def gateway(dsn: str, *alarms: ConfiguredAlarm) -> AsyncIterator[tuple[AlarmWatch, Events]]:
    """A gateway's watch, which looks when it is told to."""
    database, events = patient(dsn), Events()
    watch = AlarmWatch(database, alarms or (MANY,), events)
    try:
        await watch.look()
        yield watch, events
    finally:
        await database.close()


async def told(database: Database) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries that alarms have put on record."""
    await seal(database)
    rows = await database.fetch(
        "SELECT kind, details::jsonb AS d FROM fencing.entry WHERE kind LIKE 'alarm-%' ORDER BY position"
    )
    return [(row["kind"], json.loads(row["d"])) for row in rows]


async def hour_ago(database: Database, minutes: int = 0) -> datetime:
    return await database.now() - timedelta(hours=1) + timedelta(minutes=minutes)


async def beginning(dsn: str, database: Database) -> None:
    """The alarm has been known for longer than anything that is about to be put on record."""
    async with gateway(dsn):
        await database.fetch_write("UPDATE fencing.alarm SET moment = now() - interval '1 day'")


async def test_it_begins_once_and_ends_once(dsn: str, database: Database) -> None:
    async with gateway(dsn) as (watch, events):
        await put(database, 5)
        await watch.look()
        assert events == []
        await put(database, 1, holder="host-b")
        await watch.look()
        assert events == [AlarmRaised("many", 6, 10)]
        await put(database, 100)
        await watch.look()
        assert len(events) == 1
        await database.fetch_write("UPDATE fencing.alarm SET moment = moment - interval '11 minutes', counts = '[]'")
        await watch.look()
        await watch.look()
        assert events == [AlarmRaised("many", 6, 10), AlarmCleared("many", 106)]
    assert [kind for kind, _ in await told(database)] == ["alarm-raised", "alarm-cleared"]


async def test_it_says_who_and_what(dsn: str, database: Database) -> None:
    async with gateway(dsn) as (watch, _):
        await put(database, 3, resource="job/a", holder="host-a", caller="one")
        await put(database, 2, resource="job/b", holder=None, caller="two")
        await put(database, 9, resource="other", holder="host-x", caller="nobody")
        await put(database, 1, resource="job/c", holder="host-a", caller="one", reason="denied")
        await watch.look()
    newest = await database.fetch(
        "SELECT id::text AS id FROM fencing.entry WHERE resource LIKE 'job/%' ORDER BY position DESC LIMIT 5"
    )
    ((kind, said),) = await told(database)
    assert kind == "alarm-raised"
    assert {key: said[key] for key in ("alarm", "prefix", "more_than", "minutes", "count")} == {
        "alarm": "many",
        "prefix": "job/",
        "more_than": 5,
        "minutes": 10,
        "count": 6,
    }
    assert said["resources"] == [
        {"name": "job/a", "count": 3},
        {"name": "job/b", "count": 2},
        {"name": "job/c", "count": 1},
    ]
    assert said["holders"] == [{"name": "host-a", "count": 4}, {"name": None, "count": 2}]
    assert said["callers"] == [{"name": "one", "count": 4}, {"name": "two", "count": 2}]
    assert said["rejections"] == [row["id"] for row in newest]


async def test_what_does_not_count(dsn: str, database: Database) -> None:
    async with gateway(dsn) as (watch, events):
        others: list[dict[str, Any]] = [{"resource": "jobs/1"}, {"resource": None}, {"enforced": False}]
        for columns in (*others, {"kind": "raised"}, {"kind": "bypass"}):
            await put(database, 50, **columns)
        await watch.look()
    assert events == []


async def test_incidents_while_nobody_looked_are_told_each_by_itself(dsn: str, database: Database) -> None:
    await beginning(dsn, database)
    for minute in (0, 30):
        await put(database, 7, at=await hour_ago(database, minute))
    async with gateway(dsn) as (watch, events):
        await watch.look()
        assert [type(event) for event in events] == [AlarmRaised, AlarmCleared, AlarmRaised, AlarmCleared]
    first, end, second, _ = [details for _, details in await told(database)]
    assert (first["count"], end["count"], second["count"]) == (6, 7, 6)
    assert datetime.fromisoformat(second["reached"]) - datetime.fromisoformat(first["reached"]) >= 29 * MINUTE


async def test_an_incident_of_an_hour_ago_is_over_once_all_of_it_has_been_seen(dsn: str, database: Database) -> None:
    await beginning(dsn, database)
    await put(database, 2 * STRETCH + 1, at=await hour_ago(database))
    async with gateway(dsn) as (watch, events):
        await watch.look()
        assert events == [AlarmRaised("many", 6, 10), AlarmCleared("many", 2 * STRETCH + 1)]


async def test_many_gateways_that_look_at_once_raise_it_once(dsn: str, database: Database) -> None:
    async with gateway(dsn) as (first, one), gateway(dsn) as (second, two), gateway(dsn) as (third, three):
        for _ in range(20):
            await put(database, 250)
            await asyncio.gather(first.look(), second.look(), third.look())
        assert one + two + three == [AlarmRaised("many", 6, 10)]
    assert [kind for kind, _ in await told(database)] == ["alarm-raised"]


async def test_a_gateway_that_dies_while_it_looks_has_said_nothing(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(dsn) as (watch, events):
        await put(database, 10)

        async def dies(*_: object) -> None:
            raise asyncio.CancelledError

        with monkeypatch.context() as patch:
            patch.setattr(webhooks, "save_alarm", dies)
            with pytest.raises(asyncio.CancelledError):
                await watch.look()
        assert events == []
        assert await told(database) == []
        await watch.look()
        assert events == [AlarmRaised("many", 6, 10)]
    async with gateway(dsn) as (watch, events):
        await watch.look()
        assert events == [], "it is on already"


async def test_another_rule_counts_anew(dsn: str, database: Database) -> None:
    async with gateway(dsn) as (watch, events):
        await put(database, 5)
        await watch.look()
    async with gateway(dsn, ConfiguredAlarm("many", "", AlarmRule(5, 10))) as (watch, events):
        await put(database, 5)
        await watch.look()
        assert events == []
        await put(database, 1, resource="anything")
        await watch.look()
        assert events == [AlarmRaised("many", 6, 10)]


async def test_it_is_sent_to_the_webhooks_that_it_names_and_by_itself(dsn: str, database: Database) -> None:
    async with receiving() as receiver, receiving() as other, gateway(dsn) as (watch, _):
        ops = webhook("ops", receiver.url, kinds=(), alarms=("many",))
        async with telling(dsn, ops, webhook("other", other.url, alarms=("another",))):
            await put(database, 10)
            await watch.look()
            await put(database, 1)
            await receiver.until(lambda: receiver.taken)
            await other.until(lambda: len(other.entries()) == 11)
    (message,) = receiver.taken
    assert (message.type, message.data["kind"], message.data["webhook"]) == (
        "fencing.alarm.raised",
        "alarm-raised",
        "ops",
    )
    assert message.data["details"]["alarm"] == "many"
    assert {message.type for message in other.taken} == {"fencing.entries"}


def test_an_alarm_for_a_webhook_that_is_not_there() -> None:
    hooks = [{"name": "ops", "url": "http://x/", "secret": SECRET}]
    with pytest.raises(ValueError, match="there is no webhook nobody"):
        config(
            "postgresql://x",
            webhooks=hooks,
            alarms=[{"name": "many", "more_than": 1, "minutes": 1, "webhooks": ["nobody"]}],
        )


# The rule -------------------------------------------------------------------------------------------------------------

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


@dataclass
class Model:
    """The rule in its plainest form: the model keeps all times for ever, and counts anew for each entry."""

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
        window, changes = alarms.seen(rule, window, times)
        expected = [change for index, moment in enumerate(times) for change in model.seen(index, moment)]
        window, ended = alarms.passed(rule, window, now)
        assert [*changes, *([ended] if ended else [])] == expected + model.passed(now)
        most = rule.more_than + 1
        assert (window.since, window.moment) == (model.on, model.moment)
        assert len(window.times) == min(model.count(), most)


@given(st.integers(0, 59_999_999))
def test_a_burst_as_long_as_the_whole_window_is_never_missed(microseconds: int) -> None:
    """Wherever on the clock it begins: less than a minute, if only by a microsecond, is within a minute."""
    rule, first = AlarmRule(more_than=1, minutes=1), START + timedelta(microseconds=microseconds)
    last = first + timedelta(minutes=1)
    _, changes = alarms.seen(rule, Window(), [first, last - timedelta(microseconds=1)])
    assert changes == [Raised(last - timedelta(microseconds=1), 2, 1)]
    _, changes = alarms.seen(rule, Window(), [first, last])
    assert changes == []
