"""The switches for single requests: which requests a fault strikes, when in their life, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from tests.doubles.s3.messages import Head


class Action(StrEnum):
    """The fault that a request meets."""

    HOLD = "hold"  # wait for release
    CUT = "cut"  # close the connection without an answer
    FAIL = "fail"  # answer an error
    ERROR_IN_200 = "error-in-200"  # answer 200 with an error document
    CUT_BODY = "cut-body"  # close the connection within the answer's body
    REPEAT = "repeat"  # answer it, and deliver a copy at the release


class Moment(StrEnum):
    """When it happens."""

    ARRIVAL = "arrival"  # still on the network: even the signature's date is checked after it
    BEFORE = "before"  # the store has the whole request and has checked its head, but has not evaluated it
    AFTER = "after"  # it has been evaluated and, unless refused, applied


@dataclass(frozen=True, slots=True)
class Match:
    """Which requests are meant; None stands for any. `write_id` is that of the request, or of its upload."""

    method: str | None = None
    operation: str | None = None
    bucket: str | None = None
    key: str | None = None
    write_id: str | None = None

    def accepts(self, facts: Match) -> bool:
        """Whether a request with these facts is meant."""
        # Asked for each rule at each request, so it is written out.
        return (
            self.key in (None, facts.key)
            and self.method in (None, facts.method)
            and self.operation in (None, facts.operation)
            and self.bucket in (None, facts.bucket)
            and self.write_id in (None, facts.write_id)
        )


def facts_of(head: Head, write_id: str | None) -> Match:
    """Return the properties that a rule can match."""
    return Match(head.method, head.operation.value, head.bucket, head.key, write_id)


@dataclass(frozen=True, slots=True)
class Details:
    """The numbers of a fault: the answer's status and code, bytes let through before a cut."""

    status: int = 503
    code: str = "SlowDown"
    size: int = 1024


class Abandoned(Exception):
    """The double stops while the request is held: it never takes effect."""


class Rule:
    """One fault, and the handle on the requests it strikes.

    It strikes `times` requests (None: all of them) from the `nth` matching one on. `arrived` is set when the first of
    them is there, at the moment that the rule names. `finished` is set when the store is done with the first of them,
    answered or not. `statuses` are the store's answers, None for a request that it never evaluated.
    """

    def __init__(
        self,
        action: Action,
        at: Moment,
        match: Match,
        *,
        nth: int = 1,
        times: int | None = 1,
        details: Details | None = None,
    ) -> None:
        self.action = action
        self.at = at
        self.match = match
        self.details = details or Details()
        self.arrived = asyncio.Event()
        self.finished = asyncio.Event()
        self.statuses: list[int | None] = []
        self.struck = 0
        self._nth = nth
        self._times = times
        self._seen = 0
        self._released = asyncio.Event()
        self._abandoned = False
        self._copies: set[asyncio.Task[None]] = set()

    def release(self) -> None:
        """Let every held request go on, and every later one pass."""
        self._released.set()

    def abandon(self) -> None:
        """Drop every held request."""
        self._abandoned = True
        self._released.set()

    async def hold(self) -> None:
        """Wait for the release. Raises Abandoned."""
        self.arrived.set()
        await self._released.wait()
        if self._abandoned:
            raise Abandoned

    def repeat(self, deliver: Callable[[], Awaitable[int | None]]) -> None:
        """Deliver a copy at the release; `statuses` are what the store says about the copies."""

        async def later() -> None:
            with suppress(Abandoned):
                await self.hold()
                self.finish(await deliver())

        copy = asyncio.create_task(later())
        self._copies.add(copy)
        copy.add_done_callback(self._copies.discard)

    def notice(self, facts: Match) -> bool:
        """Count a request; whether the rule may strike it."""
        if not self.match.accepts(facts):
            return False
        self._seen += 1
        return self._seen >= self._nth and (self._times is None or self.struck < self._times)

    def finish(self, status: int | None) -> None:
        """Note how a struck request ended."""
        self.arrived.set()
        self.statuses.append(status)
        self.finished.set()


@dataclass(frozen=True, slots=True)
class Plan:
    """The rules that strike one request, at most one for each action and moment."""

    rules: Mapping[tuple[Action, Moment], Rule]

    def find(self, action: Action, at: Moment = Moment.AFTER) -> Rule | None:
        """The rule for this action at this moment."""
        return self.rules.get((action, at))

    async def hold(self, at: Moment) -> None:
        """Wait if the request is to be held at this moment. Raises Abandoned."""
        rule = self.find(Action.HOLD, at)
        if rule is not None:
            await rule.hold()

    def finish(self, status: int | None) -> None:
        """Tell every rule how the request ended, except for one that still has a copy of it."""
        for rule in self.rules.values():
            if rule.action is not Action.REPEAT:
                rule.finish(status)


class Faults:
    """The rules that are set."""

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._numbers: list[Rule] = []

    def add(self, rule: Rule) -> Rule:
        """Set a rule, behind those that are there."""
        self.rules.append(rule)
        self._numbers.append(rule)
        return rule

    def number(self, rule: Rule) -> int:
        """The name of a rule outside this process; it stays valid when the rule has been taken back."""
        return self._numbers.index(rule)

    def numbered(self, number: int) -> Rule:
        """The rule of that number. Raises IndexError."""
        return self._numbers[number]

    def remove(self, rule: Rule) -> None:
        """Take a rule back; what it holds is released."""
        if rule in self.rules:
            self.rules.remove(rule)
        rule.release()

    def clear(self) -> None:
        """Take every rule back."""
        for rule in list(self.rules):
            self.remove(rule)

    def abandon(self) -> None:
        """Drop every held request, because the double stops."""
        for rule in self.rules:
            rule.abandon()
        self.rules.clear()

    def plan(self, facts: Match) -> Plan:
        """Choose the rules for a request that has just come, and count it as struck by them."""
        chosen: dict[tuple[Action, Moment], Rule] = {}
        for rule in self.rules:
            if rule.notice(facts):
                chosen.setdefault((rule.action, rule.at), rule)
        for rule in chosen.values():
            rule.struck += 1
        return Plan(chosen)
