"""The fencing API: locks, fences, barriers, transactions, the record of rejections, fenced credentials, health.

It speaks JSON, and OpenAPI describes it at ``/v1/docs``. Each subject has a module with its routes. A resource name is
its own URL path, read as it was sent. A caller is proven and authorised before its body is read. Endpoints ask the
services (``leases``, ``db``, ``record``) and decide nothing. Assembly imports this package; the page uses its views.
"""

from collections.abc import Awaitable, Callable
from functools import cache

import orjson
from starlette.requests import Request
from starlette.responses import Response

from gateway.api.authorisation import PUBLIC, ApiAuthorisation
from gateway.api.credentials import credential_routes, web_identity_routes
from gateway.api.description import Subject
from gateway.api.fences import Barrier, epoch_routes, fence_routes, sequencer_routes
from gateway.api.incidents import Acknowledging, incident_routes
from gateway.api.leases import acquire_routes, administration_routes, holder_routes
from gateway.api.openapi import document
from gateway.api.operation import (
    ConfigurationAccess,
    HealthCheck,
    JournalState,
    MetricsSource,
    ProbedBuckets,
    configuration_routes,
    health_routes,
    metrics_routes,
    webhook_routes,
)
from gateway.api.record import MakeReport, entry_routes, export_routes, rejection_routes, report_routes, stream_routes
from gateway.api.routes import Api, Call, Route, Routes
from gateway.api.transactions import Transact, transaction_routes
from gateway.auth.callers import Callers
from gateway.db.database import Database
from gateway.fencing.sequencer import Signer
from gateway.http.body import BodyReader
from gateway.leases.service import LeaseService
from gateway.observe.events import Observe
from gateway.record.following import Follower
from gateway.record.refusals import Audit
from gateway.token_admission import Admission
from gateway.webhooks.outbox import Outbox


def build(  # noqa: PLR0913 - each subject needs one part, passed by name
    *,
    database: Database,
    keys: Callers,
    bodies: BodyReader,
    barrier: Barrier,
    admission: Admission,
    signer: Signer,
    audit: Audit,
    authorisation: ApiAuthorisation,
    acknowledging: Acknowledging,
    health: HealthCheck,
    ready: HealthCheck,
    journal: JournalState,
    buckets: ProbedBuckets,
    transact: Transact,
    leases: LeaseService,
    observe: Observe,
    follower: Follower,
    make_report: MakeReport,
    outbox: Outbox,
    metrics: MetricsSource,
    configuration: ConfigurationAccess,
    documentation: Callable[[Request], Awaitable[Response]],
) -> Api:
    """Build the API. ``transact`` is the table plane's; ``documentation`` answers at ``/v1/docs``."""

    routes: list[Route] = [
        *acquire_routes(leases, signer, barrier, audit, observe),
        *holder_routes(leases, signer, authorisation),
        *administration_routes(leases),
        *fence_routes(database, barrier, admission, audit),
        *epoch_routes(database, barrier),
        *stream_routes(follower),
        *export_routes(database),
        *rejection_routes(database),
        *entry_routes(database),
        *incident_routes(database, acknowledging),
        *report_routes(make_report),
        *credential_routes(database, keys, admission, audit, authorisation),
        *sequencer_routes(database, signer, authorisation),
        *web_identity_routes(database, keys, leases, signer, authorisation, bodies),
        *transaction_routes(transact),
        *webhook_routes(outbox),
        *configuration_routes(configuration),
        *health_routes(health, ready, buckets, journal),
        *metrics_routes(metrics, authorisation),
    ]
    described = cache(lambda: orjson.dumps(document(routes)))
    own = Routes(Subject.OPERATION)
    for method in ("GET", "HEAD"):

        @own.add(f"{method} /v1/openapi.json", PUBLIC)
        async def describe(_: Call) -> Response:
            return Response(described(), media_type="application/json")

        @own.add(f"{method} /v1/docs", PUBLIC)
        async def show(call: Call) -> Response:
            return await documentation(call.request)

    return Api([*routes, *own], keys, authorisation, bodies)
