"""The client of incidents: lists and acknowledgements over HTTP, as rows for the terminal."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from gateway.commands.record_client import Filters, given_filters
from gateway.errors import ConfigurationError
from gateway.text import plain_time

if TYPE_CHECKING:
    from gateway.commands.api_client import Gateway

Incident: TypeAlias = Mapping[str, Any]
"""An incident in the form of ``/v1/incidents``."""

COLUMNS = ("state", "resource", "writer", "reason", "overtaken by", "refusals", "first", "last", "id")
OPTIONAL = ("first", "id", "overtaken by", "refusals")
"""Columns that a narrow terminal loses, the first first."""


def find_incidents(gateway: "Gateway", filters: Filters, most: int) -> tuple[list[Incident], bool]:
    """Return at most ``most`` incidents, and whether these are all. Raises what ``Gateway.call`` raises."""
    page = gateway.call("GET", "/v1/incidents", parameters={**given_filters(filters), "limit": most})
    try:
        return list(page["incidents"]), bool(page["complete"])
    except (LookupError, TypeError) as error:
        raise gateway.no_gateway() from error


def acknowledge(gateway: "Gateway", identifier: str, note: str) -> Incident:
    """Acknowledge the incident of a refused write. Raises ``ConfigurationError``, and what ``Gateway.call`` raises."""
    try:
        incident = UUID(identifier)
    except ValueError as error:
        raise ConfigurationError(f"{identifier} is no id of an incident or of a refused write", advice="") from error
    answer: Incident = gateway.call("POST", f"/v1/incidents/{incident}/acknowledgements", body={"note": note})
    return answer


def cells(incident: Incident) -> tuple[str, ...]:
    """Return the columns of an incident."""
    writer = incident["holder"] or incident["caller"] or ""
    token = "" if incident["token"] is None else f" ({incident['token']})"
    over = "" if incident["fence"] is None else f"{incident['overtaken_by']} ({incident['fence']})"
    last = plain_time(datetime.fromisoformat(incident["last"]))
    first = plain_time(datetime.fromisoformat(incident["first"]))
    return (
        incident["state"],
        incident["resource"] or "several",
        f"{writer}{token}",
        incident["reason"],
        over,
        str(incident["count"]),
        first,
        last,
        incident["id"] or "",
    )
