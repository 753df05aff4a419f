"""The client of the record: pages, a stream that resumes after an interruption, exports, reports, incidents."""

import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import wraps
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from uuid import UUID

import typer

from gateway.errors import ConfigurationError, Unavailable
from gateway.fencing.record import FILTERS, Kind
from gateway.fencing.resource import canonical
from gateway.text import age, plain_time

if TYPE_CHECKING:
    from gateway.commands.api_client import Gateway


Entry: TypeAlias = Mapping[str, Any]
"""An entry in the form of ``/v1/events``."""
Filters: TypeAlias = Mapping[str, Any]
"""The parameters of a request. None stands for no parameter."""

# Seconds. A stream sends something at least every fifteen.
_SILENCE_OF_STREAM = 40.0
_LONGEST_PAUSE = 30.0


def find_entries(gateway: "Gateway", filters: Filters, most: int, order: str = "newest") -> tuple[list[Entry], str]:
    """Return at most ``most`` entries, and the total in words. Raises what ``Gateway.call`` raises."""
    entries: list[Entry] = []
    total = ""
    bound = "before" if order == "newest" else "after"
    for found, page in gateway.pages("/v1/events", "events", bound, {**filters, "order": order}, most):
        entries += found
        total = total or _in_words(page["total"], page["total_exact"])
    return entries, total


def read_head(gateway: "Gateway", database: str | None) -> tuple[int, str]:
    """Return the end of the record: position and hash. Raises what ``Gateway.call`` raises."""

    def read(document: Any) -> tuple[int, str]:
        return int(document["position"]), str(document["hash"])

    return gateway.call("GET", "/v1/record/head", read, parameters={"database": database})


def follow_entries(
    gateway: "Gateway", filters: Filters, last: int, lost: Callable[[str, float], None]
) -> Iterator[Entry]:
    """Yield the ``last`` entries, and then each new one, forever. No entry is lost or repeated by a reconnection.

    ``lost`` gets the reason of a lost connection, and the seconds until the retry. Raises what ``Gateway.call`` raises,
    but ``Unavailable`` only before the first connection.
    """
    position: str | None = None
    attempts = count()
    while True:
        try:
            headers = {} if position is None else {"Last-Event-ID": position}
            with gateway.streamed("/v1/events/stream", filters, headers=headers, silence=_SILENCE_OF_STREAM) as pieces:
                for identifier, entry in _events(pieces):
                    attempts = count()
                    if position is None and last:
                        # Backwards from the beginning of the stream, so that no entry is missed between the two.
                        before = {**filters, "before": int(identifier) + 1}
                        yield from find_entries(gateway, before, last)[0][::-1]
                    position = identifier
                    if entry is not None:
                        yield entry
            raise Unavailable("The stream has ended.")
        except Unavailable as error:
            if position is None:
                raise
            pause = min(2.0 ** next(attempts), _LONGEST_PAUSE)
            lost(error.message, pause)
            time.sleep(pause)


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a text that arrives in pieces, without their ends. Only a line feed ends a line."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[str, Entry | None]]:
    """Yield server-sent events: the id and the entry; None instead of an entry for an id alone."""
    fields: dict[bytes, bytes] = {}
    for line in lines(pieces):
        name, _, value = line.partition(b":")
        if line:
            fields[name] = value.removeprefix(b" ")
        elif b"id" in fields:
            entry = json.loads(fields[b"data"]) if b"data" in fields else None
            yield fields[b"id"].decode(), entry
            fields = {}


def _in_words(total: int | None, exact: bool | None) -> str:  # noqa: FBT001 - as it is answered
    return "" if total is None else f"{total:,}" if exact else f"more than {total:,}"


def fetch_report(gateway: "Gateway", resource: str, since: datetime | None, until: datetime | None) -> str:
    """Fetch a report as HTML. ``since`` and ``until`` are aware. The default is the last day with an event of note.

    Raises ``ResourceMalformed``, and what ``Gateway.fetch`` raises.
    """
    asked = {"since": since and since.isoformat(), "until": until and until.isoformat()}
    report = gateway.fetch(f"/v1/reports/{canonical(resource)}", asked)
    if not report.lstrip().startswith("<!doctype html>"):
        raise gateway.no_gateway()
    return report


def parse_moment(option: str, text: str | None) -> datetime | None:
    """Read a time of the command line, in UTC without a zone. Raises ``ConfigurationError``, which names the option."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{option}: must be a time such as 2026-03-01T04:05, in UTC", advice="") from error


def _text(name: str) -> Any:
    return Annotated[str | None, typer.Option(help=FILTERS[name])]


def _time(name: str) -> Any:
    return Annotated[str | None, typer.Option(metavar="TIME", help=FILTERS[name])]


WHAT: Mapping[str, Any] = {
    "kind": Annotated[list[Kind] | None, typer.Option("--kind", help=FILTERS["kind"])],
    **{name: _text(name) for name in ("resource", "prefix", "holder", "caller", "reason", "plane", "rule", "token")},
    "enforced": Annotated[bool | None, typer.Option("--enforced/--observed", help=FILTERS["enforced"])],
}
"""Options that filter by the content of entries."""

DatabaseOption = Annotated[
    str | None, typer.Option("--database", metavar="NAME", help="The database, if the gateway serves several.")
]
WHERE: Mapping[str, Any] = {"database": DatabaseOption}
"""The option that chooses a database."""

WHEN: Mapping[str, Any] = {name: _time(name) for name in ("since", "until")}
"""Options that filter by time."""


def takes_filters(*options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options in place of its parameter ``filters``, which collects their values.

    typer derives options from the signature of a function. So the decorated function has a signature with the options.
    """
    hints = {name: hint for group in options for name, hint in group.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def unfiltered(**given: Any) -> None:
            said = {name: given.pop(name) for name in hints}
            command(**given, filters=_as_filters(said))

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += _parameters(hints) if one.name == "filters" else [one]
        # inspect.signature, and so typer, reads the signature from this attribute.
        unfiltered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return unfiltered

    return decorated


def _parameters(hints: Mapping[str, Any]) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in hints.items()]


def _as_filters(said: Mapping[str, Any]) -> Filters:
    """Return the filters with their times in ISO 8601. Raises ``ConfigurationError`` for an invalid time."""
    moments = {name: parse_moment(f"--{name}", said[name]) for name in WHEN if name in said}
    return {**said, **{name: None if read is None else read.isoformat() for name, read in moments.items()}}


Incident: TypeAlias = Mapping[str, Any]
"""An incident in the form of ``/v1/incidents``."""

INCIDENT_COLUMNS = ("state", "resource", "writer", "reason", "overtaken by", "refused", "passed", "first", "last", "id")
OPTIONAL_COLUMNS = ("first", "id", "overtaken by", "refused")
"""Columns that a narrow terminal loses, the first first."""


def find_incidents(gateway: "Gateway", filters: Filters, most: int) -> tuple[list[Incident], datetime, bool]:
    """Return at most ``most`` incidents, the time of their states, and whether these are all.

    Raises what ``Gateway.call`` raises.
    """

    def read(page: Any) -> tuple[list[Incident], datetime, bool]:
        return list(page["incidents"]), datetime.fromisoformat(page["now"]), bool(page["complete"])

    return gateway.call("GET", "/v1/incidents", read, parameters={**filters, "limit": most})


def acknowledge_incident(gateway: "Gateway", identifier: str, note: str, database: str | None) -> tuple[str, str, int]:
    """Acknowledge the incident of a refused write; return its id, its state, and how often it was acknowledged.

    Raises ``ConfigurationError``, and what ``Gateway.call`` raises.
    """
    try:
        incident = UUID(identifier)
    except ValueError as error:
        raise ConfigurationError(f"{identifier} is no id of an incident or of a refused write", advice="") from error
    return gateway.call(
        "POST",
        f"/v1/incidents/{incident}/acknowledgements",
        lambda found: (str(found["id"]), str(found["state"]), len(found["acknowledgements"])),
        body={"note": note},
        parameters={"database": database},
    )


def incident_cells(incident: Incident, now: datetime) -> tuple[str, ...]:
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
