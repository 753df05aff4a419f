"""The page of one entry of the record: a refused write with its context, or any other event."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.db import fences, record, search
from gateway.fencing.record import (
    Entry,
    Filters,
    Kind,
    also_denied,
    missing_grant,
    object_key,
    program,
    statement,
    trace_id,
)
from gateway.web.advice import kind_title, rejection_advice
from gateway.web.rendering import Site, address, database_of, entry_named

_LINE = 16
_MOST_BINARY = 1024


@dataclass(frozen=True, slots=True)
class PayloadLines:
    """A payload as ``lines`` of text, or of bytes in hex with their offsets (``binary``)."""

    lines: list[str]
    binary: bool


def payload_lines(body: bytes) -> PayloadLines:
    """Return the payload as lines of text, or the first bytes of what is not UTF-8. A cut last character is dropped."""
    try:
        return PayloadLines(_text(body).splitlines(), binary=False)
    except UnicodeDecodeError:
        begins = range(0, min(len(body), _MOST_BINARY), _LINE)
        return PayloadLines([_hex(begin, body[begin : begin + _LINE]) for begin in begins], binary=True)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if error.start < len(body) - 3 or error.reason != "unexpected end of data":
            raise
        return body[: error.start].decode()


def _hex(offset: int, piece: bytes) -> str:
    printable = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in piece)
    return f"{offset:06x}  {piece.hex(' '):<{3 * _LINE}} {printable}"


GROUPS = (("Resources", "resource"), ("Holders", "holder"), ("Callers", "caller"))
"""The groups by which an alarm counts refused writes: a title, and the filter of lists."""


@dataclass(frozen=True, slots=True)
class AlarmSummary:
    """An alarm: ``count`` refused writes to resources that begin with ``prefix``, from ``since`` until ``until``.

    Both are whole seconds, as form fields have them, around all counted writes. ``groups`` has for each filter the most
    frequent names, which may be None, with their counts. ``rejections`` are the newest. ``raised`` is the entry that
    began an alarm that is over.
    """

    name: str
    prefix: str
    more_than: int
    minutes: int
    count: int
    since: datetime
    until: datetime
    groups: Mapping[str, list[tuple[str | None, int]]]
    rejections: list[UUID]
    raised: UUID | None


def alarm_summary(entry: Entry) -> AlarmSummary | None:
    """Return the alarm of an entry; None for other entries, and for details that cannot be read as an alarm."""
    details: Mapping[str, Any] = entry.details or {}
    try:
        minutes = int(details["minutes"])
        match entry.kind:
            case Kind.ALARM_RAISED:
                until = _moment(details["reached"])
                since = until
            case Kind.ALARM_CLEARED:
                since, until = _moment(details["since"]), _moment(details["until"])
            case _:
                return None
        return AlarmSummary(
            name=str(details["alarm"]),
            prefix=str(details["prefix"]),
            more_than=int(details["more_than"]),
            minutes=minutes,
            count=int(details["count"]),
            since=(since - timedelta(minutes=minutes)).replace(microsecond=0),
            until=until.replace(microsecond=0) + timedelta(seconds=1),
            groups={name: [_counted(one) for one in details.get(f"{name}s", ())] for _, name in GROUPS},
            rejections=[UUID(one) for one in details.get("rejections", ())],
            raised=UUID(details["raised"]) if details.get("raised") else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _counted(one: Any) -> tuple[str | None, int]:
    name = one["name"]
    return None if name is None else str(name), int(one["count"])


def _moment(text: Any) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


_OTHERS = 10


def routes(site: Site) -> list[Route]:
    """Build the routes ``/ui/rejections/{id}`` and ``/ui/events/{id}``."""

    async def show_rejection(request: Request) -> Response:
        entry = await search.find_entry(site.place.database, entry_named(request))
        if entry.kind is not Kind.REJECTION:
            return RedirectResponse(address(f"/ui/events/{entry.id}", of=database_of(request)), 307)
        takeover = await search.find_takeover(site.place.database, entry)
        lag = search.lag(entry, takeover)
        fence = None if entry.resource is None else await fences.read(site.place.database, entry.resource)
        kept = await record.read_payload(site.place.database, entry.id)
        by_caller = Filters(kinds=(Kind.REJECTION,), caller=entry.caller)
        others = await search.find_page(site.place.database, by_caller, _OTHERS + 1)
        return site.pages.render(
            request,
            "rejection.html",
            entry=entry,
            takeover=takeover,
            lag=lag,
            fence=fence,
            missing=missing_grant(entry.details),
            also_denied=also_denied(entry.details),
            key=object_key(entry.details),
            program=program(entry.details),
            statement=statement(entry.details),
            trace_id=trace_id(entry.details),
            kept=kept,
            payload=None if kept is None else payload_lines(kept.body),
            others=[other for other in others if other.id != entry.id][:_OTHERS],
            advice=rejection_advice(entry, lag, fence),
            now=await site.place.database.now(),
        )

    async def show_event(request: Request) -> Response:
        entry = await search.find_entry(site.place.database, entry_named(request))
        if entry.kind is Kind.REJECTION:
            return RedirectResponse(address(f"/ui/rejections/{entry.id}", of=database_of(request)), 307)
        now = await site.place.database.now()
        alarm = alarm_summary(entry)
        return site.pages.render(
            request,
            "event.html",
            entry=entry,
            title=kind_title(entry.kind),
            alarm=alarm,
            groups=GROUPS,
            program=program(entry.details),
            trace_id=trace_id(entry.details),
            now=now,
        )

    return [Route("/ui/rejections/{id}", show_rejection), Route("/ui/events/{id}", show_event)]
