"""The record: lists of refused writes and of all entries, single entries, streams, exports, and incident reports.

The id of an event of a stream is its position in the record, so the gateway keeps no state about its clients. Exports
are CSV for spreadsheets and NDJSON for programs. They are streamed, so a long record needs little memory.
A caller that may not audit gets its own entries only.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.api.authorisation import AUDIT, OWN_ENTRIES
from gateway.api.description import Subject
from gateway.api.record_views import (
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
    read_page,
    rejection_view,
)
from gateway.api.requests import ResourceName
from gateway.api.routes import Call, Routes
from gateway.api.services import Report, Services
from gateway.auth.principal import Proof, shown_to
from gateway.db import record, search
from gateway.db.export import ExportFormat, open_export
from gateway.errors import NotFound
from gateway.fencing.record import Entry, Filters, Kind
from gateway.http.streaming import BodyWriter, StreamedResponse, Work
from gateway.record.following import Subscription

routes = Routes(Subject.RECORD)

_LIST = {404: "No entry has the id in ``before`` or ``after``."}


@routes.add("GET /v1/events", OWN_ENTRIES, "List the whole record, newest first", answers=_LIST)
async def list_events(call: Call, query: EventQuery) -> EntryList:
    entries, leads = await read_page(call.services.database, query, call.principal)
    return EntryList(events=[entry_view(one) for one in entries], **leads)


@routes.add("GET /v1/events/{id}", OWN_ENTRIES, "Read one entry of the record")
async def read_event(call: Call, id: UUID) -> EntryView:  # noqa: A002 - as in the path
    return entry_view(await search.find_entry(call.services.database, id, shown_to(call.principal)))


@routes.add(
    "GET /v1/record/head",
    AUDIT,
    "Read the end of the record: its last position, and the hash up to there",
    description="Needs the grant `audit`.",
)
async def read_head(call: Call) -> HeadView:
    await record.seal(call.services.database)
    head = await record.read_head(call.services.database)
    return HeadView(position=head.position, hash=head.hash)


_OTHERS = 20


@routes.add("GET /v1/rejections", OWN_ENTRIES, "List refused writes, newest first", answers=_LIST)
async def list_rejections(call: Call, query: RejectionQuery) -> RejectionList:
    entries, leads = await read_page(call.services.database, query, call.principal)
    return RejectionList(rejections=[rejection_view(one) for one in entries], **leads)


@routes.add(
    "GET /v1/rejections/{id}",
    OWN_ENTRIES,
    "Read one refused write, with the takeover behind it and other rejections of the caller",
)
async def read_rejection(call: Call, id: UUID) -> RejectionPage:  # noqa: A002 - as in the path
    database = call.services.database
    rejection = await search.find_entry(database, id, shown_to(call.principal))
    if rejection.kind is not Kind.REJECTION:
        raise NotFound(f"The entry {id} is no rejection.", advice=f"Request /v1/events/{id}.")
    takeover = await search.find_takeover(database, rejection)
    same = Filters(kinds=(Kind.REJECTION,), caller=rejection.caller)
    others = await search.find_page(database, same, _OTHERS + 1) if rejection.caller is not None else []
    is_shown = takeover is not None and shown_to(call.principal) in (None, takeover.caller)
    return RejectionPage(
        rejection=rejection_view(rejection, takeover),
        takeover=entry_view(takeover) if takeover is not None and is_shown else None,
        others=[rejection_view(one) for one in others if one.id != id][:_OTHERS],
    )


TYPE = "text/event-stream"
RETRY = b"retry: 1000\n"
"""Tells a client to reconnect after a second."""


class RejectionStream(RejectionFilters):
    """The filters of a stream of refused writes."""

    after: Annotated[
        Position | None, Field(description="Begin after this position; without it, with the next entry.")
    ] = None


class EventStream(EventFilters, RejectionStream):
    """The filters of a stream of entries."""


class StreamHeaders(BaseModel):
    last_event_id: Annotated[
        Position | None,
        Field(
            alias="last-event-id",
            description="The id of the last event that was received. The stream goes on after it, whatever `after` is.",
        ),
    ] = None


_STREAM = {
    "description": "Server-sent events. The id of each event is its position. Comments keep the connection alive.",
    "content": TYPE,
}


def _stream(
    call: Call, query: RejectionStream | EventStream, headers: StreamHeaders, view: Callable[[Entry], BaseModel]
) -> Response:
    after = query.after if headers.last_event_id is None else headers.last_event_id
    opening = _open_stream(call.services, query.filters_for(call.principal), after, view, call.principal.proof)
    return StreamedResponse(opening, TYPE, endless=True, timeout=call.services.readers.of_streams.timeout)


@routes.add("GET /v1/rejections/stream", OWN_ENTRIES, "Stream refused writes as they go on record", **_STREAM)
async def stream_rejections(call: Call, query: RejectionStream, headers: StreamHeaders) -> Response:
    return _stream(call, query, headers, rejection_view)


@routes.add("GET /v1/events/stream", OWN_ENTRIES, "Stream all entries as they go on record", **_STREAM)
async def stream_events(call: Call, query: EventStream, headers: StreamHeaders) -> Response:
    return _stream(call, query, headers, entry_view)


@asynccontextmanager
async def _open_stream(
    services: Services, filters: Filters, after: int | None, view: Callable[[Entry], BaseModel], proof: Proof | None
) -> AsyncIterator[Work]:
    """Open a stream and yield what writes it. Raises ``TooManyReaders``, ``RequestMalformed``, ``Unavailable``."""
    readers = services.readers
    with readers.streams.place(audits=filters.shown_to is None):
        async with services.follower.subscribed(filters, after) as subscription:
            yield partial(_write_entries, subscription, readers.of_streams.heartbeat, view, proof)


async def _write_entries(
    subscription: Subscription,
    heartbeat: float,
    view: Callable[[Entry], BaseModel],
    proof: Proof | None,
    outlet: BodyWriter,
) -> None:
    """Write entries until the stream is closed, the follower is, or the proof of the caller has ended.

    The position comes first, so a client that is cut off before its first entry can resume.
    """
    await outlet.write(RETRY + progress(str(subscription.position)))
    while proof is None or proof.holds():
        try:
            async with asyncio.timeout(heartbeat):
                entries = await subscription.next()
        except TimeoutError:
            await outlet.write(progress(str(subscription.position)))
            continue
        if not entries or not (proof is None or proof.holds()):
            return
        await outlet.write(b"".join(event(str(one.position), one.kind, view(one).model_dump_json()) for one in entries))


def event(identifier: str, kind: str, data: str) -> bytes:
    """Return an event. ``data`` is JSON."""
    return f"id: {identifier}\nevent: {kind}\ndata: {data}\n\n".encode()


def progress(identifier: str) -> bytes:
    """Return an id without data: the client stores it and raises no event."""
    return f"id: {identifier}\n: still here\n\n".encode()


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


def _add_exports(form: ExportFormat) -> None:
    """Add the exports of one form."""

    def answer(call: Call, name: str, query: RejectionExport | EventExport) -> Response:
        opening = _open_export(call.services, form, query.filters_for(call.principal), query.after)
        return StreamedResponse(opening, TYPES[form], attachment(name, form))

    described = {"description": _DESCRIPTIONS[form], "content": TYPES[form]}

    @routes.add(
        f"GET /v1/rejections.{form}", OWN_ENTRIES, f"The refused writes on record as {form.upper()}", **described
    )
    async def export_rejections(call: Call, query: RejectionExport) -> Response:
        return answer(call, "rejections", query)

    @routes.add(f"GET /v1/events.{form}", OWN_ENTRIES, f"The whole record as {form.upper()}", **described)
    async def export_events(call: Call, query: EventExport) -> Response:
        return answer(call, "events", query)


for one in ExportFormat:
    _add_exports(one)


@asynccontextmanager
async def _open_export(services: Services, form: ExportFormat, filters: Filters, after: int) -> AsyncIterator[Work]:
    """Open an export and yield what writes it. Raises ``TooManyReaders``, and ``Unavailable`` without the database."""
    with services.readers.exports.place(audits=filters.shown_to is None):
        async with open_export(services.database, filters, after) as export:
            yield lambda outlet: export.write(form, outlet.write)


_REPORT_HEADERS = {
    # A browser may open the saved file: it must run nothing of it, and fetch nothing.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def report_answer(report: Report) -> Response:
    """Return a report as a file to be saved."""
    headers = {**_REPORT_HEADERS, "content-disposition": f'attachment; filename="{report.name}"'}
    return Response(report.content, headers=headers, media_type="text/html")


class Span(BaseModel):
    """The span of a report."""

    since: Annotated[Moment | None, Field(description="The beginning of the span.")] = None
    until: Annotated[Moment | None, Field(description="The end of the span; now if it is left out.")] = None


@routes.add(
    "GET /v1/reports/{resource:path}",
    AUDIT,
    "An incident report of one resource",
    description="For callers that may audit, because a report without the entries of other callers would mislead. "
    "One HTML document has the timeline, each refused write, and the end of the record at that time. "
    "Without `since` and `until` it covers the last day on which something of note happened.",
    content="text/html",
)
async def read_report(call: Call, resource: ResourceName, query: Span) -> Response:
    return report_answer(await call.services.make_report(resource, query.since, query.until))
