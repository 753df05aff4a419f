"""The record as files: CSV for spreadsheets, NDJSON for programs, and incident reports in HTML.

Exports are streamed, so a long record needs little memory.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.responses import Response

from gateway.api.record_views import EventFilters, Moment, Position, RejectionFilters
from gateway.api.requests import Authenticate, ResourceName
from gateway.auth.principal import Principal
from gateway.db.database import Database
from gateway.db.export import ExportFormat, open_export
from gateway.fencing.record import Filters
from gateway.fencing.resource import canonical
from gateway.http.problems import Problem
from gateway.http.streaming import ReaderSlots, StreamedResponse, Work

MOST = 4
"""Exports that one process serves at one time. Each occupies a session of the database."""

TYPES = {ExportFormat.CSV: "text/csv; charset=utf-8", ExportFormat.NDJSON: "application/x-ndjson"}
_DESCRIPTIONS = {
    ExportFormat.CSV: "RFC 4180, with a header line. "
    "An apostrophe precedes text that a spreadsheet would take for a formula.",
    ExportFormat.NDJSON: "One JSON object a line, with the hash of the entry. "
    "`gateway audit verify` reads this format.",
}


class RejectionExport(RejectionFilters):
    """The filters of an export of refused writes, the oldest first."""

    after: Annotated[
        Position, Field(description="Only entries after this position. An export that broke off continues here.")
    ] = 0


class EventExport(EventFilters, RejectionExport):
    """The filters of an export of entries, the oldest first."""


def attachment(name: str, form: ExportFormat) -> dict[str, str]:
    """Return the header that names the file of an export."""
    return {"content-disposition": f'attachment; filename="{name}.{form}"'}


Opening: TypeAlias = AbstractAsyncContextManager[Work]


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/rejections.csv``, ``/v1/events.ndjson`` and so on.

    A caller that may not audit gets its own entries only.
    """
    router = APIRouter()
    room = ReaderSlots(MOST, "exports")
    for form in ExportFormat:
        _add(router, form, partial(_opened, database, room, form), caller)
    return router


def _add(
    router: APIRouter, form: ExportFormat, opened: Callable[[Filters, int], Opening], caller: Authenticate
) -> None:
    """Add the exports of one form."""

    def answer(name: str, query: RejectionExport | EventExport, principal: Principal) -> Response:
        return StreamedResponse(opened(query.filters_for(principal), query.after), TYPES[form], attachment(name, form))

    described: dict[str, Any] = {
        "description": _DESCRIPTIONS[form],
        "response_class": Response,
        "responses": {200: {"content": {TYPES[form]: {}}}},
    }

    @router.get(f"/v1/rejections.{form}", summary=f"The refused writes on record as {form.upper()}", **described)
    async def export_rejections(
        query: Annotated[RejectionExport, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> Response:
        return answer("rejections", query, principal)

    @router.get(f"/v1/events.{form}", summary=f"The whole record as {form.upper()}", **described)
    async def export_events(
        query: Annotated[EventExport, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> Response:
        return answer("events", query, principal)


@asynccontextmanager
async def _opened(
    database: Database, room: ReaderSlots, form: ExportFormat, filters: Filters, after: int
) -> AsyncIterator[Work]:
    """Open an export and yield what writes it. Raises ``TooManyReaders``, and ``Unavailable`` without the database."""
    with room.place(audits=filters.shown_to is None):
        async with open_export(database, filters, after) as export:
            yield lambda outlet: export.write(form, outlet.write)


_REPORT_HEADERS = {
    # A browser may open the saved file: it must run nothing of it, and fetch nothing.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class Report(Protocol):
    """An HTML document, and the name of its file."""

    @property
    def content(self) -> str: ...

    @property
    def name(self) -> str: ...


MakeReport: TypeAlias = Callable[[str, datetime | None, datetime | None], Awaitable[Report]]


def report_answer(report: Report) -> Response:
    """Return a report as a file to be saved."""
    headers = {**_REPORT_HEADERS, "content-disposition": f'attachment; filename="{report.name}"'}
    return Response(report.content, headers=headers, media_type="text/html")


def report_routes(make: MakeReport) -> APIRouter:
    """Build the route ``/v1/reports/{resource}``."""
    router = APIRouter()

    @router.get(
        "/v1/reports/{resource:path}",
        summary="An incident report of one resource",
        description="For callers that may audit, because a report without the entries of other callers would mislead. "
        "One HTML document has the timeline, each refused write, and the end of the record at that time. "
        "Without `since` and `until` it covers the last day on which something of note happened.",
        response_class=Response,
        responses={
            200: {"content": {"text/html": {}}},
            403: {"model": Problem, "description": "The caller lacks the grant."},
        },
    )
    async def read_report(
        resource: ResourceName,
        since: Annotated[Moment | None, Query(description="The beginning of the span.")] = None,
        until: Annotated[Moment | None, Query(description="The end of the span; now if it is left out.")] = None,
    ) -> Response:
        return report_answer(await make(canonical(resource), since, until))

    return router
