"""The client of incidents: lists and acknowledgements over HTTP, as rows for the terminal."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from uuid import UUID

from gateway.commands.record_client import Filters, given_filters
from gateway.errors import ConfigurationError
from gateway.text import age, plain_time

if TYPE_CHECKING:
    from gateway.commands.api_client import Gateway

Incident: TypeAlias = Mapping[str, Any]
"""An incident in the form of ``/v1/incidents``."""

COLUMNS = ("state", "resource", "writer", "reason", "overtaken by", "refused", "passed", "first", "last", "id")
OPTIONAL = ("first", "id", "overtaken by", "refused")
"""Columns that a narrow terminal loses, the first first."""


class Found(NamedTuple):
    """Incidents, the time of their states, and whether these are all."""

    incidents: list[Incident]
    now: datetime
    complete: bool


def find_incidents(gateway: "Gateway", filters: Filters, most: int) -> Found:
    """Return at most ``most`` incidents. Raises what ``Gateway.call`` raises."""
    page = gateway.call("GET", "/v1/incidents", parameters={**given_filters(filters), "limit": most})
    try:
        now = datetime.fromisoformat(page["now"])
        return Found(list(page["incidents"]), now, bool(page["complete"]))
    except (LookupError, TypeError, ValueError) as error:
        raise gateway.no_gateway() from error


def acknowledge(gateway: "Gateway", identifier: str, note: str, database: str | None) -> Incident:
    """Acknowledge the incident of a refused write. Raises ``ConfigurationError``, and what ``Gateway.call`` raises."""
    try:
        incident = UUID(identifier)
    except ValueError as error:
        raise ConfigurationError(f"{identifier} is no id of an incident or of a refused write", advice="") from error
    answer: Incident = gateway.call(
        *("POST", f"/v1/incidents/{incident}/acknowledgements"),
        body={"note": note},
        parameters=given_filters({"database": database}),
    )
    return answer


def cells(incident: Incident, now: datetime) -> tuple[str, ...]:
    """Return the columns of an incident, at ``now``."""
    writer = incident["holder"] or incident["caller"] or ""
    token = "" if incident["token"] is None else f" ({incident['token']})"
    over = "" if incident["fence"] is None else f"{incident['overtaken_by']} ({incident['fence']})"
    last = f"wrote {age(datetime.fromisoformat(incident['last']), now)}"
    first = plain_time(datetime.fromisoformat(incident["first"]))
    return (
        incident["state"],
        incident["resource"] or "several",
        f"{writer}{token}",
        incident["reason"],
        over,
        str(incident["count"] - incident["passed"]),
        str(incident["passed"]),
        first,
        last,
        incident["id"] or "",
    )
