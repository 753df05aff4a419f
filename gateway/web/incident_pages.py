"""The pages of incidents: their list, one of them with its newest entries, and the form that acknowledges it."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.api.incidents import may_acknowledge
from gateway.auth.principal import Principal
from gateway.db import incidents, search, timeline
from gateway.db.incidents import FoundIncidents
from gateway.errors import RequestMalformed
from gateway.fencing.incident import GAP, LONGEST_NOTE, MOST_NOTES, QUIET, Incident, State, urgency
from gateway.fencing.record import Filters, Kind
from gateway.http.body import BodyReader
from gateway.text import machine_time
from gateway.web import chart
from gateway.web.advice import rejection_advice
from gateway.web.chart import Chart
from gateway.web.login import read_form
from gateway.web.record_lists import PLANES, REASONS, SPANS, read_filters
from gateway.web.rendering import Site, address, database_of, entry_named

_NEWEST = 20
_USUAL = "24h"


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """An incident in a list, at ``now`` by the clock of its database. ``database``: None if the list is of one."""

    incident: Incident
    now: datetime
    database: str | None = None

    @property
    def state(self) -> State:
        return self.incident.state(self.now)


def in_order(rows: Iterable[IncidentRow]) -> list[IncidentRow]:
    return sorted(rows, key=lambda row: urgency(row.incident, row.now))


def list_routes(site: Site) -> list[Route]:
    async def show_list(request: Request) -> Response:
        sent = request.query_params.multi_items()
        wanted = request.query_params.get("state") or ""
        database, problem, fields = site.place.database, None, dict[str, str]()
        now = await database.now()
        filters, found, rows, counted = Filters(), FoundIncidents([], complete=True), list[IncidentRow](), 0
        try:
            if wanted not in {"", *State}:
                raise RequestMalformed(f"state: must be one of {', '.join(State)}.")
            asked = read_filters(sent, now, (Kind.REJECTION,))
            fields = {**asked.fields, **({"state": wanted} if wanted else {})}
            filters = asked.filters
            if filters.since is None:
                filters = incidents.of_the_last_day(filters, now)
        except RequestMalformed as error:
            problem = error.message
        since, until = filters.since or now, filters.until or now
        if problem is None:
            step = max((until - since) / chart.SPARKS, timedelta(seconds=1))
            found = await incidents.find_incidents(database, filters, now, step=step)
            rows = in_order(IncidentRow(one, now) for one in found.incidents if wanted in ("", one.state(now)))
            counted = await timeline.count_counted(database, since, until)
        shown = rows[: incidents.MOST]
        return site.pages.render(
            request,
            "incidents.html",
            200 if problem is None else 400,
            problem=problem,
            shown=shown,
            complete=found.complete and len(shown) == len(rows),
            total=sum(row.incident.inside for row in shown),
            counted=counted,
            since=since,
            sparks=lambda one: chart.sparks(one.steps, since, until),
            fields=fields,
            span_choices=[(span, name) for span, (name, _) in SPANS.items()],
            states=[(state.value, state.value.replace("-", " ")) for state in State],
            planes=PLANES,
            reasons=REASONS,
            usual=SPANS[_USUAL][0],
        )

    return [Route("/ui/incidents", show_list, methods=["GET"])]


def routes(site: Site, bodies: BodyReader) -> list[Route]:
    async def show(request: Request) -> Response:
        return await _page(request, entry_named(request))

    async def _page(request: Request, identifier: UUID, status: int = 200, **more: object) -> Response:
        incident = await incidents.find_incident(site.place.database, identifier)
        entries = await incidents.find_newest(site.place.database, incident, _NEWEST)
        now = await site.place.database.now()
        viewer: Principal = request.scope["state"]["viewer"]
        of = database_of(request)
        told = {"problem": None, "note": "", **more}
        return site.pages.render(
            request,
            "incident.html",
            status,
            here=address(f"/ui/incidents/{identifier}", of=of),
            incident=incident,
            entries=entries,
            now=now,
            lag=search.lag,
            advice=rejection_advice(entries[0], search.lag(entries[0]), None) if entries else [],
            sparks=_sparks(incident),
            all_entries=entries_address(incident, of),
            may_acknowledge=may_acknowledge(viewer, incident),
            full=len(incident.acknowledgements) >= MOST_NOTES,
            longest=LONGEST_NOTE,
            gap=GAP,
            quiet=QUIET,
            **told,
        )

    async def acknowledge(request: Request) -> Response:
        identifier = entry_named(request)
        form = await read_form(request, bodies)
        note = form.get("note", "")
        try:
            incident = await site.place.acknowledging.add(request, request.scope["state"]["viewer"], identifier, note)
        except RequestMalformed as error:
            return await _page(request, identifier, 400, problem=error.message, note=note)
        of = database_of(request)
        return RedirectResponse(address(f"/ui/incidents/{incident.id}", of=of), 303)

    return [
        *list_routes(site),
        Route("/ui/incidents/{id}", show, methods=["GET"]),
        Route("/ui/incidents/{id}/acknowledge", acknowledge, methods=["POST"]),
    ]


def entries_address(incident: Incident, of: str | None) -> str:
    """Return the address of the list of an incident's refused writes. ``of``: its database, if there are several."""
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
        of=of,
    )


def _sparks(incident: Incident) -> Chart | None:
    """Return the chart of an incident between its first and its last refusal; None if it is only a moment."""
    columns = min(-(-(incident.last - incident.first) // incidents.DETAIL), chart.SPARKS)
    return chart.sparks(incident.steps, incident.first, incident.last, columns) if columns > 1 else None
