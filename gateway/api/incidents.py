"""Incidents: lists of them, single ones, and their acknowledgements, which are entries of the record.

A caller that may not audit gets incidents of its own only.
"""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from gateway.api.authorisation import OWN_ENTRIES, About, ApiAuthorisation, Rule
from gateway.api.description import Subject
from gateway.api.record_views import MissingGrantView, RejectionFilters
from gateway.api.requests import STORABLE, storable
from gateway.api.routes import Call, Routes
from gateway.auth.grants import Action
from gateway.auth.principal import Principal, shown_to
from gateway.db import incidents
from gateway.db.database import Database
from gateway.db.incidents import LOOKED_AT, MOST
from gateway.db.record import record_event
from gateway.errors import NotesExhausted, RequestMalformed
from gateway.fencing.incident import (
    LONGEST_NOTE,
    MOST_NOTES,
    Acknowledgement,
    Incident,
    State,
    acknowledgement_details,
)
from gateway.fencing.record import Kind, RecordedEvent

routes = Routes(Subject.RECORD)


class Acknowledging:
    """Puts acknowledgements on record, for the API and for the page."""

    def __init__(self, database: Database, authorisation: ApiAuthorisation) -> None:
        self._database = database
        self._authorisation = authorisation

    async def add(self, request: Request, principal: Principal, identifier: UUID, note: str) -> Incident:
        """Acknowledge the incident of a refused write, durably. Return the incident as it is then.

        Raises ``NotFound`` for an entry that the caller may not see, and ``Denied`` without the grant ``break``. Raises
        ``NotesExhausted``, or ``RequestMalformed`` for a note that is too long or cannot be stored.
        """
        text = _checked(note)
        incident = await incidents.find_incident(self._database, identifier, shown_to(principal))
        if not may_acknowledge(principal, incident):
            where = ("everything",) if incident.about is None else (f"resource {incident.about}", incident.about)
            raise await self._authorisation.denied(request, principal, (Action.BREAK,), *where)
        if len(incident.acknowledgements) >= MOST_NOTES:
            raise NotesExhausted(f"The incident has {MOST_NOTES} acknowledgements.")
        key = incident.key
        await record_event(
            self._database,
            RecordedEvent(
                Kind.ACKNOWLEDGED,
                plane="api",
                resource=incident.about,
                token=key.token,
                holder=key.holder,
                caller=principal.name,
                request_id=request.scope["state"]["request_id"],
                details=acknowledgement_details(incident, text),
            ),
        )
        return await incidents.find_incident(self._database, identifier, shown_to(principal))


def may_acknowledge(principal: Principal, incident: Incident) -> bool:
    """Return whether a caller may intervene where the incident is. If it has several resources, this is everywhere."""
    if principal.scope is not None:
        return False
    if not incident.key.of_a_token or incident.about is None:
        return principal.rights.anywhere(Action.BREAK)
    return principal.rights.on(Action.BREAK, incident.about)


def _checked(note: str) -> str:
    text = (storable(note) or "").strip()
    if len(text) > LONGEST_NOTE:
        raise RequestMalformed(f"note: at most {LONGEST_NOTE:,} characters.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestMalformed("note: must be Unicode without single surrogates.") from None
    return text


class AcknowledgeRequest(BaseModel):
    """A note for the next person who looks at the incident."""

    model_config = ConfigDict(extra="forbid")

    note: Annotated[
        str, Field(max_length=LONGEST_NOTE, examples=["Stopped worker-7 on host db-3."], json_schema_extra=STORABLE)
    ] = ""


class AcknowledgementView(BaseModel):
    """An acknowledgement. Its entry of the record has the same ``id``."""

    id: UUID
    at: datetime
    by: str | None = Field(description="The caller.")
    note: str


class IncidentView(BaseModel):
    """Refused writes that belong together: same reason, caller, resource, token and holder, and no gap of an hour."""

    id: UUID | None = Field(description="The id of its first refused write. Any other one leads to the incident, too.")
    state: State
    reason: str
    resource: str | None = Field(description="Null if its writes have several resources.")
    token: str | None
    holder: str | None
    caller: str | None
    fence: str | None = Field(description="The token that had overtaken the first write.")
    overtaken_by: str | None
    overtaken_at: datetime | None
    count: int = Field(description="Its writes, refused and passed, at all times.")
    refused: int = Field(description="The writes of these that had no effect.")
    passed: int = Field(description="The writes of these that took effect, because their rule observes.")
    inside: int = Field(description="The writes of these that match the filters.")
    first: datetime
    last: datetime
    renewed: bool = Field(description="The writer has taken the resource over with a newer token since.")
    missing: MissingGrantView | None = Field(description="The grant that the last denied request lacked.")
    acknowledgements: list[AcknowledgementView]


class IncidentList(BaseModel):
    now: datetime = Field(description="The time of the states, by the database's clock.")
    complete: bool = Field(description=f"False: only the newest are here, of the newest {LOOKED_AT:,} refused writes.")
    incidents: list[IncidentView]


class IncidentQuery(RejectionFilters):
    """The filters of incidents: those of refused writes, and their state."""

    state: Annotated[tuple[State, ...], Field(max_length=len(State), description="Of several, one suffices.")] = ()
    limit: Annotated[int, Field(ge=1, le=MOST)] = 100


@routes.add(
    "GET /v1/incidents",
    OWN_ENTRIES,
    "List incidents: refused writes that belong together",
    description="The incident with the newest refused write is first. Without `since`: of the last 24 hours.",
)
async def list_incidents(call: Call, query: IncidentQuery) -> IncidentList:
    database, principal = call.services.database, call.principal
    now = await database.now()
    filters = query.filters_for(principal)
    if filters.since is None:
        filters = incidents.of_the_last_day(filters, now)
    found = await incidents.find_incidents(database, filters, now)
    chosen = [one for one in found.incidents if not query.state or one.state(now) in query.state]
    return IncidentList(
        incidents=[_view(one, now, principal) for one in chosen[: query.limit]],
        now=now,
        complete=found.complete and len(chosen) <= query.limit,
    )


@routes.add("GET /v1/incidents/{id}", OWN_ENTRIES, "Read the incident of a refused write")
async def read_incident(call: Call, id: UUID) -> IncidentView:  # noqa: A002 - as in the path
    incident = await incidents.find_incident(call.services.database, id, shown_to(call.principal))
    return _view(incident, await call.services.database.now(), call.principal)


@routes.add(
    "POST /v1/incidents/{id}/acknowledgements",
    Rule(About.BODY, (Action.BREAK,)),  # the record has the resource
    "Acknowledge an incident, with a note, on record",
    description="Needs the grant `break` on its resource; on everything, if the incident is about a caller. "
    "A note can never be changed.",
    answers={409: "The incident has too many notes."},
)
async def acknowledge(call: Call, id: UUID, body: AcknowledgeRequest) -> IncidentView:  # noqa: A002 - as in the path
    services, principal = call.services, call.principal
    acknowledging = Acknowledging(services.database, services.authorisation)
    incident = await acknowledging.add(call.request, principal, id, body.note)
    return _view(incident, await services.database.now(), principal)


def visible_notes(incident: Incident, principal: Principal) -> list[Acknowledgement]:
    """Return the acknowledgements that a caller may see: they are entries of their own callers."""
    only = shown_to(principal)
    return [one for one in incident.acknowledgements if only is None or one.by == only]


def _view(incident: Incident, now: datetime, principal: Principal) -> IncidentView:
    key, fence, missing = incident.key, incident.fence, incident.missing
    return IncidentView(
        id=incident.id,
        state=incident.state(now),
        reason=key.reason,
        resource=incident.about,
        token=None if key.token is None else str(key.token),
        holder=key.holder,
        caller=key.caller,
        fence=None if fence is None else str(fence.token),
        overtaken_by=None if fence is None else fence.raised_by,
        overtaken_at=None if fence is None else fence.raised_at,
        count=incident.count,
        refused=incident.refused,
        passed=incident.passed,
        inside=incident.inside,
        first=incident.first,
        last=incident.last,
        renewed=incident.renewed,
        missing=None if missing is None else MissingGrantView(action=missing.action, on=missing.on),
        acknowledgements=[
            AcknowledgementView(id=one.id, at=one.at, by=one.by, note=one.note)
            for one in visible_notes(incident, principal)
        ],
    )
