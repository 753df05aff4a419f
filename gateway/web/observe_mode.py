"""The page of observe mode: the configured rules, and whether each observing one can be enforced."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.config import toml
from gateway.config.databases import Shared
from gateway.db import search, traffic
from gateway.db.search import Group, Grouping
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import Filters, Kind
from gateway.web.record_lists import SPANS
from gateway.web.rendering import Place, Site


@dataclass(frozen=True, slots=True)
class ConfiguredRule:
    """A rule of a table or of a pattern of keys, its ``name``. If not ``configured``, the general mode applies.

    ``change`` is the whole section that enforces it: a rule without its ``resource`` would rename what it fences.
    """

    plane: str
    name: str
    mode: Enforcement
    change: str
    configured: bool = True


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
        *(("tables", rule.name, rule) for rule in config.tables),
        *(("objects", rule.match, rule) for rule in config.objects),
    ]
    return [
        ConfiguredRule(plane, name, rule.mode or config.fencing.mode, toml.entry(plane, rule, mode=Enforcement.ENFORCE))
        for plane, name, rule in named
    ]


def rules_with_traffic(config: Shared, found: Sequence[RuleTraffic]) -> list[ConfiguredTraffic]:
    """Return rules with their traffic: first rules with writes, in the given order, then rules without."""
    known = {(rule.plane, rule.name): rule for rule in configured_rules(config)}
    listed = []
    for one in found:
        own = known.pop((one.plane, one.rule), None)
        change = toml.table("fencing", config.fencing, mode=Enforcement.ENFORCE)
        general = ConfiguredRule(one.plane, one.rule, config.fencing.mode, change, configured=False)
        listed.append(ConfiguredTraffic(own or general, one))
    return [*listed, *(ConfiguredTraffic(rule, None) for rule in known.values())]


MINUTE = timedelta(minutes=1)
QUIET = timedelta(days=1)
"""A rule is safe to enforce if for so long no write would have been refused."""


class Readiness(StrEnum):
    """Whether a rule can be enforced."""

    SAFE = "safe"
    NOT_SAFE = "not-safe"
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
    *, writes: int, observed: int, last: datetime | None, since: datetime, now: datetime
) -> RuleReadiness:
    """Judge the span from ``since`` until ``now``: of its ``writes``, ``observed`` would have been refused.

    ``last`` is the time of the last one of these.
    """
    if writes == 0:
        return RuleReadiness(Readiness.UNKNOWN, None, 0, 0, None)
    if observed == 0 or last is None:
        return RuleReadiness(Readiness.SAFE, since, writes, 0, None)
    if now - last < QUIET:
        return RuleReadiness(Readiness.NOT_SAFE, None, writes, observed, last)
    return RuleReadiness(Readiness.SAFE, last, writes, observed, last)


_USUAL = "7d"
_MOST = 20
"""The most callers that are named for each rule."""


@dataclass(frozen=True, slots=True)
class ObservedRule:
    """An observing rule with its judgement, and the callers and reasons of writes that would have been refused.

    ``left_out``: at least so many of these writes have no entry. Their callers and reasons are not known.
    """

    rule: ConfiguredRule
    verdict: RuleReadiness
    left_out: int
    callers: Sequence[Group]
    reasons: Sequence[Group]


def routes(site: Site) -> list[Route]:
    """Build the route ``/ui/observe``."""

    async def show(request: Request) -> Response:
        span = request.query_params.get("span") or _USUAL
        if span not in SPANS:
            raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
        place = site.place
        now = await place.database.now()
        since = now - SPANS[span][1]
        listed = rules_with_traffic(place.config, await traffic.read_rules(place.database, since, now))
        judged = [await _judge(place, one, since, now) for one in listed if one.rule.mode is Enforcement.OBSERVE]
        return site.pages.render(
            request,
            "observe.html",
            judged=judged,
            enforced=[one.rule for one in listed if one.rule.mode is Enforcement.ENFORCE],
            general=place.config.fencing.mode,
            now=now,
            span=span,
            spans=SPANS,
        )

    return [Route("/ui/observe", show)]


async def _judge(place: Place, listed: ConfiguredTraffic, since: datetime, now: datetime) -> ObservedRule:
    """Judge a rule by its entries, and by its traffic where strangers are over their rate of entries."""
    rule, counts = listed.rule, listed.counts
    asked = Filters(kinds=(Kind.REJECTION,), plane=rule.plane, rule=rule.name, enforced=False, since=since)
    entries = (await search.count_entries(place.database, asked)).count
    newest = await search.find_page(place.database, asked, 1)
    observed, last = max(entries, counts.observed), newest[0].at if newest else None
    if observed > entries and listed.traffic is not None and listed.traffic.last_observed is not None:
        counted = min(now, listed.traffic.last_observed + MINUTE)
        last = max(last or counted, counted)
    passed = counts.accepted + counts.refused
    return ObservedRule(
        rule,
        rule_readiness(writes=passed + observed, observed=observed, last=last, since=since, now=now),
        observed - entries,
        await search.count_groups(place.database, asked, Grouping.CALLER, _MOST) if newest else (),
        await search.count_groups(place.database, asked, Grouping.REASON, _MOST) if newest else (),
    )
