"""The overview: the health of the gateway, and how many writes were refused where."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.db import overview, search, traffic, webhooks
from gateway.db.overview import ActiveAlarm, StoreStatus
from gateway.db.search import DenialGroup, Group, Grouping
from gateway.db.traffic import TrafficBucket, WriteCounts
from gateway.db.webhooks import WebhookStatus as Delivery
from gateway.errors import RequestMalformed, Unavailable
from gateway.fencing.record import Filters, Kind
from gateway.web.observe_mode import ConfiguredTraffic, rules_with_traffic
from gateway.web.record_lists import SPANS
from gateway.web.rendering import Site

_STEPS = {
    "1h": timedelta(minutes=1),
    "24h": timedelta(minutes=15),
    "7d": timedelta(hours=2),
    "30d": timedelta(hours=8),
}
"""The length of one step of the chart, for each span."""

_USUAL = "24h"
_MOST = 8
"""The most resources and holders that are named."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that the overview reads from the database, from ``since`` on."""

    since: datetime
    standing: StoreStatus
    series: Sequence[TrafficBucket]
    resources: Sequence[Group]
    holders: Sequence[Group]
    denied: Sequence[DenialGroup]
    rules: Sequence[ConfiguredTraffic]
    deliveries: Sequence[Delivery]
    alarms: Mapping[str, ActiveAlarm]

    @property
    def counts(self) -> WriteCounts:
        """Return the number of writes of the span."""
        sums = WriteCounts()
        for bucket in self.series:
            sums.accepted += bucket.counts.accepted
            sums.refused += bucket.counts.refused
            sums.observed += bucket.counts.observed
        return sums


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
        health = await site.health()
        try:
            found = await _look(site, span) if health.get("postgres") == "ok" else None
        except Unavailable:
            found = None
        return site.pages.render(
            request,
            "overview.html",
            503 if found is None else 200,
            found=found,
            span=span,
            spans=SPANS,
            health=health,
            journal=None if found is None else await site.journal(),
            buckets=site.buckets(),
            alarms=site.config.alarms,
            looked_at=overview.LOOKED_AT,
        )

    return [Route("/ui/", show)]


async def _look(site: Site, span: str) -> Overview:
    database = site.database
    since, until, count = steps(await database.now(), span)
    zombies = Filters(kinds=(Kind.REJECTION,), since=since)
    by_resource = await search.count_groups(database, zombies, Grouping.RESOURCE, _MOST)
    by_holder = await search.count_groups(database, zombies, Grouping.HOLDER, _MOST)
    return Overview(
        since,
        await overview.read_status(database),
        await traffic.read_series(database, since, until, count),
        by_resource,
        by_holder,
        await search.count_denials(database, since, _MOST),
        rules_with_traffic(site.config, await traffic.read_rules(database, since, until)),
        await webhooks.list_statuses(database, [webhook.name for webhook in site.config.webhooks]),
        {alarm.name: alarm for alarm in await overview.list_alarms(database)},
    )
