"""The overview: the health of the gateway, and how many writes were refused where."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.health_and_metrics import BucketView, JournalView
from gateway.config.rules import Alarm
from gateway.db import incidents, overview, search, traffic, webhooks
from gateway.db.incidents import FoundIncidents
from gateway.db.overview import ActiveAlarm
from gateway.db.search import DenialGroup
from gateway.db.traffic import RuleTraffic, TrafficBucket, WriteCounts
from gateway.db.webhooks import WebhookStatus as Delivery
from gateway.enforcement import ConfiguredTraffic, rules_with_traffic
from gateway.errors import Denied, GatewayError, RequestMalformed, SqlError, Unavailable
from gateway.fencing.incident import Notable, RefusalCounts, State
from gateway.fencing.record import Filters, Kind
from gateway.findings import Standing
from gateway.text import machine_time
from gateway.web import chart
from gateway.web.chart import Chart, Step
from gateway.web.incident_pages import IncidentRow, in_order
from gateway.web.overview_verdict import Facts, assess
from gateway.web.record_lists import SPANS
from gateway.web.rendering import Place, Site, address

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


ANSWERS_IN = 5.0
"""Seconds that a database has to answer, if a page shows others, too."""

Answer = TypeVar("Answer")


async def ask(places: Sequence[Place], read: Callable[[Place], Awaitable[Answer]]) -> Sequence[tuple[Place, Answer]]:
    """Read from each of some databases, side by side. One that is down, late or not as it should be is left out.

    Errors of the only database, and those of a request, are raised.
    """
    if len(places) == 1 and places[0].name is None:
        return [(place, await read(place)) for place in places]

    async def answer(place: Place) -> tuple[Place, Answer] | None:
        try:
            async with asyncio.timeout(ANSWERS_IN):
                return place, await read(place)
        except (Unavailable, SqlError, TimeoutError):
            return None

    return [one for one in await asyncio.gather(*map(answer, places)) if one is not None]


def names(places: Sequence[Place]) -> list[str]:
    """Return the names of several databases; nothing if there is only one."""
    return [place.name for place in places if place.name is not None]


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the overview reads from the database, from ``since`` until ``until``, which is soon.

    ``series`` are the accepted writes, which are counted. All refusals are from the record.
    """

    since: datetime
    until: datetime
    standing: Standing
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
    def counted(self) -> int:
        """Return how many refusals by guards are known by their number alone."""
        found = self.notable.get(Kind.GUARD_REFUSED)
        return 0 if found is None else found.count


def steps(until: datetime, span: str) -> tuple[datetime, datetime, int]:
    """Return the beginning, the end and the number of steps of a span's chart. The last step contains ``until``."""
    step = _STEPS[span]
    since_epoch = (until - datetime.min.replace(tzinfo=UTC)) // step + 1
    end = datetime.min.replace(tzinfo=UTC) + since_epoch * step
    count = SPANS[span][1] // step
    return end - count * step, end, count


@dataclass(frozen=True, slots=True)
class PlaceStatus:
    """A database and its store. ``found``: None if its record cannot be read."""

    name: str | None
    found: Overview | None
    health: Mapping[str, str]
    troubles: Mapping[str, GatewayError]
    journal: JournalView | None
    buckets: Mapping[str, BucketView]
    alarms: Sequence[Alarm]


def together(found: Sequence[Overview]) -> Overview | None:
    """Return the sums over several databases, without what is shown for each of them; None if there is none."""
    if len(found) < 2:
        return found[0] if found else None
    first, states = found[0], [one.standing for one in found]
    pending = [one.intents_since for one in states if one.intents_since is not None]
    return replace(
        first,
        standing=replace(
            first.standing,
            now=max(one.now for one in states),
            intents=sum(one.intents for one in states),
            intents_since=min(pending, default=None),
        ),
        series=[
            TrafficBucket(buckets[0].at, WriteCounts(sum(one.counts.accepted for one in buckets)))
            for buckets in zip(*(one.series for one in found), strict=True)
        ],
        refusals=RefusalCounts.over(one.refusals for one in found),
        incidents=FoundIncidents(
            [incident for one in found for incident in one.incidents.incidents],
            all(one.incidents.complete for one in found),
        ),
    )


def routes(site: Site) -> list[Route]:
    """Build the route ``/ui/``."""

    async def show(request: Request) -> Response:
        span = request.query_params.get("span") or _USUAL
        if span not in SPANS:
            raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
        places = await _look_at(site.places, span)
        looked = [one.found for one in places if one.found is not None]
        found = together(looked)
        rows = [
            IncidentRow(incident, one.found.standing.now, one.name)
            for one in places
            if one.found is not None
            for incident in one.found.incidents.incidents
        ]
        return site.pages.render(
            request,
            "overview.html",
            503 if found is None else 200,
            found=found,
            going_on=sum(row.state in (State.GOING_ON, State.AGAIN) for row in rows),
            acknowledged=sum(row.state is State.ACKNOWLEDGED for row in rows),
            findings=assess(*(_facts(one, span) for one in places)),
            rows=() if found is None else chart_rows(found),
            charts=() if found is None else _charts(found),
            incidents=in_order(rows)[:_MOST],
            sparks=None if found is None else lambda one: chart.sparks(one.steps, found.since, found.until),
            span=span,
            spans=SPANS,
            period=_PERIODS[span],
            places=places,
            several=names(site.places),
            looked_at=incidents.LOOKED_AT,
            denials_looked_at=overview.LOOKED_AT,
            counted=sum(one.counted for one in looked),
        )

    return [Route("/ui/", show)]


async def _look_at(places: Sequence[Place], span: str) -> list[PlaceStatus]:
    """Look at each database. Charts of several of them have the same steps."""
    several = places[0].name is not None
    health = await ask(places, lambda place: place.health())
    states = {place.name: state for place, state in health}
    up = [place for place in places if states.get(place.name, {}).get("postgres") == "ok"]
    clocks = (await ask(up, lambda place: place.database.now())) if several else ()
    until = max((now for _, now in clocks), default=None)

    async def look(place: Place) -> tuple[Overview | None, JournalView | None]:
        try:
            return await _look(place, span, until), await place.journal()
        except Unavailable:
            return None, None

    looked = {place.name: answer for place, answer in await ask(up, look)}
    return [_status(place, states.get(place.name), *looked.get(place.name, (None, None))) for place in places]


def _status(
    place: Place, health: Mapping[str, str] | None, found: Overview | None, journal: JournalView | None
) -> PlaceStatus:
    states = dict(health or {})
    if found is None and states.get("postgres", "ok") == "ok":
        states["postgres"] = "unreachable"
    return PlaceStatus(place.name, found, states, dict(place.troubles), journal, place.buckets(), place.config.alarms)


async def _look(place: Place, span: str, until: datetime | None) -> Overview:
    database = place.database
    now = await database.now()
    since, until, count = steps(until or now, span)
    refusals = await incidents.count_refusals(database, since, until, _STEPS[span])
    found = await incidents.find_incidents(database, Filters(since=since), now, step=(until - since) / chart.SPARKS)
    return Overview(
        since,
        until,
        await overview.read_standing(database),
        await traffic.read_series(database, since, until, count),
        refusals,
        found,
        await incidents.count_notable(database, since),
        await search.count_denials(database, since, _MOST),
        rules_with_traffic(place.config, with_refusals(await traffic.read_rules(database, since, until), refusals)),
        await webhooks.list_statuses(database, [webhook.name for webhook in place.config.webhooks]),
        {alarm.name: alarm for alarm in await overview.list_alarms(database)},
    )


def with_refusals(rules: Sequence[RuleTraffic], refusals: RefusalCounts) -> list[RuleTraffic]:
    """Return the traffic of rules with the refusals on record in place of those that gateways counted.

    A denial is under no rule, because no rule has seen the request. One that passed was observed by its rule.
    """
    counts = {(one.plane, one.rule): WriteCounts(one.counts.accepted) for one in rules}
    last: dict[tuple[str, str, bool], datetime] = {}
    for one in refusals.counts:
        if (one.reason == Denied.code and not one.passed) or one.plane is None:
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
        (passed if one.passed else zombies if one.of_a_zombie else others)[one.step] += one.count
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
                        ("others", "other refused requests", one.others),
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


def _facts(place: PlaceStatus, span: str) -> Facts:
    found, journal = place.found, place.journal
    buckets = {
        bucket: next(iter(state.missing.values()), "its probe failed")
        for bucket, state in place.buckets.items()
        if not state.writable
    }
    if found is None:
        moment = datetime.min.replace(tzinfo=UTC)
        health, troubles = place.health, place.troubles
        return Facts(moment, moment, _PERIODS[span], health, troubles, buckets=buckets, database=place.name)
    trouble = None if journal is None or journal.mode == "off" or journal.state == "ok" else journal.state
    status = found.standing
    behind = {one.name: one.failing_since or one.paused_at for one in found.deliveries if one.paused_at or one.failures}
    return Facts(
        now=status.now,
        since=found.since,
        period=_PERIODS[span],
        health=place.health,
        troubles=place.troubles,
        journal=trouble,
        incidents=found.incidents.incidents,
        bypasses=found.notable.get(Kind.BYPASS),
        guard=found.notable.get(Kind.GUARD_REFUSED),
        buckets=buckets,
        standing=status,
        webhooks=behind,
        alarms={name: alarm.since for name, alarm in found.alarms.items()},
        refusals=found.refusals,
        accepted=found.accepted,
        database=place.name,
    )
