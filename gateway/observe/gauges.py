"""Gauges: the state of a gateway at one moment, which is read and not counted.

Values from the database are the same at each gateway: take the maximum over all of them, not the sum.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from gateway.db import overview
from gateway.db.database import Database
from gateway.db.record import RecordPosition
from gateway.db.webhooks import WebhookStatus, list_statuses
from gateway.errors import GatewayError
from gateway.fencing.record import Kind
from gateway.findings import MOST_COUNTED, Standing, asked_by

Labels: TypeAlias = tuple[str, ...]
"""Values, in the order of the names."""

SECONDS = (
    *(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Upper bounds, from a statement that found everything in memory to a client that has given up."""

OTHER = "other"
"""The value of a label in place of all that have no place of their own."""


@dataclass(slots=True)
class _Named:
    name: str
    text: str
    labels: Labels = ()


@dataclass(slots=True)
class Counter(_Named):
    """A value that only grows. ``known`` labels exist from the beginning, so that their first event is a change."""

    known: Iterable[Labels] = ()
    values: dict[Labels, float] = field(init=False)

    def __post_init__(self) -> None:
        self.values = dict.fromkeys(self.known if self.labels else ((),), 0)

    def add(self, *labels: str, by: float = 1) -> None:
        self.values[labels] = self.values.get(labels, 0) + by


@dataclass(slots=True)
class Gauge(_Named):
    """A value that goes up and down. Empty while it is unknown."""

    values: Mapping[Labels, float] = field(default_factory=dict)
    over: Literal["one", "sum", "max"] = "one"
    """Over the workers of a gateway: the value at the one that is asked, the sum, or the maximum."""

    def set(self, value: float | None) -> None:
        self.values = {} if value is None else {(): value}


@dataclass(slots=True)
class Distribution:
    """The counts of one histogram: of each bucket by itself, the last one for what is above all bounds."""

    buckets: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Histogram(_Named):
    """How many of what size: seconds, unless ``bounds`` are given."""

    known: Iterable[Labels] = ()
    bounds: tuple[float, ...] = SECONDS
    values: dict[Labels, Distribution] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {labels: self._empty() for labels in (self.known if self.labels else ((),))}

    def at(self, labels: Labels) -> Distribution:
        """Return the counts for these labels, for callers of ``add`` that have many to add."""
        counts = self.values.get(labels)
        if counts is None:
            counts = self.values[labels] = self._empty()
        return counts

    def add(self, counts: Distribution, value: float) -> None:
        counts.buckets[bisect_left(self.bounds, value)] += 1
        counts.total += value

    def observe(self, labels: Labels, value: float) -> None:
        self.add(self.at(labels), value)

    def _empty(self) -> Distribution:
        return Distribution([0] * (len(self.bounds) + 1))


Values: TypeAlias = Mapping[Labels, float | Distribution]
Instrument: TypeAlias = Counter | Gauge | Histogram


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The values of one worker by the names of their instruments: those that only grow, and those of the moment."""

    counts: Mapping[str, Values]
    moment: Mapping[str, Mapping[Labels, float]]


@dataclass(frozen=True, slots=True)
class Counted:
    """Entries of the record that have been counted, up to a position."""

    position: RecordPosition
    kinds: Mapping[Labels, float]


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that a worker needs to answer for all: the counts of those that have ended, and the snapshots of the others.

    Its own is among these, as the parent has it. A later one would be lost if the worker died after its answer.
    """

    past: Mapping[str, Values]
    snapshots: Sequence[Snapshot]
    processes: Mapping[int, int]
    """The process of each worker."""
    serving: int
    counted: Mapping[str | None, Counted] | None
    """By the name of the database, None for the only one."""


def added(one: Mapping[str, Values], more: Mapping[str, Values]) -> dict[str, Values]:
    """Return the sums of counts."""
    sums = {name: dict(values) for name, values in one.items()}
    for name, values in more.items():
        into = sums.setdefault(name, {})
        for labels, value in values.items():
            into[labels] = _sum(into[labels], value) if labels in into else value
    return dict(sums)


def _sum(one: float | Distribution, more: float | Distribution) -> float | Distribution:
    if isinstance(one, Distribution) and isinstance(more, Distribution):
        buckets = [first + second for first, second in zip(one.buckets, more.buckets, strict=True)]
        return Distribution(buckets, one.total + more.total)
    assert not isinstance(one, Distribution)
    assert not isinstance(more, Distribution)
    return one + more


def over_workers(gauge: Gauge, moments: Sequence[Mapping[Labels, float]]) -> Gauge:
    """Return a gauge of all workers, given the values at each of them."""
    if gauge.over == "one":
        return gauge
    found: dict[Labels, list[float]] = {}
    for values in moments:
        for labels, value in values.items():
            found.setdefault(labels, []).append(value)
    join = max if gauge.over == "max" else sum
    return replace(gauge, values={labels: float(join(values)) for labels, values in found.items()})


class LabelNames:
    """The values that a label may have: those that are known, and the first others that come, at most ``most``."""

    def __init__(self, known: Iterable[str] = (), most: int = 0) -> None:
        self._known = {name: name for name in known}
        self._room = most

    def of(self, name: str | None) -> str:
        """Return the name itself, or ``OTHER``."""
        if name is None:
            return OTHER
        found = self._known.get(name)
        if found is None:
            if self._room <= 0:
                return OTHER
            self._room -= 1
            found = self._known[name] = name
        return found


_OF_STANDING = [name for question in asked_by("metrics") for name in question.gauges.split() if hasattr(Standing, name)]


class DatabaseGauges:
    """The values about one database."""

    def __init__(self) -> None:
        # Of this process.
        self.sessions = Gauge(
            "gateway_sessions",
            "Sessions with Postgres, `in_use` and `idle`. The pool `shared` is for batches of writes, "
            "reads and leases, with short timeouts; `own` is for all others.",
            ("pool", "state"),
            over="sum",
        )
        self.sessions_limit = Gauge("gateway_sessions_limit", "The limit of sessions.", ("pool",), over="sum")
        self.sessions_waiting = Gauge(
            "gateway_sessions_waiting", "Requests that wait for a session.", ("pool",), over="sum"
        )
        self.streams = Gauge("gateway_streams", "Open streams of the record at this process.", over="sum")
        self.lock_waits = Gauge(
            "gateway_lease_waiting", "Places in queues with a client waiting at this gateway.", over="sum"
        )
        self.journal_pending = Gauge(
            "gateway_journal_pending_raises",
            "Raises of fences that are not in the journal yet, with mode `async`.",
            over="sum",
        )
        self.journal_lag = Gauge(
            "gateway_journal_lag_seconds", "The age of the oldest of them; 0 if there are none.", over="max"
        )
        self.journal_failing = Gauge(
            "gateway_journal_failing", "1 if the last append to the journal has failed, else 0.", over="max"
        )
        self.journal_snapshot = Gauge(
            "gateway_journal_snapshot",
            "The number of the last snapshot that this process has written or read.",
            over="max",
        )

        # Of all gateways with this database and this store.
        self.up = Gauge("gateway_service_up", "1 if `postgres` or `s3` answers the scrape, else 0.", ("service",))
        self.intents = Gauge("gateway_intents_pending", f"Pending object writes; counted up to {MOST_COUNTED:,}.")
        self.intents_age = Gauge("gateway_intent_oldest_seconds", "The age of the oldest of them; 0 if there are none.")
        self.tombstones = Gauge(
            "gateway_tombstones", f"Keys that may have a tombstone; counted up to {MOST_COUNTED:,}."
        )
        self.uploads = Gauge(
            "gateway_uploads_staged", f"Open uploads for large bodies; counted up to {MOST_COUNTED:,}."
        )
        self.position = Gauge("gateway_record_position", "The position of the last entry.")
        self.entries = Counter(
            "gateway_record_entries_total",
            "Entries by kind, of all gateways, since the first scrape of this one: take `max`.",
            ("kind",),
            [(kind.value,) for kind in Kind],
        )
        self.unsealed = Gauge(
            "gateway_record_unsealed_entries", f"Entries not sealed yet; counted up to {MOST_COUNTED:,}."
        )
        self.unsealed_age = Gauge(
            "gateway_record_unsealed_oldest_seconds", "The age of the oldest of them; 0 if there are none."
        )
        self.held = Gauge("gateway_leases_held", f"Current leases; counted up to {MOST_COUNTED:,}.")
        self.waiters = Gauge(
            "gateway_lease_waiters", f"Places in queues, at all gateways; counted up to {MOST_COUNTED:,}."
        )
        self.webhook_behind = Gauge(
            "gateway_webhook_behind_entries", "Entries of the record not yet processed for the webhook.", ("webhook",)
        )
        self.webhook_failing = Gauge(
            "gateway_webhook_failing_seconds", "How long no message has been accepted; 0 if all is well.", ("webhook",)
        )
        self.alarm = Gauge("gateway_alarm_active", "1 if the alarm is active, else 0.", ("alarm",))

    def instruments(self) -> list[Gauge | Counter]:
        """Return all of them, in the order in which they are declared."""
        return list(vars(self).values())

    def show(self, found: Standing | None) -> None:
        """Set the gauges of the work under way; None leaves them out."""
        for name in _OF_STANDING:
            getattr(self, name).set(None if found is None else getattr(found, name))


class StatusGauges:
    """The values read from one gateway."""

    def __init__(self, version: str, python: str, rules: Iterable[tuple[str, str, str]] = ()) -> None:
        """``rules``: plane, name and mode of each that is configured."""
        self.build = Gauge("gateway_build_info", "The version; always 1.", ("version", "python"))
        self.build.values = {(version, python): 1}
        self.rules = Gauge("gateway_rule_info", "The configured rules; always 1.", ("plane", "rule", "mode"))
        self.rules.values = dict.fromkeys(rules, 1)
        self.connections = Gauge("gateway_connections", "Connections of clients to this process.", over="sum")
        self.memory = Gauge("gateway_body_memory_bytes", "Memory reserved for bodies of objects.", over="sum")
        self.memory_limit = Gauge(
            "gateway_body_memory_limit_bytes", "The limit of the memory for bodies of objects.", over="sum"
        )
        self.workers = Gauge("gateway_workers", "Workers that serve; 1 without `--workers`.", values={(): 1})
        self.databases: Mapping[str | None, DatabaseGauges] = {None: DatabaseGauges()}

    def instruments(self) -> list[Gauge | Counter]:
        """Return all of them. With several databases, those about a database have its name."""
        own: list[Gauge | Counter] = [self.build, self.rules, self.connections, self.memory, self.memory_limit]
        own.append(self.workers)
        each = {name: one.instruments() for name, one in self.databases.items()}
        if None in each:
            return [*own, *each[None]]
        return [*own, *(_named(dict(zip(each, row, strict=True))) for row in zip(*each.values(), strict=True))]


def _named(instruments: Mapping[str | None, Gauge | Counter]) -> Gauge | Counter:
    """Return one instrument of all databases, with the name of the database of each value."""
    found = copy(next(iter(instruments.values())))
    found.labels = (*found.labels, "database")
    found.values = {
        (*labels, str(name)): value for name, one in instruments.items() for labels, value in one.values.items()
    }
    return found


TIMEOUT = 3.0
"""Seconds for each service; a scrape has ten, as a rule."""
REUSE = 1.0
"""Seconds for which an answer counts, however many ask."""
MOST_ENTRIES = 200_000
"""Entries of the record that are counted for one scrape; what is beyond, for the next."""


class GaugeReader:
    """Fills the gauges about one database."""

    def __init__(
        self,
        standing: DatabaseGauges,
        database: Database,
        *,
        now: Callable[[DatabaseGauges], None],
        services: Callable[[], Mapping[str, Awaitable[str]]],
        webhooks: Sequence[str] = (),
        alarms: Sequence[str] = (),
    ) -> None:
        """``now`` reads what is at hand; ``services`` are asked for their state, ``ok`` or another one.

        ``webhooks`` and ``alarms`` by their names.
        """
        self._standing, self._database, self._now, self._services = standing, database, now, services
        self._webhooks, self._alarms = webhooks, alarms
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        # Up to where entries of the record have been counted.
        self._counted: RecordPosition | None = None

    async def refresh(self, counted: Counted | None = None) -> Counted | None:
        """Bring all gauges up to date. Raises nothing: what cannot be told is left out.

        Continue to count the record where another worker has ended. Return where the next one is to continue.
        """
        loop = asyncio.get_running_loop()
        async with self._reading:
            if counted is not None:
                self._counted, self._standing.entries.values = counted.position, dict(counted.kinds)
            if loop.time() - self._read_at >= REUSE:
                await asyncio.gather(self._ask_services(), self._count())
                self._read_at = loop.time()
            self._now(self._standing)
            if self._counted is None:
                return None
            return Counted(self._counted, dict(self._standing.entries.values))

    async def _ask_services(self) -> None:
        asked = self._services()
        answers = await asyncio.gather(*(_is_up(state) for state in asked.values()))
        self._standing.up.values = {(name,): float(up) for name, up in zip(asked, answers, strict=True)}

    async def _count(self) -> None:
        found: Standing | None = None
        webhooks: Sequence[WebhookStatus] = ()
        alarms: dict[Labels, float] = {}
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(TIMEOUT):
                read = await overview.read_standing(self._database)
                webhooks = await list_statuses(self._database, self._webhooks) if self._webhooks else ()
                active = {one.name for one in await overview.list_alarms(self._database)} if self._alarms else set()
                found, alarms = read, {(name,): float(name in active) for name in self._alarms}
                await self._count_entries()
        standing = self._standing
        standing.show(found)
        known = webhooks if found is not None else ()
        standing.webhook_behind.values = {(one.name,): one.behind for one in known}
        standing.webhook_failing.values = {
            (one.name,): found.age(one.failing_since) for one in known if found is not None
        }
        standing.alarm.values = alarms

    async def _count_entries(self) -> None:
        if self._counted is None:
            self._counted = await overview.read_record_end(self._database)
            return
        kinds, self._counted = await overview.count_entries_after(self._database, self._counted, MOST_ENTRIES)
        for kind, number in kinds.items():
            self._standing.entries.add(kind, by=number)


async def _is_up(state: Awaitable[str]) -> bool:
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(TIMEOUT):
            return await state == "ok"
    return False
