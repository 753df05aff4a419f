"""Incident reports: one resource and one span of time as a document that needs nothing but itself."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Protocol, TypeAlias

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from gateway.api.record_views import Moment
from gateway.api.requests import Authenticate, ResourceName
from gateway.auth.principal import Principal, shown_to
from gateway.errors import Forbidden
from gateway.fencing.resource import canonical
from gateway.http.problems import Problem

_HEADERS = {
    # It may be opened where it was saved: then nothing of it is to run, or to be fetched.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Report(Protocol):
    """An HTML document, and what its file may be called."""

    @property
    def content(self) -> str: ...

    @property
    def name(self) -> str: ...


MakeReport: TypeAlias = Callable[[str, datetime | None, datetime | None], Awaitable[Report]]


def answer(report: Report) -> Response:
    """A report as a file to be saved."""
    headers = {**_HEADERS, "content-disposition": f'attachment; filename="{report.name}"'}
    return Response(report.content, headers=headers, media_type="text/html")


def routes(make: MakeReport, caller: Authenticate) -> APIRouter:
    """``/v1/reports/{resource}``."""
    router = APIRouter()

    @router.get(
        "/v1/reports/{resource:path}",
        summary="An incident report of one resource",
        description="For callers that may audit: one that left out what others did would say that it never happened. "
        "One HTML document with the timeline, each refused write, and where the record ended when it was made. Without "
        "`since` and `until` it is about the last day on which something of note happened.",
        response_class=Response,
        responses={
            200: {"content": {"text/html": {}}},
            403: {"model": Problem, "description": "The caller may not audit."},
        },
    )
    async def read_report(
        resource: ResourceName,
        principal: Annotated[Principal, Depends(caller)],
        since: Annotated[Moment | None, Query(description="From here on.")] = None,
        until: Annotated[Moment | None, Query(description="Up to here; now, if it is left out.")] = None,
    ) -> Response:
        if shown_to(principal) is not None:
            raise Forbidden(f"The caller {principal.name} may not audit.")
        return answer(await make(canonical(resource), since, until))

    return router
