"""The record: lists of refused writes and of all entries, single entries, streams, exports, and incident reports.

The id of an event of a stream is its position in the record, so the gateway keeps no state about its clients. Exports
are CSV for spreadsheets and NDJSON for programs. They are streamed, so a long record needs little memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Protocol, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.api.record_views import (
    RESPONSES,
    EntryList,
    EntryView,
    EventFilters,
    EventQuery,
    HeadView,
    Moment,
    Position,
    RejectionFilters,
    RejectionList,
    RejectionPage,
    RejectionQuery,
    entry_view,
    page,
    rejection_view,
)
from gateway.api.requests import Authenticate, ResourceName
from gateway.auth.principal import Principal, Proof, shown_to
from gateway.db import record, search
from gateway.db.database import Database
from gateway.db.search import ExportFormat, open_export
from gateway.errors import NotFound
from gateway.fencing.record import Entry, Filters, Kind
from gateway.fencing.resource import canonical
from gateway.http.problems import Problem
from gateway.http.streaming import SEND_TIMEOUT, BodyWriter, ReaderSlots, StreamedResponse, Work
from gateway.record.following import Follower, Subscription


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/events`` and ``/v1/record``. A caller that may not audit gets its own entries only."""
    router = APIRouter()

    @router.get(
        "/v1/events",
        summary="List the whole record, newest first",
        responses=RESPONSES,
    )
    async def list_events(
        query: Annotated[EventQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> EntryList:
        found, leads = await page(database, query, principal)
        return EntryList(events=[entry_view(one) for one in found], **leads)

    @router.get("/v1/events/{id}", summary="Read one entry of the record")
    async def read_event(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> EntryView:  # noqa: A002 - as in the path
        return entry_view(await search.find_entry(database, id, shown_to(principal)))

    @router.get(
        "/v1/record/head",
        summary="Read the end of the record: its last position, and the hash up to there",
        description="Needs the grant `audit`.",
        responses={403: {"model": Problem, "description": "The caller lacks the grant."}},
    )
    async def read_head() -> HeadView:
        await record.seal(database)
        head = await record.read_head(database)
        return HeadView(position=head.position, hash=head.hash)

    return router


_OTHERS = 20


def rejection_routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/rejections``. A caller that may not audit gets its own rejections only."""
    router = APIRouter()

    @router.get(
        "/v1/rejections",
        summary="List refused writes, newest first",
        responses=RESPONSES,
    )
    async def list_rejections(
        query: Annotated[RejectionQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> RejectionList:
        found, leads = await page(database, query, principal)
        return RejectionList(rejections=[rejection_view(one) for one in found], **leads)

    @router.get(
        "/v1/rejections/{id}",
        summary="Read one refused write, with the takeover behind it and other rejections of the caller",
    )
    async def read_rejection(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> RejectionPage:  # noqa: A002 - as in the path
        rejection = await search.find_entry(database, id, shown_to(principal))
        if rejection.kind is not Kind.REJECTION:
            raise NotFound(f"The entry {id} is no rejection.", advice=f"Request /v1/events/{id}.")
        takeover = await search.find_takeover(database, rejection)
        same = Filters(kinds=(Kind.REJECTION,), caller=rejection.caller)
        others = await search.find_page(database, same, _OTHERS + 1) if rejection.caller is not None else []
        is_shown = takeover is not None and shown_to(principal) in (None, takeover.caller)
        return RejectionPage(
            rejection=rejection_view(rejection, takeover),
            takeover=entry_view(takeover) if takeover is not None and is_shown else None,
            others=[rejection_view(one) for one in others if one.id != id][:_OTHERS],
        )

    return router


TYPE = "text/event-stream"
RETRY = b"retry: 1000\n"
"""Tells a client to reconnect after a second."""
# A proxy must not buffer the answer, because the answer never ends.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of streams, in seconds: ``heartbeat`` between two signs of life, ``timeout`` for a client to read.

    A sign of life carries the position of the record. At most ``most`` streams are served at one time.
    """

    heartbeat: float = 15.0
    timeout: float = SEND_TIMEOUT
    most: int = 200


class RejectionStream(RejectionFilters):
    """The filters of a stream of refused writes."""

    after: Annotated[
        Position | None, Field(description="Begin after this position; without it, with the next entry.")
    ] = None


class EventStream(EventFilters, RejectionStream):
    """The filters of a stream of entries."""


LastEventId = Annotated[
    Position | None,
    Header(description="The id of the last event that was received. The stream goes on after it, whatever `after` is."),
]


def stream_routes(follower: Follower, caller: Authenticate, limits: StreamLimits | None = None) -> APIRouter:
    """Build the routes ``/v1/rejections/stream`` and ``/v1/events/stream``.

    A caller that may not audit gets its own entries only.
    """
    router = APIRouter()
    limits = limits or StreamLimits()
    room = ReaderSlots(limits.most, "streams")
    described: dict[str, Any] = {
        "description": "Server-sent events. The id of each event is its position. Comments keep the connection alive.",
        "response_class": Response,
        "responses": {200: {"content": {TYPE: {}}}},
    }

    def answer(
        principal: Principal, filters: Filters, after: int | None, view: Callable[[Entry], BaseModel]
    ) -> Response:
        opening = _open_stream(follower, room, limits, filters, after, view, principal.proof)
        return StreamedResponse(opening, TYPE, HEADERS, endless=True, timeout=limits.timeout)

    @router.get("/v1/rejections/stream", summary="Stream refused writes as they go on record", **described)
    async def stream_rejections(
        query: Annotated[RejectionStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        after = query.after if last_event_id is None else last_event_id
        return answer(principal, query.filters_for(principal), after, rejection_view)

    @router.get("/v1/events/stream", summary="Stream all entries as they go on record", **described)
    async def stream_events(
        query: Annotated[EventStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        after = query.after if last_event_id is None else last_event_id
        return answer(principal, query.filters_for(principal), after, entry_view)

    return router


@dataclass(frozen=True, slots=True)
class EntryWriter:
    """Writes the entries of a subscription until the stream is closed, the follower is, or ``proof`` has ended.

    ``proof`` is the caller's. ``view``: the form of an entry. ``heartbeat`` is in seconds.
    """

    subscription: Subscription
    heartbeat: float
    view: Callable[[Entry], BaseModel]
    proof: Proof | None

    @property
    def is_proven(self) -> bool:
        """Return whether the caller is still who it has proven to be."""
        return self.proof is None or self.proof.holds()

    async def __call__(self, outlet: BodyWriter) -> None:
        """Write the position first, so a client that is cut off before its first entry can resume."""
        subscription = self.subscription
        await outlet.write(RETRY + progress(str(subscription.position)))
        while self.is_proven:
            try:
                async with asyncio.timeout(self.heartbeat):
                    entries = await subscription.next()
            except TimeoutError:
                await outlet.write(progress(str(subscription.position)))
                continue
            if not entries or not self.is_proven:
                return
            await outlet.write(
                b"".join(event(str(one.position), one.kind, self.view(one).model_dump_json()) for one in entries)
            )


@asynccontextmanager
async def _open_stream(
    follower: Follower,
    room: ReaderSlots,
    limits: StreamLimits,
    filters: Filters,
    after: int | None,
    view: Callable[[Entry], BaseModel],
    proof: Proof | None,
) -> AsyncIterator[EntryWriter]:
    """Open a stream and yield what writes it. Raises ``TooManyReaders``, ``RequestMalformed``, ``Unavailable``."""
    with room.place(audits=filters.shown_to is None):
        async with follower.subscribed(filters, after) as subscription:
            yield EntryWriter(subscription, limits.heartbeat, view, proof)


def event(identifier: str, kind: str, data: str) -> bytes:
    """Return an event. ``data`` is JSON."""
    return f"id: {identifier}\nevent: {kind}\ndata: {data}\n\n".encode()


def progress(identifier: str) -> bytes:
    """Return an id without data: the client stores it and raises no event."""
    return f"id: {identifier}\n: still here\n\n".encode()


MOST_EXPORTS = 4
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


def export_routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/rejections.csv``, ``/v1/events.ndjson`` and so on.

    A caller that may not audit gets its own entries only.
    """
    router = APIRouter()
    room = ReaderSlots(MOST_EXPORTS, "exports")
    for form in ExportFormat:
        _add_exports(router, form, partial(_open_export, database, room, form), caller)
    return router


def _add_exports(
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
async def _open_export(
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
