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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import cos, pi
from operator import itemgetter
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


class Chronicle:
    """Plays deeds in the order of their times. The results: ``entries``, ``fences``, ``traffic``."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._deeds: list[tuple[datetime, Callable[[], None]]] = []
        self.entries: list[Columns] = []
        self.fences: dict[str, Fence] = {}
        self.traffic: defaultdict[TrafficKey, WriteCounts] = defaultdict(WriteCounts)

    def play(self) -> None:
        """All there are: what is played later must not have happened earlier."""
        deeds, self._deeds = sorted(self._deeds, key=itemgetter(0)), []
        for _, deed in deeds:
            deed()

    def barrier(self, at: datetime, resource: str, token: Token, by: Actor) -> None:
        """Let a new holder raise the fence, before it reads."""
        self._deeds.append((at, partial(self._raise, Kind.BARRIER, at, resource, token, by)))

    def write(
        self,
        at: datetime,
        resource: str,
        token: Token,
        by: Actor,
        under: DemoRule,
        method: str,
        target: str,
        size: int | None = None,
    ) -> None:
        """Let a write arrive. ``size`` is in bytes; None where it is refused before its body is read."""

        def arrive() -> None:
            fence = self.fences.get(resource)
            decision = decide(fence, Presented(token, by.holder))
            counts = self._counts(at, under.plane, under.name)
            if decision.passes:
                counts.accepted += 1
                if decision is Decision.RAISED:
                    self._raise(Kind.RAISED, at, resource, token, by)
                return
            enforced = under.mode is Enforcement.ENFORCE
            counts.add("refused" if enforced else "observed", 1)
            body = self._random.randbytes(size) if size is not None else None
            self._record(
                Kind.REJECTION,
                at,
                resource=resource,
                plane=under.plane,
                rule=under.name,
                reason=decision.value,
                enforced=enforced,
                **_acts(token, by),
                method=method,
                target=target,
                client=by.client,
                request_id=str(self._identifier()),
                payload_size=size,
                payload_sha256=None if body is None else hashlib.sha256(body).hexdigest(),
                **_met(fence),
            )

        self._deeds.append((at, arrive))

    def note(self, at: datetime, kind: Kind, resource: str, columns: Mapping[str, Any], *, meets: bool = False) -> None:
        """Let anything else be recorded: ``columns`` are those of the entry. ``meets``: with the fence of that time."""

        def happen() -> None:
            met = _met(self.fences.get(resource)) if meets else {}
            self._record(kind, at, resource=resource, **{**met, **columns})
            if kind is Kind.REJECTION:
                self._counts(at, columns["plane"], columns["rule"]).add("refused", 1)
            if kind is Kind.EPOCH:
                token = Token(columns["epoch"], columns["value"])
                self.fences[resource] = Fence(resource, token, None, columns["caller"], at)

        self._deeds.append((at, happen))

    def accepted(self, minute: datetime, under: DemoRule, number: int) -> None:
        self.traffic[TrafficKey(minute, under.plane, under.name)].accepted += number

    def _counts(self, at: datetime, plane: str, rule: str) -> WriteCounts:
        return self.traffic[TrafficKey(at.replace(second=0, microsecond=0), plane, rule)]

    def _raise(self, kind: Kind, at: datetime, resource: str, token: Token, by: Actor) -> None:
        """Raise the fence. A barrier is on record always; the first write of a resource is not."""
        before = self.fences.get(resource)
        if before is not None and token < before.token:
            raise ValueError(f"{resource}: nobody raises {before.token} to {token}")
        if before is not None or kind is Kind.BARRIER:
            self._record(kind, at, resource=resource, **_acts(token, by), **_met(before))
        self.fences[resource] = Fence(resource, token, by.holder, by.caller, at)

    def _record(self, kind: Kind, at: datetime, **columns: Any) -> None:
        self.entries.append({"id": str(self._identifier()), "at": _text(at), "kind": kind.value, **columns})

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
    for scene in scenes:
        scene(chronicle, now, random)
    chronicle.play()
    _background(chronicle, now, random)
    return chronicle


async def write(database: Database) -> bool:
    """Put it on record where nothing is on record yet; whether it was."""
    if (await record.read_head(database)).position:
        return False
    # From a whole minute on, so that pictures of it have the same times.
    chronicle = compose((await database.now()).replace(second=0, microsecond=0))

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


def nightly(past: Chronicle, now: datetime, _: Random) -> None:
    """Play a job whose VM is stopped for a quarter of an hour, and goes on beside its successor."""
    resource, start = "job/nightly-report", now - 3 * HOUR
    first = Actor("batch-vm-1", "batch", "10.20.0.11")
    second = Actor("batch-vm-2", "batch", "10.20.0.12")
    yesterday = start - 24 * HOUR
    _lease(past, resource, Token(0, 40), first, yesterday, until=yesterday + 14 * MINUTE)
    _report(past, resource, Token(0, 40), first, yesterday, range(40))

    stopped = start + 4 * MINUTE
    _lease(past, resource, Token(0, 41), first, start, until=stopped + 30 * SECOND, released=False)
    _report(past, resource, Token(0, 41), first, start, range(11))

    taken = stopped + 31 * SECOND
    _lease(past, resource, Token(0, 42), second, taken, until=taken + 17 * MINUTE)
    in_flight = {
        "bucket": BUCKET,
        "key": "jobs/nightly-report/part-0012.parquet",
        "write_id": "5c1f9d0e-2a31-4c0b-9d6e-7f5b0a4be012",
        "mutation": "put",
        "announced_at": (stopped - SECOND).isoformat(),
        "seen": True,
    }
    settled = {"plane": "objects", "epoch": 0, "value": 41, "details": in_flight}
    past.note(taken + SECOND, Kind.SETTLED, resource, settled, meets=True)
    _report(past, resource, Token(0, 42), second, taken + 2 * SECOND, range(40))

    woken = stopped + 14 * MINUTE
    _report(past, resource, Token(0, 41), first, woken, range(12, 17), pace=0.4 * SECOND)
    key = "/reports/jobs/nightly-report/_IN_PROGRESS"
    past.write(woken + 3 * SECOND, resource, Token(0, 41), first, JOBS, "DELETE", key)


def elections(past: Chronicle, now: datetime, random: Random) -> None:
    """Play an unstable network: each elected leader is cut off before it knows, and writes on for a while."""
    resource, moment = "dataset/events", now - 52 * MINUTE
    machines = [Actor(f"compactor-{letter}", "compactor", f"10.20.1.{20 + n}") for n, letter in enumerate("abcdef")]
    token, leader = 500, machines[0]
    past.barrier(moment - 3 * MINUTE, resource, Token(0, token), leader)
    for _ in range(26):
        token, leader = token + 1, random.choice([one for one in machines if one is not leader])
        reign = random.uniform(12, 28) * SECOND
        _lease(past, resource, Token(0, token), leader, moment, until=moment + reign, released=False)
        late = random.choice((0, 2, 4, 7, 11))
        for n in range(4 + late):
            at = moment + SECOND + n * reign / 4.2
            name = f"part-{token}-{n:02}.parquet"
            if n % 4 == 3:
                target = "/v1/tables/catalogue?dataset=eq.events"
                past.write(at, resource, Token(0, token), leader, CATALOGUE, "PATCH", target, 64)
            else:
                target = f"/reports/datasets/events/{name}"
                past.write(
                    at, resource, Token(0, token), leader, DATASETS, "PUT", target, random.randint(8_000, 90_000)
                )
        moment += reign + 300 * timedelta(milliseconds=1)
    token += 1
    _lease(past, resource, Token(0, token), machines[1], moment, until=moment + 6 * MINUTE)


def cron(past: Chronicle, now: datetime, random: Random) -> None:
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
            past.write(at, resource, token, machine, JOBS, "PUT", target, 40_000 + 13 * back)


def observed(past: Chronicle, now: datetime, random: Random) -> None:
    """Play an importer that was replaced three days ago. The old one ran beside it until yesterday, unnoticed."""
    new, old = Actor("importer-v2", "importer", "10.20.3.8"), Actor("importer-v1", "importer-old", "10.20.3.5")
    for n, feed in enumerate(("prices", "stock")):
        resource, since = f"feed/{feed}", now - 70 * HOUR + n * HOUR
        past.barrier(since - 20 * HOUR, resource, Token(0, 7), old)
        past.barrier(since, resource, Token(0, 8), new)
        moment = since + 20 * MINUTE
        while moment < now - 20 * HOUR:
            target = f"/reports/legacy/{feed}/{moment:%Y%m%d-%H%M}.csv"
            past.write(moment, resource, Token(0, 7), old, LEGACY, "PUT", target, random.randint(2_000, 9_000))
            moment += random.uniform(70, 190) * MINUTE


def restored(past: Chronicle, now: datetime, _: Random) -> None:
    """Play an etcd that is restored from a backup, and counts from there. An administrator starts a new epoch."""
    resource, restored_at = "producer/orders", now - 6 * HOUR - 10 * MINUTE
    first, second = Actor("producer-1", "producer", "10.20.4.1"), Actor("producer-2", "producer", "10.20.4.2")
    past.barrier(restored_at - 9 * HOUR, resource, Token(0, 88412), first)
    segment = "/reports/events/orders/segment-{}"
    for n in range(5):
        at = restored_at + n * 20 * SECOND
        past.write(at, resource, Token(0, 61007), second, EVENTS, "PUT", segment.format(9001), 18_000)
    bumped = restored_at + 12 * MINUTE
    details = {
        "reason": "etcd restored from the backup of last night",
        "before": {"epoch": 0, "value": 88412},
        "leases_ended": 0,
    }
    past.note(bumped, Kind.EPOCH, resource, {"epoch": 1, "value": 0, "caller": "ops", "details": details}, meets=True)
    past.barrier(bumped + 40 * SECOND, resource, Token(1, 61011), second)
    for n in range(3):
        at = bumped + 90 * SECOND + n * 5 * SECOND
        past.write(at, resource, Token(0, 88412), first, EVENTS, "PUT", segment.format(9002), 18_000)


def beside(past: Chronicle, now: datetime, _: Random) -> None:
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
        past.note(at, Kind.REJECTION, "public.accounts/3", guard)
    past.note(found, Kind.BYPASS, "public.accounts/3", change, meets=True)


def _lease(
    past: Chronicle, resource: str, token: Token, by: Actor, at: datetime, *, until: datetime, released: bool = True
) -> None:
    """Play a lock of the lease service, from the grant to its end. Its holder raises the fence."""
    whose = _acts(token, by)
    known = {"mode": "exclusive", "acquired_at": at.isoformat()}
    past.note(at, Kind.LEASE_GRANTED, resource, {**whose, "details": {**known, "ttl": 30}})
    past.barrier(at + 0.05 * SECOND, resource, token, by)
    if released:
        past.note(until, Kind.LEASE_RELEASED, resource, {**whose, "details": known})
    else:
        expired = {**known, "expires_at": until.isoformat()}
        past.note(until + 0.2 * SECOND, Kind.LEASE_EXPIRED, resource, {**whose, "details": expired})


def _report(
    past: Chronicle,
    resource: str,
    token: Token,
    by: Actor,
    start: datetime,
    parts: range,
    pace: timedelta = 20 * SECOND,
) -> None:
    """Play the nightly job: a part as an object, then its progress in the table."""
    for n, part in enumerate(parts, start=1):
        key = f"/reports/jobs/nightly-report/part-{part:04}.parquet"
        past.write(start + n * pace, resource, token, by, JOBS, "PUT", key, 48_000 + 31 * part)
        progress = "/v1/tables/runs?job=eq.nightly-report"
        past.write(start + n * pace + pace / 4, resource, token, by, RUNS, "PATCH", progress, 52)


def _background(chronicle: Chronicle, now: datetime, random: Random) -> None:
    """Two days of other people's writes, more of them by day than at night."""
    last = now.replace(second=0, microsecond=0)
    for back in range(48 * 60):
        minute = last - back * MINUTE
        by_day = 1 - 0.6 * cos(2 * pi * (minute.hour + minute.minute / 60 - 3) / 24)
        for under, usual in BACKGROUND.items():
            chronicle.accepted(minute, under, round(usual * by_day * random.uniform(0.8, 1.2)))
