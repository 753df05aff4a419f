"""The fencing API: fences, barriers, transactions, the record of rejections, fenced credentials, health.

JSON, described by OpenAPI at ``/v1/docs``. One module a subject.
"""

from fastapi import FastAPI, Request

from gateway.api import credentials, fences, operations, problems, rejections, transactions
from gateway.api.fences import Barrier
from gateway.api.operations import Buckets, Health
from gateway.api.problems import Problem
from gateway.api.transactions import Transact
from gateway.audit import Audit
from gateway.auth.keys import Keys
from gateway.auth.principal import Principal
from gateway.store.database import Database


def build(
    *,
    database: Database,
    keys: Keys,
    barrier: Barrier,
    audit: Audit,
    health: Health,
    buckets: Buckets,
    transact: Transact,
) -> FastAPI:
    """The API as a FastAPI app. ``transact`` is the table plane's."""
    app = FastAPI(
        title="Fencing gateway",
        description="Fencing tokens in front of Postgres tables and S3 buckets: fences, barriers, refused writes.",
        version="1",
        docs_url="/v1/docs",
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses={status: {"model": Problem} for status in (400, 401, 404, 503)},
    )
    problems.install(app)

    def caller(request: Request) -> Principal:
        return keys.by_bearer(request.scope["headers"])

    app.include_router(fences.routes(database, barrier, audit, caller))
    app.include_router(rejections.routes(database, caller))
    app.include_router(credentials.routes(database, keys, audit, caller))
    app.include_router(transactions.routes(transact, caller))
    app.include_router(operations.routes(health, buckets, caller))
    return app
