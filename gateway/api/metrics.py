"""What is measured of the gateway, for Prometheus and whatever reads its format."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from fastapi import APIRouter, Request, Response

from gateway.api.requests import Authenticate

Scrape: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""The metrics and their media type, for what a request accepts."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the route needs. ``public``: nobody has to say who asks."""

    scrape: Scrape
    public: bool = False


def routes(metrics: Metrics, authenticate: Authenticate) -> APIRouter:
    """``/v1/metrics``. Any caller may read them: no resource, holder or caller is named in there."""
    router = APIRouter()

    @router.get(
        "/v1/metrics",
        summary="Metrics, in the text format of Prometheus or as OpenMetrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def read_metrics(request: Request) -> Response:
        if not metrics.public:
            authenticate(request)
        content, media_type = await metrics.scrape(request.headers.get("accept", ""))
        return Response(content, headers={"Content-Type": media_type, "Cache-Control": "no-store"})

    return router
