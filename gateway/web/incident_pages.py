"""The pages of incidents: their list, one of them with its newest entries, and the form that acknowledges it."""

from datetime import datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.api.incidents import may_acknowledge
from gateway.auth.principal import Principal
from gateway.db import incidents, search
from gateway.errors import NotFound, RequestMalformed
from gateway.fencing.incident import GAP, LONGEST_NOTE, MOST_NOTES, QUIET, Incident, State, unresolved_first
from gateway.fencing.record import Entry, Kind
from gateway.http.body import BodyReader
from gateway.text import machine_time
from gateway.web import chart
from gateway.web.advice import rejection_advice
from gateway.web.chart import Chart
from gateway.web.login import read_form
from gateway.web.record_lists import PLANES, REASONS, SPANS, read_filters
from gateway.web.rendering import Site, address

_NEWEST = 20
_USUAL = "24h"
STATES = (
    (State.GOING_ON, "going on"),
    (State.AGAIN, "going on again"),
    (State.ACKNOWLEDGED, "acknowledged"),
    (State.RESOLVED, "resolved"),
)


def routes(site: Site, bodies: BodyReader) -> list[Route]:
    """Build the routes ``/ui/incidents``."""

    async def show_list(request: Request) -> Response:
        now = await site.place.database.now()
        sent = request.query_params.multi_items()
        problem, found, query = None, None, None
        wanted = request.query_params.get("state") or ""
        try:
            if wanted not in {"", *State}:
                raise RequestMalformed(f"state: must be one of {', '.join(State)}.")
            query = read_filters(sent, now, (Kind.REJECTION,))
            filters = query.filters
            if filters.since is None:
                filters = incidents.of_the_last_day(filters, now)
            assert filters.since is not None
            until = filters.until or now
            step = max((until - filters.since) / chart.SPARKS, timedelta(seconds=1))
            found = await incidents.find_incidents(site.place.database, filters, now, step=step)
            shown = [one for one in unresolved_first(found.incidents, now) if wanted in ("", one.state(now))]
            begin: datetime | None = filters.since
        except RequestMalformed as error:
            problem, shown, begin, until = error.message, [], None, now
        return site.pages.render(
            request,
            "incidents.html",
            200 if problem is None else 400,
            now=now,
            problem=problem,
            shown=shown,
            complete=found is None or found.complete,
            total=sum(one.inside for one in shown),
            since=begin,
            until=until,
            sparks=lambda one: chart.sparks(one.steps, begin or now, until),
            entries=entries_address,
            fields={} if query is None else {**query.fields, **({"state": wanted} if wanted else {})},
            filtered=query is not None and bool(query.fields or wanted),
            span_choices=[(span, name) for span, (name, _) in SPANS.items()],
            states=[(state.value, words) for state, words in STATES],
            planes=PLANES,
            reasons=REASONS,
            looked_at=incidents.LOOKED_AT,
            usual=SPANS[_USUAL][0],
        )

    async def show(request: Request) -> Response:
        return await _page(request, _identifier(request))

    async def _page(request: Request, identifier: UUID, status: int = 200, **more: object) -> Response:
        incident = await incidents.find_incident(site.place.database, identifier)
        entries = await incidents.find_newest(site.place.database, incident, _NEWEST)
        now = await site.place.database.now()
        viewer: Principal = request.scope["state"]["viewer"]
        told = {"problem": None, "note": "", **more}
        return site.pages.render(
            request,
            "incident.html",
            status,
            here=f"/ui/incidents/{identifier}",
            incident=incident,
            entries=entries,
            now=now,
            lag=_lag,
            advice=rejection_advice(entries[0], _lag(entries[0]), None) if entries else [],
            sparks=_sparks(incident),
            all_entries=entries_address(incident),
            may_acknowledge=may_acknowledge(viewer, incident),
            full=len(incident.acknowledgements) >= MOST_NOTES,
            longest=LONGEST_NOTE,
            gap=GAP,
            quiet=QUIET,
            **told,
        )

    async def acknowledge(request: Request) -> Response:
        identifier = _identifier(request)
        form = await read_form(request, bodies)
        note = form.get("note", "")
        try:
            incident = await site.place.acknowledging.add(request, request.scope["state"]["viewer"], identifier, note)
        except RequestMalformed as error:
            return await _page(request, identifier, 400, problem=error.message, note=note)
        return RedirectResponse(f"/ui/incidents/{incident.id}", 303)

    return [
        Route("/ui/incidents", show_list, methods=["GET"]),
        Route("/ui/incidents/{id}", show, methods=["GET"]),
        Route("/ui/incidents/{id}/acknowledge", acknowledge, methods=["POST"]),
    ]


def entries_address(incident: Incident) -> str:
    """Return the address of the list of an incident's refused writes."""
    key = incident.key
    return address(
        "/ui/rejections",
        resource=key.resource,
        holder=key.holder,
        caller=key.caller,
        token=key.token,
        reason=key.reason,
        since=machine_time(incident.first.replace(microsecond=0)),
        until=machine_time(incident.last.replace(microsecond=0) + timedelta(seconds=1)),
    )


def _identifier(request: Request) -> UUID:
    try:
        return UUID(request.path_params["id"])
    except ValueError as error:
        raise NotFound("There is no incident with this id.", advice="Choose one on the page of incidents.") from error


def _lag(entry: Entry) -> timedelta | None:
    return search.lag(entry, None)


def _sparks(incident: Incident) -> Chart | None:
    """Return the chart of an incident between its first and its last refusal; None if it is only a moment."""
    columns = min(-(-(incident.last - incident.first) // incidents.DETAIL), chart.SPARKS)
    return chart.sparks(incident.steps, incident.first, incident.last, columns) if columns > 1 else None
