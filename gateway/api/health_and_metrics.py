"""Liveness, health, readiness and metrics.

They have a second path, where other programs have it. The app sends only requests there that no bucket could serve.
"""

import ipaddress
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from gateway import budget
from gateway.api.authorisation import CALLERS, PUBLIC
from gateway.api.description import Subject
from gateway.api.routes import Call, Routes, json
from gateway.auth.grants import Action
from gateway.errors import DatabaseClosed, NotReady, Unauthenticated
from gateway.fencing.record import ANONYMOUS
from gateway.http.head import Head

routes = Routes(Subject.OPERATION)

LIVE, HEALTH, READY, METRICS = "/livez", "/healthz", "/readyz", "/metrics"
CUSTOMARY_PATHS = frozenset(path.encode() for path in (LIVE, HEALTH, READY, METRICS))


class BucketView(BaseModel):
    """The result of probing a bucket."""

    writable: bool = Field(description="Whether the bucket takes fenced writes.")
    missing: dict[str, str] = Field(description="The probes that the store failed, each with its consequence.")


class JournalView(BaseModel):
    """The journal of raised fences (docs/journal.md), and the last opening of the database."""

    mode: str = Field(description="`off`, `async` or `sync`: the losses of the database that a raise survives.")
    state: str = Field(description="`ok`, or the problem that the last append to the journal met.")
    term: int = Field(description="The number of the last opening. It grows with each run of the database server.")
    opened_at: datetime | None = Field(None, description="The last opening; left out before the first one.")
    snapshot: int = Field(0, description="The newest snapshot of the journal that the database has noted.")
    pending: int = Field(0, description="Raises that this gateway has not appended yet, with mode async.")
    lag_seconds: float = Field(0.0, description="The age of the oldest of them.")


class DatabaseView(BaseModel):
    """One of several databases, and the store that has its buckets."""

    postgres: str
    s3: str | None = Field(None, description="Left out if it has no object store.")


class HealthView(BaseModel):
    """Each service behind the gateway: ``ok``, or the reason for which requests that need it are answered with 503.

    ``unreachable``; ``refused``: it refuses the gateway's credentials. Of a database also ``closed``: it is not open;
    ``full``: it has no room; ``right-missing``: the gateway's role lacks a right on the fencing schema.
    """

    postgres: str
    s3: str | None = Field(None, description="Left out if no object store is configured.")
    databases: dict[str, DatabaseView] | None = Field(
        None, description="With several databases: each by its name. Above is the worst state of all."
    )
    journal: JournalView | None = Field(None, description="For callers only. With several databases: of the first.")
    buckets: dict[str, BucketView] | None = Field(
        None, description="For callers only: the buckets that were written to since the gateway started."
    )


@routes.add(f"GET+HEAD {LIVE}", PUBLIC, status=204)
@routes.add(
    "GET /v1/live",
    PUBLIC,
    "Check whether the process answers, whatever the state of the services behind it",
    status=204,
)
async def read_live(_: Call) -> None:
    """Answer. To restart a gateway because its database is away would make it forget what it has acknowledged."""


@routes.add(f"GET+HEAD {HEALTH}", PUBLIC)
@routes.add("GET /v1/health", PUBLIC, "Read the health of the gateway and of the services behind it", answer=HealthView)
async def read_health(call: Call) -> Response:
    services = await call.services.health()
    status = 200 if all(state == "ok" for state in services.values()) else 503
    more: dict[str, Any] = {}
    if _audits(call):
        more = {"journal": await call.services.journal(), "buckets": dict(call.services.buckets()) or None}
    return json(_view(services, **more), status, exclude_none=True)


@routes.add(f"GET+HEAD {READY}", PUBLIC, status=204)
@routes.add("GET /v1/ready", PUBLIC, "Check whether the gateway can take writes", status=204)
async def read_ready(call: Call) -> None:
    services = await call.services.ready()
    failing = sorted(name for name, state in services.items() if state != "ok")
    databases = {name.partition(".")[2] for name in services}
    # One of several databases that is down must not take the others out of a load balancer.
    if databases == {name.partition(".")[2] for name in failing}:
        told = f"Not ready: {', '.join(f'{name} is {services[name]}' for name in failing)}."
        raise (DatabaseClosed if "closed" in map(services.get, failing) else NotReady)(told)


def _view(services: Mapping[str, str], **more: Any) -> HealthView:
    if "postgres" in services:
        return HealthView(**services, **more)
    databases: dict[str, dict[str, str]] = {}
    worst: dict[str, str] = {}
    for name, state in services.items():
        service, _, database = name.partition(".")
        databases.setdefault(database, {})[service] = state
        if worst.get(service, "ok") == "ok":
            worst[service] = state
    return HealthView(**worst, databases={name: DatabaseView(**states) for name, states in databases.items()}, **more)


def _audits(call: Call) -> bool:
    try:
        return call.principal.audits
    except Unauthenticated:
        return False


_CREDENTIALS = frozenset((b"authorization", b"apikey"))
_FORWARDED = frozenset((b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"))


_LOOPBACK = re.compile(rb"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d*)?", re.IGNORECASE)


def _is_local(request: Request) -> bool:
    """Return whether a program on this host asks for itself.

    A proxy on this host may ask for others, and says so. A browser on this host may ask for a page of strangers, whose
    name leads to a loopback address: then that name is its ``Host``.
    """
    head = Head.of(request.scope)
    try:
        address = ipaddress.ip_address(request.scope["state"]["client"] or "")
    except ValueError:
        return False
    # A dual-stack socket shows IPv4 addresses as IPv6 ones.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    hosts = [value for name, value in head.headers if name == b"host"]
    return (
        (mapped or address).is_loopback
        and len(hosts) == 1
        and _LOOPBACK.fullmatch(hosts[0]) is not None
        and not any(name in _FORWARDED for name, _ in head.headers)
    )


def _shows_credentials(request: Request) -> bool:
    head = Head.of(request.scope)
    return head.certificate is not None or any(name in _CREDENTIALS for name, _ in head.headers)


@routes.add(f"GET+HEAD {METRICS}", CALLERS)
@routes.add(
    "GET /v1/metrics",
    CALLERS,
    "Read metrics, in the text format of Prometheus or as OpenMetrics",
    content="text/plain",
)
async def read_metrics(call: Call) -> Response:
    request, metrics = call.request, call.services.metrics
    is_open = metrics.public or _is_local(request)
    if _shows_credentials(request):
        _ = call.principal  # wrong ones are an error everywhere
    elif is_open:
        budget.serve(request.scope["state"], ANONYMOUS)
    if not is_open:
        principal = call.principal
        if principal.is_anonymous and not principal.audits:
            raise Unauthenticated("Metrics are for callers with the grant audit.")
        if not principal.audits:
            authorisation = call.services.authorisation
            raise await authorisation.denied(request, principal, (Action.AUDIT,), "everything")
    content, media_type = await metrics.scrape(request.headers.get("accept", ""))
    return Response(content, headers={"Content-Type": media_type, "Cache-Control": "no-store"})
