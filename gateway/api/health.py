"""How the gateway is: for people and for load balancers."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gateway.api.requests import Authenticate
from gateway.errors import Unauthenticated, Unavailable

HealthCheck: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Names each service behind the gateway, with ``ok`` or what is wrong."""


class BucketView(BaseModel):
    """What is known of a bucket that was written to."""

    writable: bool = Field(description="Whether fenced writes to it are taken.")
    missing: dict[str, str] = Field(description="The probes its store did not pass, each with what follows from it.")


ProbedBuckets: TypeAlias = Callable[[], Mapping[str, BucketView]]
"""The buckets that have been probed, by name."""


class HealthView(BaseModel):
    """Each service behind the gateway, ``ok`` or ``unreachable``."""

    postgres: str
    s3: str | None = Field(None, description="Left out where no object store is configured.")
    buckets: dict[str, BucketView] | None = Field(
        None, description="For callers only: the buckets that have been written to since the gateway started."
    )


def health_routes(health: HealthCheck, buckets: ProbedBuckets, authenticate: Authenticate) -> APIRouter:
    """``/v1/health`` and ``/v1/ready``. Nobody has to say who asks, but names of buckets are for callers."""
    router = APIRouter()

    @router.get(
        "/v1/health", summary="How the gateway and the services behind it are", response_model_exclude_none=True
    )
    async def read_health(request: Request, response: Response) -> HealthView:
        services = await health()
        response.status_code = 200 if all(state == "ok" for state in services.values()) else 503
        known = dict(buckets()) if _is_caller(request, authenticate) else {}
        return HealthView(**services, buckets=known or None)

    @router.get("/v1/ready", summary="Whether writes can be taken", status_code=204, response_class=Response)
    async def read_ready() -> None:
        services = await health()
        failing = sorted(name for name, state in services.items() if state != "ok")
        if failing:
            raise Unavailable(f"Not ready: {', '.join(failing)}.")

    return router


def _is_caller(request: Request, authenticate: Authenticate) -> bool:
    try:
        authenticate(request)
    except Unauthenticated:
        return False
    return True


Scrape: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""The metrics and their media type, for what a request accepts."""


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """What the route needs. ``public``: nobody has to say who asks."""

    scrape: Scrape
    public: bool = False


def metrics_routes(metrics: MetricsSource, authenticate: Authenticate) -> APIRouter:
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
