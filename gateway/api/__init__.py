"""The fencing API: locks, fences, barriers, transactions, the record of rejections, fenced credentials, health.

It speaks JSON, and OpenAPI describes it at ``/v1/docs``. Each subject has a module with its routes. A resource name is
its own URL path, read as it was sent. A caller is proven and authorised before its body is read. The table of routes is
the same for each database. An endpoint asks the ``Services`` of one, and decides nothing. Assembly imports this
package; the page uses its views.
"""

from functools import cache
from typing import Final

import orjson
from starlette.responses import Response

from gateway.api import (
    configuration,
    credentials,
    fences,
    health_and_metrics,
    incidents,
    leases,
    record,
    transactions,
    webhooks,
)
from gateway.api.authorisation import PUBLIC
from gateway.api.description import Subject
from gateway.api.openapi import document
from gateway.api.routes import Call, Routes, Table

own = Routes(Subject.OPERATION)


@cache
def _described() -> bytes:
    return orjson.dumps(document(ROUTES))


_LINKS: Final = {
    "page": "/ui/",
    "documentation": "/v1/docs",
    "openapi": "/v1/openapi.json",
    "tables": "/v1/tables/",
    "readiness": "/readyz",
}


@own.add("GET+HEAD /", PUBLIC)
async def lead_on(_: Call) -> Response:
    return Response(orjson.dumps(_LINKS), media_type="application/json")


@own.add("GET+HEAD /v1/openapi.json", PUBLIC)
async def describe(_: Call) -> Response:
    return Response(_described(), media_type="application/json")


@own.add("GET+HEAD /v1/docs", PUBLIC)
async def show(call: Call) -> Response:
    return await call.services.documentation(call.request)


ROUTES = (
    *leases.routes,
    *fences.routes,
    *record.routes,
    *incidents.routes,
    *credentials.routes,
    *transactions.routes,
    *webhooks.routes,
    *health_and_metrics.routes,
    *configuration.routes,
    *own,
)
TABLE = Table(ROUTES)
