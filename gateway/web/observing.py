"""Observe mode: what would be refused if a rule were enforced, by whom, and whether it can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import RequestMalformed
from gateway.fencing.filters import Filters
from gateway.fencing.record import Kind
from gateway.fencing.rules import Mode
from gateway.store import search, traffic
from gateway.store.search import Group, Grouping
from gateway.web.filters import SPANS
from gateway.web.rules import Rule, busy
from gateway.web.site import Site
from gateway.web.verdicts import Verdict, verdict

_USUAL = "7d"
_MOST = 20
"""So many callers of each rule are named."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule that observes, what is to be said about it, and whose writes would have been refused for what."""

    rule: Rule
    verdict: Verdict
    callers: Sequence[Group]
    reasons: Sequence[Group]


def routes(site: Site) -> list[Route]:
    """``/ui/observe``."""

    async def show(request: Request) -> Response:
        span = request.query_params.get("span") or _USUAL
        if span not in SPANS:
            raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
        now = await site.database.now()
        since = now - SPANS[span][1]
        listed = busy(site.config, await traffic.of_rules(site.database, since, now))
        judged = [
            await _judge(site, one.rule, one.counts.accepted + one.counts.refused, since, now)
            for one in listed
            if one.rule.mode is Mode.OBSERVE
        ]
        return site.pages.render(
            request,
            "observe.html",
            judged=judged,
            enforced=[one.rule for one in listed if one.rule.mode is Mode.ENFORCE],
            general=site.config.fencing.mode,
            span=span,
            spans=SPANS,
            since=since,
            now=now,
        )

    return [Route("/ui/observe", show)]


async def _judge(site: Site, rule: Rule, passed: int, since: datetime, now: datetime) -> Judged:
    """``passed``: writes of the span that nothing was to be said against, as they were counted."""
    asked = Filters(kinds=(Kind.REJECTION,), plane=rule.plane, rule=rule.name, enforced=False, since=since)
    observed = (await search.total(site.database, asked)).count
    newest = await search.page(site.database, asked, 1)
    return Judged(
        rule,
        verdict(
            writes=passed + observed,
            observed=observed,
            last=newest[0].at if newest else None,
            since=since,
            now=now,
        ),
        await search.groups(site.database, asked, Grouping.CALLER, _MOST) if newest else (),
        await search.groups(site.database, asked, Grouping.REASON, _MOST) if newest else (),
    )
