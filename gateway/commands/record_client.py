"""How the commands of the record read it from a gateway: pages, a stream that goes on where it broke off, exports."""

import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from gateway.commands.api_client import Gateway
from gateway.errors import ConfigurationError, Unavailable
from gateway.fencing.record import Kind
from gateway.fencing.resource import canonical

Entry: TypeAlias = Mapping[str, Any]
"""An entry as ``/v1/events`` answers it."""
Filters: TypeAlias = Mapping[str, Any]
"""The parameters of a request: those that are None are left out."""

_PAGE = 1000
# Seconds. A stream says something at least every fifteen; an export may have to look for long.
_SILENCE_OF_STREAM = 40.0
_SILENCE_OF_EXPORT = 600.0
_LONGEST_PAUSE = 30.0


def given_filters(filters: Filters) -> dict[str, Any]:
    """The filters that ask for something."""
    return {name: value for name, value in filters.items() if value is not None and value != []}


def find_entries(gateway: Gateway, filters: Filters, most: int, order: str = "newest") -> tuple[list[Entry], str]:
    """At most so many entries, and how many there are in all, in words. Raises what ``Gateway.call`` raises."""
    entries: list[Entry] = []
    total = ""
    bounds: dict[str, Any] = {}
    while len(entries) < most:
        asked = {**given_filters(filters), **bounds, "order": order, "limit": min(_PAGE, most - len(entries))}
        page = gateway.call("GET", "/v1/events", parameters=asked)
        try:
            entries += page["events"]
            total = total or _in_words(page["total"], page["total_exact"])
            bound = "before" if order == "newest" else "after"
            if page[bound] is None:
                break
            bounds = {bound: entries[-1]["position"]}
        except (LookupError, TypeError) as error:
            raise gateway.stranger() from error
    return entries, total


def read_head(gateway: Gateway) -> tuple[int, str]:
    """The end of the record: position and hash. Raises what ``Gateway.call`` raises."""
    document = gateway.call("GET", "/v1/record/head")
    try:
        return int(document["position"]), str(document["hash"])
    except (LookupError, TypeError, ValueError) as error:
        raise gateway.stranger() from error


@contextmanager
def export_entries(gateway: Gateway, form: str, filters: Filters) -> Iterator[Iterator[bytes]]:
    """An export in pieces. Raises ``Unavailable`` where it breaks off, and what ``Gateway.call`` raises."""
    with gateway.streamed(f"/v1/events.{form}", given_filters(filters), silence=_SILENCE_OF_EXPORT) as pieces:
        yield pieces


def follow_entries(
    gateway: Gateway, filters: Filters, last: int, lost: Callable[[str, float], None]
) -> Iterator[Entry]:
    """The ``last`` entries that are there, and then what comes, for ever; each once, whatever happens in between.

    ``lost`` is told why there is no connection any more, and after how many seconds it is tried again. Raises what
    ``Gateway.call`` raises, ``Unavailable`` only where there was none to begin with.
    """
    position: int | None = None
    attempts = count()
    while True:
        try:
            headers = {} if position is None else {"Last-Event-ID": str(position)}
            with gateway.streamed(
                "/v1/events/stream", given_filters(filters), headers=headers, silence=_SILENCE_OF_STREAM
            ) as pieces:
                for identifier, entry in _events(pieces):
                    attempts = count()
                    if position is None and last:
                        # From where the stream begins, back: so nothing falls between the two.
                        before = {**filters, "before": identifier + 1}
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
        except (ValueError, LookupError, TypeError) as error:
            raise gateway.stranger() from error


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a text that comes in pieces, without their ends. Only a line feed ends one."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from whole
    if rest:
        yield rest


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[int, Entry | None]]:
    """Server-sent events: id, and what it is about; None where only the id goes on."""
    fields: dict[bytes, bytes] = {}
    for line in lines(pieces):
        name, _, value = line.partition(b":")
        if line:
            fields[name] = value.removeprefix(b" ")
        elif b"id" in fields:
            yield int(fields[b"id"]), json.loads(fields[b"data"]) if b"data" in fields else None
            fields = {}


def _in_words(total: int | None, exact: bool | None) -> str:  # noqa: FBT001 - as it is answered
    return "" if total is None else f"{total:,}" if exact else f"more than {total:,}"


def fetch_report(gateway: Gateway, resource: str, since: datetime | None, until: datetime | None) -> str:
    """The report as HTML. ``since`` and ``until`` are aware; without them, of the last day with anything of note.

    Raises ``ResourceMalformed``, and what ``Gateway.fetch`` raises.
    """
    asked = {"since": since, "until": until}
    parameters = {name: moment.isoformat() for name, moment in asked.items() if moment is not None}
    report = gateway.fetch(f"/v1/reports/{canonical(resource)}", parameters)
    if not report.lstrip().startswith("<!doctype html>"):
        raise gateway.stranger()
    return report


def write_report(report: str, output: Path) -> None:
    """Write the report to a file. Raises ``ConfigurationError`` where that is not possible."""
    try:
        output.write_text(report, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{output}: the report cannot be written there: {error.strerror}", advice=""
        ) from error


def parse_moment(option: str, text: str | None) -> datetime | None:
    """A time of the command line; one without a zone is in UTC. Raises ``ConfigurationError``, naming the option."""
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
        return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{option}: must be a time such as 2026-03-01T04:05, which is in UTC", advice=""
        ) from error


Since = Annotated[str | None, typer.Option(metavar="TIME", help="From then on, e.g. 2026-03-01T04:05 (UTC).")]

WHAT: Mapping[str, Any] = {
    "kind": Annotated[list[Kind] | None, typer.Option("--kind", help="Only this kind; may be repeated.")],
    "resource": Annotated[str | None, typer.Option(help="Only this resource.")],
    "prefix": Annotated[str | None, typer.Option(help="Only resources whose name begins so.")],
    "holder": Annotated[str | None, typer.Option(help="Only of this holder.")],
    "caller": Annotated[str | None, typer.Option(help="Only of this caller.")],
    "reason": Annotated[str | None, typer.Option(help="Only refused for this reason, e.g. token-stale.")],
    "plane": Annotated[str | None, typer.Option(help="Only of tables, objects or api.")],
    "rule": Annotated[str | None, typer.Option(help="Only under the rule of this table, or this pattern of keys.")],
    "token": Annotated[str | None, typer.Option(help="Only with this token.")],
    "enforced": Annotated[
        bool | None, typer.Option("--enforced/--observed", help="Only what was refused, or only what was let pass.")
    ],
}
"""What entries are about."""

WHEN: Mapping[str, Any] = {
    "since": Since,
    "until": Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")],
}
"""When they happened."""


def takes_filters(*options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options in the place of its parameter ``filters``, in which it gets what was said.

    typer makes options of the parameters that a function says it has; so the function says what it would have, had they
    been written out.
    """
    hints = {name: hint for group in options for name, hint in group.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def unfiltered(**given: Any) -> None:
            said = {name: given.pop(name) for name in hints}
            command(**given, filters=_as_asked(said))

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += _parameters(hints) if one.name == "filters" else [one]
        # What inspect.signature, and so typer, takes for the signature of a function.
        unfiltered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return unfiltered

    return decorated


def _parameters(hints: Mapping[str, Any]) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in hints.items()]


def _as_asked(said: Mapping[str, Any]) -> Filters:
    """Raises ``ConfigurationError`` for what is no time."""
    moments = {name: parse_moment(f"--{name}", said[name]) for name in WHEN if name in said}
    return {**said, **{name: None if read is None else read.isoformat() for name, read in moments.items()}}
