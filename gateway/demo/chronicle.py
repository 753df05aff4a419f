"""A consistent past for ``gateway demo --story``: the writes of machines, and their outcomes.

A scene only says which machine wrote when, with which token. The rules of the gateway's own fencing decide the
refusals, the fences and the takeovers. Nothing here serves anything but the demo.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeAlias
from uuid import UUID

from gateway.db.traffic import TrafficKey, WriteCounts
from gateway.fencing.decision import Decision, Enforcement, Fence, Presented, decide
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.webhooks import alarms
from gateway.webhooks.alarms import AlarmRule, Cleared, Raised, Window

Columns: TypeAlias = dict[str, Any]
"""One row of ``fencing.intake``, by column; times are texts in ISO form."""

_TICK = timedelta(seconds=15)


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
        """Count accepted writes of other machines in that minute."""
        self.traffic[TrafficKey(minute, under.plane, under.name)].accepted += number

    def watched(self, name: str, rule: AlarmRule) -> None:
        """Have an alarm look at what was refused, as the gateway does, and put on record what it says."""
        refused = [entry for entry in self.entries if entry["kind"] == Kind.REJECTION and entry["enforced"]]
        window, raised = Window(), ""
        for index, entry in enumerate(refused):
            at = datetime.fromisoformat(entry["at"])
            window, changes = alarms.seen(rule, window, [at])
            until = at + timedelta(minutes=rule.minutes) + _TICK
            if index + 1 < len(refused):
                until = min(until, datetime.fromisoformat(refused[index + 1]["at"]))
            while at < until:
                window, ended = alarms.passed(rule, window, at)
                changes += [ended] if ended else []
                at += _TICK
            for change in changes:
                raised = self._alarm(name, rule, change, refused[: index + 1], raised)
        self.entries.sort(key=lambda entry: str(entry["at"]))

    def _alarm(self, name: str, rule: AlarmRule, change: Raised | Cleared, refused: list[Columns], raised: str) -> str:
        about = {"alarm": name, "prefix": "", "more_than": rule.more_than, "minutes": rule.minutes}
        if isinstance(change, Raised):
            counted = refused[-change.count :]
            named = {
                f"{column}s": [
                    {"name": name, "count": count}
                    for name, count in Counter(entry[column] for entry in counted).most_common(5)
                ]
                for column in ("resource", "holder", "caller")
            }
            details = {"count": change.count, "reached": _text(change.at), **named}
            details["rejections"] = [entry["id"] for entry in reversed(counted[-5:])]
            return self._record(Kind.ALARM_RAISED, change.at + _TICK / 30, details={**about, **details})
        details = {"count": change.total, "since": _text(change.since), "until": _text(change.at), "raised": raised}
        return self._record(Kind.ALARM_CLEARED, change.at + _TICK / 30, details={**about, **details})

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
