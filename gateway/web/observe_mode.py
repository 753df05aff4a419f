"""The page of observe mode: the rules, and whether each one that observes can be enforced."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.enforcement import SHOWN, configured_rules, observed_rules
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Enforcement
from gateway.web.record_lists import SPANS
from gateway.web.rendering import Site

_USUAL = "7d"


def routes(site: Site) -> list[Route]:
    """Build the route ``/ui/observe``."""

    async def show(request: Request) -> Response:
        span = request.query_params.get("span") or _USUAL
        if span not in SPANS:
            raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
        place = site.place
        now = await place.database.now()
        judged = await observed_rules(place.config, place.database, now - SPANS[span][1], now)
        observing = {(one.rule.plane, one.rule.name) for one in judged}
        return site.pages.render(
            request,
            "observe.html",
            judged=judged,
            enforced=[
                rule
                for rule in configured_rules(place.config)
                if rule.mode is Enforcement.ENFORCE and (rule.plane, rule.name) not in observing
            ],
            general=place.config.fencing.mode,
            now=now,
            shown=SHOWN,
            span=span,
            spans=SPANS,
        )

    return [Route("/ui/observe", show)]
