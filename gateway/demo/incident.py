"""The sample of ``gateway demo --story``: recorded events at this gateway in the last days.

It has a nightly job whose VM was stopped for a quarter of an hour, and an election that would not settle. It has a cron
job on three machines, an importer that is only observed, an issuer that lost its counter, and an operator with psql.
Around them is the work of ordinary days. All of it is invented, and the same each time, counted from now.

A scene only says which machine wrote when, with which token. The rules of the gateway's own fencing decide the
refusals, the fences and the takeovers.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import cos, pi
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

from gateway.db import record, traffic
from gateway.db.database import Database, Transaction
from gateway.db.traffic import TrafficKey, WriteCounts
from gateway.fencing.decision import Decision, Enforcement, Fence, Presented, decide
from gateway.fencing.record import Kind
from gateway.fencing.token import Token

Columns: TypeAlias = dict[str, Any]
"""One row of ``fencing.intake``, by column; times are texts in ISO form."""


@dataclass(frozen=True, slots=True)
class DemoRule:
    """The rule that a write came under: a table, or a pattern of keys."""

    plane: str
    name: str
    mode: Enforcement = Enforcement.ENFORCE


@dataclass(frozen=True, slots=True)
class Actor:
    """A writer: its own name, its proven identity, and its address."""

    holder: str
    caller: str
    client: str


@dataclass(frozen=True, slots=True)
class BarrierAct:
    """A new holder raises the fence, before it reads."""

    at: datetime
    resource: str
    token: Token
    by: Actor


@dataclass(frozen=True, slots=True)
class WriteAct:
    """A write arrives. ``size`` is in bytes; None where it is refused before its body is read."""

    at: datetime
    resource: str
    token: Token
    by: Actor
    under: DemoRule
    method: str
    target: str
    size: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedAct:
    """Any other recorded event: ``columns`` are those of the entry. ``meets`` is the fence of that time."""

    at: datetime
    kind: Kind
    resource: str | None
    columns: Mapping[str, Any] = field(default_factory=dict)
    meets: bool = False


Act: TypeAlias = BarrierAct | WriteAct | RecordedAct


class Chronicle:
    """Plays deeds in the order of their times. The results: ``entries``, ``fences``, ``traffic``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.entries: list[Columns] = []
        self.fences: dict[str, Fence] = {}
        self.traffic: defaultdict[TrafficKey, WriteCounts] = defaultdict(WriteCounts)

    def play(self, deeds: Iterable[Act]) -> None:
        """All there are: what is played later must not have happened earlier."""
        for deed in sorted(deeds, key=lambda deed: deed.at):
            match deed:
                case BarrierAct():
                    self._raise(Kind.BARRIER, deed.at, deed.resource, deed.token, deed.by)
                case WriteAct():
                    self._write(deed)
                case RecordedAct():
                    met = _met(self.fences.get(deed.resource or "")) if deed.meets else {}
                    self._record(deed.kind, deed.at, resource=deed.resource, **{**met, **deed.columns})
                    if deed.kind is Kind.REJECTION:
                        self._counts(deed.at, deed.columns["plane"], deed.columns["rule"]).add("refused", 1)
                    if deed.kind is Kind.EPOCH and deed.resource is not None:
                        token = Token(deed.columns["epoch"], deed.columns["value"])
                        self.fences[deed.resource] = Fence(deed.resource, token, None, deed.columns["caller"], deed.at)

    def accepted(self, minute: datetime, under: DemoRule, number: int) -> None:
        self.traffic[TrafficKey(minute, under.plane, under.name)].accepted += number

    def _counts(self, at: datetime, plane: str, rule: str) -> WriteCounts:
        return self.traffic[TrafficKey(at.replace(second=0, microsecond=0), plane, rule)]

    def _write(self, write: WriteAct) -> None:
        fence = self.fences.get(write.resource)
        decision = decide(fence, Presented(write.token, write.by.holder))
        counts = self._counts(write.at, write.under.plane, write.under.name)
        if decision.passes:
            counts.accepted += 1
            if decision is Decision.RAISED:
                self._raise(Kind.RAISED, write.at, write.resource, write.token, write.by)
            return
        enforced = write.under.mode is Enforcement.ENFORCE
        counts.add("refused" if enforced else "observed", 1)
        body = self._random.randbytes(write.size) if write.size is not None else None
        self._record(
            Kind.REJECTION,
            write.at,
            resource=write.resource,
            plane=write.under.plane,
            rule=write.under.name,
            reason=decision.value,
            enforced=enforced,
            **_acts(write.token, write.by),
            method=write.method,
            target=write.target,
            client=write.by.client,
            request_id=str(self._identifier()),
            payload_size=write.size,
            payload_sha256=None if body is None else hashlib.sha256(body).hexdigest(),
            **_met(fence),
        )

    def _raise(self, kind: Kind, at: datetime, resource: str, token: Token, by: Actor) -> None:
        """Return whether to record a raise. A barrier is on record always; the first write of a resource is not."""
        before = self.fences.get(resource)
        if before is not None and token < before.token:
            raise ValueError(f"{resource}: nobody raises {before.token} to {token}")
        if before is not None or kind is Kind.BARRIER:
            self._record(kind, at, resource=resource, **_acts(token, by), **_met(before))
        self.fences[resource] = Fence(resource, token, by.holder, by.caller, at)

    def _record(self, kind: Kind, at: datetime, **columns: Any) -> str:
        identifier = str(self._identifier())
        self.entries.append({"id": identifier, "at": _text(at), "kind": kind.value, **columns})
        return identifier

    def _identifier(self) -> UUID:
        return UUID(int=self._random.getrandbits(128), version=4)


def _acts(token: Token, by: Actor) -> Columns:
    return {"epoch": token.epoch, "value": token.value, "holder": by.holder, "caller": by.caller}


def _met(fence: Fence | None) -> Columns:
    if fence is None:
        return {}
    return {
        "fence_epoch": fence.token.epoch,
        "fence_value": fence.token.value,
        "fence_holder": fence.holder,
        "fence_caller": fence.caller,
        "fence_raised_at": _text(fence.raised_at),
    }


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


SEED = 33
BUCKET = "reports"

ACCOUNTS = DemoRule("tables", "public.accounts")
RUNS = DemoRule("tables", "public.runs")
CATALOGUE = DemoRule("tables", "public.catalogue")
JOBS = DemoRule("objects", f"{BUCKET}/jobs/{{job}}/**")
DATASETS = DemoRule("objects", f"{BUCKET}/datasets/{{dataset}}/**")
EVENTS = DemoRule("objects", f"{BUCKET}/events/{{producer}}/**")
LEGACY = DemoRule("objects", f"{BUCKET}/legacy/{{feed}}/**", Enforcement.OBSERVE)

BACKGROUND = {ACCOUNTS: 170, RUNS: 22, CATALOGUE: 9, JOBS: 31, DATASETS: 64, EVENTS: 45, LEGACY: 12}
"""Writes a minute on an ordinary day."""

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)

COLUMNS = (
    "id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, "
    "request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, "
    "details"
)


def compose(now: datetime) -> Chronicle:
    random = Random(SEED)  # noqa: S311 - a sample is to be the same each time
    chronicle = Chronicle(random)
    scenes = (nightly, elections, cron, observed, restored, beside)
    chronicle.play(deed for scene in scenes for deed in scene(now, random))
    _background(chronicle, now, random)
    return chronicle


async def write(database: Database) -> bool:
    """Put it on record where nothing is on record yet; whether it was."""
    if (await record.read_head(database)).position:
        return False
    chronicle = compose(await database.now())

    async def work(transaction: Transaction) -> None:
        await transaction.execute(
            f"INSERT INTO fencing.intake ({COLUMNS}) SELECT {COLUMNS} "  # noqa: S608 - names of columns, all ours
            "FROM jsonb_populate_recordset(NULL::fencing.intake, $1::text::jsonb)",
            json.dumps(chronicle.entries),
        )
        for fence in chronicle.fences.values():
            await transaction.execute(
                "INSERT INTO fencing.fence (resource, epoch, value, holder, caller, raised_at) "
                "VALUES ($1, $2, $3, $4, $5, $6)",
                *(fence.resource, fence.token.epoch, fence.token.value, fence.holder, fence.caller, fence.raised_at),
            )

    await database.run(work)
    await traffic.write(database, "sample", chronicle.traffic)
    await record.seal(database)
    return True


def nightly(now: datetime, _: Random) -> Iterator[Act]:
    """Play a job whose VM is stopped for a quarter of an hour, and goes on beside its successor."""
    resource, start = "job/nightly-report", now - 3 * HOUR
    first = Actor("batch-vm-1", "batch", "10.20.0.11")
    second = Actor("batch-vm-2", "batch", "10.20.0.12")
    yesterday = start - 24 * HOUR
    yield from _lease(resource, Token(0, 40), first, yesterday, until=yesterday + 14 * MINUTE)
    yield from _report(resource, Token(0, 40), first, yesterday, range(40))

    stopped = start + 4 * MINUTE
    yield from _lease(resource, Token(0, 41), first, start, until=stopped + 30 * SECOND, released=False)
    yield from _report(resource, Token(0, 41), first, start, range(11))

    taken = stopped + 31 * SECOND
    yield from _lease(resource, Token(0, 42), second, taken, until=taken + 17 * MINUTE)
    in_flight = {
        "bucket": BUCKET,
        "key": "jobs/nightly-report/part-0012.parquet",
        "write_id": "5c1f9d0e-2a31-4c0b-9d6e-7f5b0a4be012",
        "mutation": "put",
        "announced_at": (stopped - SECOND).isoformat(),
        "seen": True,
    }
    settled = {"plane": "objects", "epoch": 0, "value": 41, "details": in_flight}
    yield RecordedAct(taken + SECOND, Kind.SETTLED, resource, settled, meets=True)
    yield from _report(resource, Token(0, 42), second, taken + 2 * SECOND, range(40))

    woken = stopped + 14 * MINUTE
    yield from _report(resource, Token(0, 41), first, woken, range(12, 17), pace=0.4 * SECOND)
    key = "/reports/jobs/nightly-report/_IN_PROGRESS"
    yield WriteAct(woken + 3 * SECOND, resource, Token(0, 41), first, JOBS, "DELETE", key)


def elections(now: datetime, random: Random) -> Iterator[Act]:
    """Play an unstable network: each elected leader is cut off before it knows, and writes on for a while."""
    resource, moment = "dataset/events", now - 52 * MINUTE
    machines = [Actor(f"compactor-{letter}", "compactor", f"10.20.1.{20 + n}") for n, letter in enumerate("abcdef")]
    token, leader = 500, machines[0]
    yield BarrierAct(moment - 3 * MINUTE, resource, Token(0, token), leader)
    for _ in range(26):
        token, leader = token + 1, random.choice([one for one in machines if one is not leader])
        reign = random.uniform(12, 28) * SECOND
        yield from _lease(resource, Token(0, token), leader, moment, until=moment + reign, released=False)
        late = random.choice((0, 2, 4, 7, 11))
        for n in range(4 + late):
            at = moment + SECOND + n * reign / 4.2
            name = f"part-{token}-{n:02}.parquet"
            if n % 4 == 3:
                target = "/v1/tables/catalogue?dataset=eq.events"
                yield WriteAct(at, resource, Token(0, token), leader, CATALOGUE, "PATCH", target, 64)
            else:
                target = f"/reports/datasets/events/{name}"
                yield WriteAct(
                    at, resource, Token(0, token), leader, DATASETS, "PUT", target, random.randint(8_000, 90_000)
                )
        moment += reign + 300 * timedelta(milliseconds=1)
    token += 1
    yield from _lease(resource, Token(0, token), machines[1], moment, until=moment + 6 * MINUTE)


def cron(now: datetime, random: Random) -> Iterator[Act]:
    """Play a script that takes the hour for its token. The first one is right; the others differ by name."""
    resource = "job/rotate-logs"
    hour = now.replace(minute=0, second=0, microsecond=0)
    machines = [Actor(f"web-{n}", "cron", f"10.20.2.{n}") for n in (1, 2, 3)]
    for back in range(11, -1, -1):
        start = hour - back * HOUR
        if start > now - MINUTE:
            continue
        token = Token(0, int(start.timestamp()) // 3600)
        for n, machine in enumerate(random.sample(machines, 3)):
            at = start + (n * 1.7 + random.random()) * SECOND
            target = f"/reports/jobs/rotate-logs/{start:%Y-%m-%dT%H}.tar.zst"
            yield WriteAct(at, resource, token, machine, JOBS, "PUT", target, 40_000 + 13 * back)


def observed(now: datetime, random: Random) -> Iterator[Act]:
    """Play an importer that was replaced three days ago. The old one ran beside it until yesterday, unnoticed."""
    new, old = Actor("importer-v2", "importer", "10.20.3.8"), Actor("importer-v1", "importer-old", "10.20.3.5")
    for n, feed in enumerate(("prices", "stock")):
        resource, since = f"feed/{feed}", now - 70 * HOUR + n * HOUR
        yield BarrierAct(since - 20 * HOUR, resource, Token(0, 7), old)
        yield BarrierAct(since, resource, Token(0, 8), new)
        moment = since + 20 * MINUTE
        while moment < now - 20 * HOUR:
            target = f"/reports/legacy/{feed}/{moment:%Y%m%d-%H%M}.csv"
            yield WriteAct(moment, resource, Token(0, 7), old, LEGACY, "PUT", target, random.randint(2_000, 9_000))
            moment += random.uniform(70, 190) * MINUTE


def restored(now: datetime, _: Random) -> Iterator[Act]:
    """Play an etcd that is restored from a backup, and counts from there. An administrator starts a new epoch."""
    resource, restored_at = "producer/orders", now - 6 * HOUR - 10 * MINUTE
    first, second = Actor("producer-1", "producer", "10.20.4.1"), Actor("producer-2", "producer", "10.20.4.2")
    yield BarrierAct(restored_at - 9 * HOUR, resource, Token(0, 88412), first)
    segment = "/reports/events/orders/segment-{}"
    for n in range(5):
        at = restored_at + n * 20 * SECOND
        yield WriteAct(at, resource, Token(0, 61007), second, EVENTS, "PUT", segment.format(9001), 18_000)
    bumped = restored_at + 12 * MINUTE
    details = {
        "reason": "etcd restored from the backup of last night",
        "before": {"epoch": 0, "value": 88412},
        "leases_ended": 0,
    }
    yield RecordedAct(
        bumped, Kind.EPOCH, resource, {"epoch": 1, "value": 0, "caller": "ops", "details": details}, meets=True
    )
    yield BarrierAct(bumped + 40 * SECOND, resource, Token(1, 61011), second)
    for n in range(3):
        at = bumped + 90 * SECOND + n * 5 * SECOND
        yield WriteAct(at, resource, Token(0, 88412), first, EVENTS, "PUT", segment.format(9002), 18_000)


def beside(now: datetime, _: Random) -> Iterator[Act]:
    """Play an operator with psql. The guard refuses the change, is switched off, and the change is found."""
    refused, found = now - 97 * MINUTE, now - 92 * MINUTE
    guard = {
        "plane": "tables",
        "rule": ACCOUNTS.name,
        "reason": "token-required",
        "enforced": True,
        "caller": "role:reporting",
        "target": ACCOUNTS.name,
        "client": "10.20.9.40",
        "details": {"by": "guard", "program": "psql", "statement": "UPDATE accounts SET"},
    }
    change = {
        "plane": "tables",
        "rule": ACCOUNTS.name,
        "reason": "row-changed",
        "target": ACCOUNTS.name,
        "details": {"found_by": "sweep", "rows": 1, "keys": [["3"]]},
    }
    for at in (refused - MINUTE, refused):
        yield RecordedAct(at, Kind.REJECTION, "public.accounts/3", guard)
    yield RecordedAct(found, Kind.BYPASS, "public.accounts/3", change, meets=True)


def _lease(
    resource: str, token: Token, by: Actor, at: datetime, *, until: datetime, released: bool = True
) -> Iterator[Act]:
    """Play a lock of the lease service, from the grant to its end. Its holder raises the fence."""
    whose = {"epoch": token.epoch, "value": token.value, "holder": by.holder, "caller": by.caller}
    known = {"mode": "exclusive", "acquired_at": at.isoformat()}
    yield RecordedAct(at, Kind.LEASE_GRANTED, resource, {**whose, "details": {**known, "ttl": 30}})
    yield BarrierAct(at + 0.05 * SECOND, resource, token, by)
    if released:
        yield RecordedAct(until, Kind.LEASE_RELEASED, resource, {**whose, "details": known})
    else:
        expired = {**known, "expires_at": until.isoformat()}
        yield RecordedAct(until + 0.2 * SECOND, Kind.LEASE_EXPIRED, resource, {**whose, "details": expired})


def _report(
    resource: str, token: Token, by: Actor, start: datetime, parts: range, pace: timedelta = 20 * SECOND
) -> Iterator[Act]:
    """Play the nightly job: a part as an object, then its progress in the table."""
    for n, part in enumerate(parts, start=1):
        key = f"/reports/jobs/nightly-report/part-{part:04}.parquet"
        yield WriteAct(start + n * pace, resource, token, by, JOBS, "PUT", key, 48_000 + 31 * part)
        progress = "/v1/tables/runs?job=eq.nightly-report"
        yield WriteAct(start + n * pace + pace / 4, resource, token, by, RUNS, "PATCH", progress, 52)


def _background(chronicle: Chronicle, now: datetime, random: Random) -> None:
    """Two days of other people's writes, more of them by day than at night."""
    last = now.replace(second=0, microsecond=0)
    for back in range(48 * 60):
        minute = last - back * MINUTE
        by_day = 1 - 0.6 * cos(2 * pi * (minute.hour + minute.minute / 60 - 3) / 24)
        for under, usual in BACKGROUND.items():
            chronicle.accepted(minute, under, round(usual * by_day * random.uniform(0.8, 1.2)))
