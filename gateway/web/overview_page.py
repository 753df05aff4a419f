"""The overview: the health of the gateway, and how many writes were refused where."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.db import incidents, overview, search, traffic, webhooks
from gateway.db.incidents import FoundIncidents, Notable
from gateway.db.overview import ActiveAlarm, StoreStatus
from gateway.db.search import DenialGroup
from gateway.db.traffic import RuleTraffic, TrafficBucket, WriteCounts
from gateway.db.webhooks import WebhookStatus as Delivery
from gateway.errors import Denied, RequestMalformed, Unavailable
from gateway.fencing.incident import ZOMBIE, RefusalCounts, State, unresolved_first
from gateway.fencing.record import Filters, Kind
from gateway.text import machine_time
from gateway.web import chart
from gateway.web.chart import Chart, Step
from gateway.web.observe_mode import ConfiguredTraffic, rules_with_traffic
from gateway.web.record_lists import SPANS
from gateway.web.places import Journal
from gateway.web.rendering import Site, address
from gateway.web.verdict import Facts, Happened, assess

_STEPS = {
    "1h": timedelta(minutes=1),
    "24h": timedelta(minutes=15),
    "7d": timedelta(hours=2),
    "30d": timedelta(hours=8),
}
"""The length of one step of the chart, for each span."""

_USUAL = "24h"
_PERIODS = {"1h": "the last hour", "24h": "the last 24 hours", "7d": "the last 7 days", "30d": "the last 30 days"}
_MOST = 8
"""The most incidents, and the most callers, that are named."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the overview reads from the database, from ``since`` until ``until``, which is soon.

    ``series`` are the accepted writes, which are counted. All refusals are from the record.
    """

    since: datetime
    until: datetime
    standing: StoreStatus
    series: Sequence[TrafficBucket]
    refusals: RefusalCounts
    incidents: FoundIncidents
    notable: Mapping[Kind, Notable]
    denied: Sequence[DenialGroup]
    rules: Sequence[ConfiguredTraffic]
    deliveries: Sequence[Delivery]
    alarms: Mapping[str, ActiveAlarm]

    @property
    def accepted(self) -> int:
        return sum(bucket.counts.accepted for bucket in self.series)

    @property
    def going_on(self) -> int:
        """Return how many incidents are going on, acknowledged or not."""
        return sum(one.state(self.standing.now) is not State.RESOLVED for one in self.incidents.incidents)


def steps(until: datetime, span: str) -> tuple[datetime, datetime, int]:
    """Return the beginning, the end and the number of steps of a span's chart. The last step contains ``until``."""
    step = _STEPS[span]
    since_epoch = (until - datetime.min.replace(tzinfo=UTC)) // step + 1
    end = datetime.min.replace(tzinfo=UTC) + since_epoch * step
    count = SPANS[span][1] // step
    return end - count * step, end, count


def routes(site: Site) -> list[Route]:
    """Build the route ``/ui/``."""

    async def show(request: Request) -> Response:
        span = request.query_params.get("span") or _USUAL
        if span not in SPANS:
            raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
        health = await site.place.health()
        try:
            found = await _look(site, span) if health.get("postgres") == "ok" else None
        except Unavailable:
            found = None
            health = {**health, "postgres": "unreachable"}
        journal = None if found is None else await site.place.journal()
        return site.pages.render(
            request,
            "overview.html",
            503 if found is None else 200,
            found=found,
            findings=assess(_facts(site, found, health, journal, span)),
            rows=() if found is None else chart_rows(found),
            charts=() if found is None else _charts(found),
            incidents=() if found is None else unresolved_first(found.incidents.incidents, found.standing.now)[:_MOST],
            sparks=None if found is None else lambda one: chart.sparks(one.steps, found.since, found.until),
            span=span,
            spans=SPANS,
            period=_PERIODS[span],
            health=health,
            journal=journal,
            buckets=site.place.buckets(),
            alarms=site.place.config.alarms,
            looked_at=incidents.LOOKED_AT,
            denials_looked_at=overview.LOOKED_AT,
        )

    return [Route("/ui/", show)]


async def _look(site: Site, span: str) -> Overview:
    database = site.place.database
    now = await database.now()
    since, until, count = steps(now, span)
    refusals = await incidents.count_refusals(database, since, until, _STEPS[span])
    found = await incidents.find_incidents(database, Filters(since=since), now, step=(until - since) / chart.SPARKS)
    return Overview(
        since,
        until,
        await overview.read_status(database),
        await traffic.read_series(database, since, until, count),
        refusals,
        found,
        await incidents.count_notable(database, since),
        await search.count_denials(database, since, _MOST),
        rules_with_traffic(site.place.config, with_refusals(await traffic.read_rules(database, since, until), refusals)),
        await webhooks.list_statuses(database, [webhook.name for webhook in site.place.config.webhooks]),
        {alarm.name: alarm for alarm in await overview.list_alarms(database)},
    )


def with_refusals(rules: Sequence[RuleTraffic], refusals: RefusalCounts) -> list[RuleTraffic]:
    """Return the traffic of rules with the refusals on record in place of those that gateways counted.

    A denial is under no rule, because no rule has seen the request.
    """
    counts = {(one.plane, one.rule): WriteCounts(one.counts.accepted) for one in rules}
    last: dict[tuple[str, str, bool], datetime] = {}
    for one in refusals.counts:
        if one.reason == Denied.code or one.plane is None:
            continue
        plane, rule = one.plane, one.rule or ""
        counts.setdefault((plane, rule), WriteCounts()).add("observed" if one.passed else "refused", one.count)
        last[plane, rule, one.passed] = max(one.last, last.get((plane, rule, one.passed), one.last))
    accepted = {(one.plane, one.rule): one.last_accepted for one in rules}
    merged = [
        RuleTraffic(*key, count, accepted.get(key), last.get((*key, False)), last.get((*key, True)))
        for key, count in counts.items()
    ]
    return sorted(merged, key=lambda one: (-one.counts.refused, -one.counts.observed, -one.counts.accepted))


@dataclass(frozen=True, slots=True)
class ChartRow:
    """One step of the charts: how many writes were accepted, refused, and passed. ``partial``: the step is not over."""

    since: datetime
    until: datetime
    accepted: int
    zombies: int
    others: int
    passed: int
    partial: bool


def chart_rows(found: Overview) -> list[ChartRow]:
    """Return the steps of the charts."""
    zombies, others, passed = Counter[datetime](), Counter[datetime](), Counter[datetime]()
    for one in found.refusals.counts:
        (passed if one.passed else zombies if one.reason == ZOMBIE else others)[one.step] += one.count
    ends = [*(bucket.at for bucket in found.series[1:]), found.until]
    return [
        ChartRow(
            bucket.at,
            end,
            bucket.counts.accepted,
            zombies[bucket.at],
            others[bucket.at],
            passed[bucket.at],
            end > found.standing.now,
        )
        for bucket, end in zip(found.series, ends, strict=True)
    ]


def _charts(found: Overview) -> tuple[Chart, Chart]:
    """Return the charts of accepted and of refused writes. Few refusals are visible on a scale of their own."""
    rows, now = chart_rows(found), found.standing.now
    return (
        chart.draw(
            [
                Step(one.since, one.until, [("accepted", "accepted", one.accepted)], step_address("/ui/events", one))
                for one in rows
            ],
            now,
        ),
        chart.draw(
            [
                Step(
                    one.since,
                    one.until,
                    [
                        ("zombies", "refused of zombies", one.zombies),
                        ("others", "refused for other reasons", one.others),
                        ("observed", "passed, would be refused", one.passed),
                    ],
                    step_address("/ui/rejections", one),
                )
                for one in rows
            ],
            now,
        ),
    )


def step_address(path: str, row: ChartRow) -> str:
    """Return the address of a list of the record that has the time of one step."""
    return address(path, since=machine_time(row.since), until=machine_time(row.until))


def _facts(site: Site, found: Overview | None, health: Mapping[str, str], journal: Journal | None, span: str) -> Facts:
    buckets = {
        bucket: next(iter(state.missing.values()), "its probe failed")
        for bucket, state in site.place.buckets().items()
        if not state.writable
    }
    if found is None:
        moment = datetime.min.replace(tzinfo=UTC)
        return Facts(moment, moment, _PERIODS[span], health, buckets=buckets)
    trouble = None if journal is None or journal.mode == "off" or journal.state == "ok" else journal.state
    status, refusals = found.standing, found.refusals
    behind = {one.name: one.failing_since or one.paused_at for one in found.deliveries if one.paused_at or one.failures}
    return Facts(
        now=status.now,
        since=found.since,
        period=_PERIODS[span],
        health=health,
        journal=trouble,
        incidents=found.incidents.incidents,
        bypasses=_happened(found.notable.get(Kind.BYPASS)),
        guard=_happened(found.notable.get(Kind.GUARD_REFUSED)),
        buckets=buckets,
        pending=status.pending,
        pending_since=status.pending_since,
        unsealed=status.unsealed,
        unsealed_since=status.unsealed_since,
        webhooks=behind,
        alarms={name: alarm.since for name, alarm in found.alarms.items()},
        zombies=refusals.zombies,
        refused=refusals.zombies + refusals.others,
        passed=refusals.passed,
        last_refused=refusals.last,
        accepted=found.accepted,
    )


def _happened(found: Notable | None) -> Happened | None:
    return None if found is None else Happened(found.count, found.last, found.resource or found.target, found.caller)
