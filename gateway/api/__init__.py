"""The fencing API: locks, fences, barriers, transactions, the record of rejections, fenced credentials, health.

It speaks JSON, and OpenAPI describes it at ``/v1/docs``. Each subject has a module with its routes. A resource name is
its own URL path, read as it was sent. A caller is proven and authorised before its body is read. Endpoints ask the
services (``leases``, ``db``, ``record``) and decide nothing. Assembly imports this package; the page uses its views.
"""

from collections.abc import Awaitable, Callable
from functools import cache

from fastapi import APIRouter, FastAPI, Request
from fastapi.dependencies import models as dependencies
from fastapi.routing import APIRoute
from starlette.responses import JSONResponse, Response

from gateway import budget
from gateway.api import (
    credentials,
    fences,
    incidents,
    leases,
    operation,
    record,
    transactions,
)
from gateway.api.authorisation import ApiAuthorisation, Authorised, rules_of
from gateway.api.description import INTRODUCTION, TAGS, Subject, with_databases, with_examples, with_names_in_queries
from gateway.api.fences import Barrier
from gateway.api.incidents import Acknowledging
from gateway.api.leases import LeaseTerms
from gateway.api.operation import (
    ConfigurationAccess,
    HealthCheck,
    JournalState,
    MetricsSource,
    ProbedBuckets,
    configuration_routes,
    health_routes,
    metrics_routes,
)
from gateway.api.record import MakeReport
from gateway.api.requests import MAX_BODY, Authenticate, BodyIntake, PathAsSent
from gateway.api.transactions import Transact
from gateway.auth.callers import Callers
from gateway.auth.principal import Principal
from gateway.db.database import Database
from gateway.fencing.lease import Signer
from gateway.http import problems
from gateway.http.body import BodyReader, WholeAnswers
from gateway.http.head import Head
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
    holding: LeaseTerms,
    follower: Follower,
    make_report: MakeReport,
    outbox: Outbox,
    metrics: MetricsSource,
    configuration: ConfigurationAccess,
    documentation: Callable[[Request], Awaitable[Response]],
) -> FastAPI:
    """Build the API as a FastAPI app.

    ``transact`` is the table plane's; ``documentation`` answers at ``/v1/docs``.
    """
    app = FastAPI(
        title="Fencing gateway",
        description=INTRODUCTION,
        openapi_tags=TAGS,
        version="1",
        docs_url=None,  # FastAPI's own page loads scripts from another host
        redoc_url=None,
        openapi_url=None,  # FastAPI's own route makes the document anew for each request
    )
    problems.install(app)
    describe = app.openapi
    app.openapi = lambda: with_names_in_queries(with_examples(with_databases(describe())))  # type: ignore[method-assign]  # FastAPI's way of extending it
    app.add_middleware(PathAsSent)
    app.add_middleware(WholeAnswers, memory=bodies.memory, refuse=problems.answer_error)

    def caller(request: Request) -> Principal:
        # The page, or the body intake, may have proven the caller already.
        state = request.scope["state"]
        principal: Principal | None = state.get("viewer")
        if principal is None:
            head = Head.of(request.scope)
            principal = state["viewer"] = keys.by_bearer(head.headers, head.certificate)
            budget.serve(state, principal.name)
        return principal

    # The router tries routes in this order.
    for subject, router in (
        (Subject.LOCKS, leases.routes(holding, barrier, audit, authorisation, caller)),
        (Subject.LOCKS, leases.administration_routes(holding, caller)),
        (Subject.FENCES, fences.routes(database, barrier, admission, audit, caller)),
        (Subject.FENCES, fences.epoch_routes(database, barrier, caller)),
        (Subject.RECORD, record.stream_routes(follower, caller)),
        (Subject.RECORD, record.export_routes(database, caller)),
        (Subject.RECORD, record.rejection_routes(database, caller)),
        (Subject.RECORD, record.routes(database, caller)),
        (Subject.RECORD, incidents.routes(database, acknowledging, caller)),
        (Subject.RECORD, record.report_routes(make_report)),
        (Subject.WRITES, credentials.routes(database, keys, admission, audit, authorisation, caller)),
        (Subject.FENCES, fences.sequencer_routes(database, signer, authorisation, caller)),
        (Subject.WRITES, credentials.web_identity_routes(database, keys, holding, authorisation, bodies)),
        (Subject.WRITES, transactions.routes(transact, caller)),
        (Subject.WEBHOOKS, operation.webhook_routes(outbox)),
        (Subject.OPERATION, configuration_routes(configuration, caller)),
        (Subject.OPERATION, health_routes(health, ready, buckets, journal, caller)),
        (Subject.OPERATION, metrics_routes(metrics, caller, authorisation)),
    ):
        _add(app, router, subject, caller, authorisation, bodies)
    document = cache(lambda: JSONResponse(app.openapi()).body)

    async def described(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    app.router.add_route("/v1/openapi.json", described, include_in_schema=False)
    app.router.add_route("/v1/docs", documentation, include_in_schema=False)
    for route in app.router.routes:
        rules_of(route)  # none may lack a rule
    return app


def forget() -> None:
    """Let go of the functions of all routes. FastAPI remembers thousands, and with them gateways that have ended."""
    for remembered in vars(dependencies).values():
        if clear := getattr(remembered, "cache_clear", None):
            clear()


_LIMITS: dict[str, int | None] = {
    "/v1/leases": 1024 * 1024,  # a program renews all its leases in one request
    "/v1/transaction": None,  # the table plane reads it, within its own limit
}


def _add(
    app: FastAPI,
    router: APIRouter,
    subject: Subject,
    caller: Authenticate,
    authorisation: ApiAuthorisation,
    bodies: BodyReader,
) -> None:
    """Add the routes of ``router`` as they are. FastAPI would rebuild those of an included router later."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            route.tags = [subject.title]
            # Generated clients have functions of these names. Exports of one list differ by their format.
            route.operation_id = "_".join([route.name, *route.path.split(".")[1:]])
            route.responses = {**problems.EVERYWHERE, **route.responses}
            limit = _LIMITS.get(route.path, MAX_BODY)
            if limit is not None and (route.body_field is not None or "requestBody" in (route.openapi_extra or {})):
                route.app = BodyIntake(route.app, caller, bodies, limit)
            route.app = Authorised(route.app, rules_of(route), caller, authorisation)
        app.router.routes.append(route)
