"""The way from observe to enforce: what observes, and which writes it would refuse once it enforces.

The page of observe mode and ``gateway enforce`` show the same values. Rules observe by their mode, and a guard of a
table by the way it was installed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gateway.config import toml
from gateway.config.databases import DatabaseConfig, Shared
from gateway.db import guards, search, traffic
from gateway.db.database import Database
from gateway.db.search import Group, Grouping, WriterGroup
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import Filters, Kind

MINUTE = timedelta(minutes=1)
QUIET = timedelta(days=1)
"""A rule is ready to enforce if for so long no write would have been refused."""
MOST = 1000
"""The most writers, resources and callers of a rule that are counted."""
SHOWN = 20
"""The most writers, and the most resources, of a rule that people are shown."""
_CLAIMS = (Kind.RAISED, Kind.BARRIER, Kind.LEASE_GRANTED)
"""Entries of callers that show a token, or get one from the lease service."""


@dataclass(frozen=True, slots=True)
class ConfiguredRule:
    """A rule of a table or of a pattern of keys, its ``name``. If not ``configured``, the general mode applies.

    ``change`` is the whole section that enforces it: a rule without its ``resource`` would rename what it fences.
    ``template``: the template of its resources.
    """

    plane: str
    name: str
    mode: Enforcement
    change: str
    template: str
    configured: bool = True

    @property
    def claims(self) -> Filters | None:
        """Return the filters of the entries in which callers claim its resources; None if its names can be any."""
        literal, field, _ = self.template.partition("{")
        if not literal:
            return None
        return Filters(kinds=_CLAIMS, prefix=literal) if field else Filters(kinds=_CLAIMS, resource=literal)


@dataclass(frozen=True, slots=True)
class ConfiguredTraffic:
    """A rule, and the writes under it in a span; None if there were none."""

    rule: ConfiguredRule
    traffic: RuleTraffic | None

    @property
    def counts(self) -> WriteCounts:
        return WriteCounts() if self.traffic is None else self.traffic.counts


def configured_rules(config: Shared) -> list[ConfiguredRule]:
    """Return all rules of the configuration."""
    named = [
        *(("tables", rule.name, rule, f"{rule.name}/{{key}}") for rule in config.tables),
        *(("objects", rule.match, rule, f"s3/{rule.match}") for rule in config.objects),
    ]
    return [
        ConfiguredRule(
            plane,
            name,
            rule.mode or config.fencing.mode,
            toml.entry(plane, rule, mode=Enforcement.ENFORCE),
            rule.resource or usual,
        )
        for plane, name, rule, usual in named
    ]


def _general(config: Shared, plane: str, name: str) -> ConfiguredRule:
    """Return the rule of a table, or of keys, that the configuration does not name."""
    change = toml.table("fencing", config.fencing, mode=Enforcement.ENFORCE)
    template = f"{name}/{{key}}" if plane == "tables" else "s3/{bucket}/{key}"
    return ConfiguredRule(plane, name, config.fencing.mode, change, template, configured=False)


def rules_with_traffic(config: Shared, found: Sequence[RuleTraffic]) -> list[ConfiguredTraffic]:
    """Return rules with their traffic: first rules with writes, in the given order, then rules without."""
    known = {(rule.plane, rule.name): rule for rule in configured_rules(config)}
    listed = []
    for one in found:
        own = known.pop((one.plane, one.rule), None)
        listed.append(ConfiguredTraffic(own or _general(config, one.plane, one.rule), one))
    return [*listed, *(ConfiguredTraffic(rule, None) for rule in known.values())]


class Readiness(StrEnum):
    """Whether a rule can be enforced."""

    READY = "ready"
    NOT_READY = "not-ready"
    UNKNOWN = "unknown"
    """Nothing was written under the rule."""


@dataclass(frozen=True, slots=True)
class RuleReadiness:
    """The judgement of a rule. No write would have been refused from ``since`` on. ``writes`` are those of the span."""

    answer: Readiness
    since: datetime | None
    writes: int
    observed: int
    last: datetime | None


def rule_readiness(
    *, writes: int, claimed: bool, observed: int, last: datetime | None, since: datetime, now: datetime
) -> RuleReadiness:
    """Judge the span from ``since`` until ``now``: of its ``writes``, ``observed`` would have been refused.

    ``last`` is the time of the last one of these. ``claimed``: callers with tokens were at work at a table with a
    guard. Sessions that hold tokens pass a guard without being counted. The gateway counts all its own writes.
    """
    if observed == 0 or last is None:
        if writes == 0 and not claimed:
            return RuleReadiness(Readiness.UNKNOWN, None, 0, 0, None)
        return RuleReadiness(Readiness.READY, since, writes, 0, None)
    if now - last < QUIET:
        return RuleReadiness(Readiness.NOT_READY, None, writes, observed, last)
    return RuleReadiness(Readiness.READY, last, writes, observed, last)


@dataclass(frozen=True, slots=True)
class ObservedRule:
    """A rule that observes, or that enforces beside a guard that observes, with its judgement.

    ``guard``: the mode of the table's guard; None without one. ``left_out``: at least so many of the writes that would
    be refused have no entry. Their callers and reasons are not known. ``writers`` and ``resources`` are those of the
    others, the most frequent first. ``claiming``: callers that have claimed resources of the rule with a token.
    """

    rule: ConfiguredRule
    guard: Enforcement | None
    verdict: RuleReadiness
    left_out: int
    writers: Sequence[WriterGroup]
    resources: Sequence[Group]
    claiming: Sequence[Group]

    @property
    def ready(self) -> bool:
        return self.verdict.answer is Readiness.READY

    @property
    def refused_callers(self) -> int:
        """Return how many callers are among the writers that would be refused."""
        return len({one.caller for one in self.writers})

    @property
    def callers(self) -> int:
        """Return how many callers are on record: those that would be refused, and those that have shown a token."""
        return len({*(one.caller for one in self.writers), *(one.value for one in self.claiming)})

    @property
    def by_reason(self) -> dict[str, int]:
        """Return how many writers would be refused for each reason."""
        counts: dict[str, int] = {}
        for one in self.writers:
            counts[one.reason or ""] = counts.get(one.reason or "", 0) + 1
        return counts


async def observed_rules(
    config: DatabaseConfig, database: Database, since: datetime, now: datetime
) -> list[ObservedRule]:
    """Return what observes in one database, judged by its record and its traffic from ``since`` until ``now``.

    Raises ``GatewayError`` if the database does not answer, or has no schema.
    """
    counted = await traffic.read_rules(database, since, now)
    listed = rules_with_traffic(config, [*counted, *await _on_record_alone(database, counted, since)])
    found = await guards.list_guards(database, config.postgres.schemas)
    modes = {f"{one.schema}.{one.table}": Enforcement(one.arguments[0]) for one in found}
    return [
        await _judge(database, one, modes.get(one.rule.name) if one.rule.plane == "tables" else None, since, now)
        for one in (*listed, *_guarded_alone(config, listed, modes))
        if one.rule.mode is Enforcement.OBSERVE
        or (one.rule.plane == "tables" and modes.get(one.rule.name) is Enforcement.OBSERVE)
    ]


async def _on_record_alone(database: Database, counted: Sequence[RuleTraffic], since: datetime) -> list[RuleTraffic]:
    """Return rules with entries but without counts, which gateways write down some seconds later, or lose."""
    known = {(one.plane, one.rule) for one in counted}
    found: list[tuple[str, str]] = []
    for plane in ("tables", "objects"):
        asked = Filters(kinds=(Kind.REJECTION,), plane=plane, enforced=False, since=since)
        groups = await search.count_groups(database, asked, Grouping.RULE, MOST)
        found += [(plane, group.value) for group in groups if group.value is not None]
    return [RuleTraffic(*one, WriteCounts(), None, None, None) for one in found if one not in known]


def _guarded_alone(
    config: DatabaseConfig, listed: Sequence[ConfiguredTraffic], modes: dict[str, Enforcement]
) -> Iterator[ConfiguredTraffic]:
    """Yield the tables with a guard that no rule names, and that had no write through the gateway."""
    known = {one.rule.name for one in listed if one.rule.plane == "tables"}
    for name in modes:
        if name not in known:
            yield ConfiguredTraffic(_general(config, "tables", name), None)


async def _judge(
    database: Database, listed: ConfiguredTraffic, guard: Enforcement | None, since: datetime, now: datetime
) -> ObservedRule:
    """Judge a rule by its entries, and by its traffic where strangers are over their rate of entries."""
    rule, counts = listed.rule, listed.counts
    asked = Filters(kinds=(Kind.REJECTION,), plane=rule.plane, rule=rule.name, enforced=False, since=since)
    entries = (await search.count_entries(database, asked)).count
    newest = await search.find_page(database, asked, 1)
    observed, last = max(entries, counts.observed), newest[0].at if newest else None
    if observed > entries and listed.traffic is not None and listed.traffic.last_observed is not None:
        counted = min(now, listed.traffic.last_observed + MINUTE)
        last = max(last or counted, counted)
    claims = rule.claims
    claiming = (
        await search.count_groups(database, replace(claims, since=since), Grouping.CALLER, MOST) if claims else ()
    )
    passed = counts.accepted + counts.refused
    return ObservedRule(
        rule,
        guard,
        rule_readiness(
            writes=passed + observed,
            claimed=guard is not None and bool(claiming),
            observed=observed,
            last=last,
            since=since,
            now=now,
        ),
        observed - entries,
        await search.count_writers(database, asked, MOST) if newest else (),
        await search.count_groups(database, asked, Grouping.RESOURCE, MOST) if newest else (),
        claiming,
    )
