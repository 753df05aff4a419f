"""``gateway audit report``: fetches an incident report from a gateway, and keeps it as a file."""

from datetime import UTC, datetime
from pathlib import Path

from gateway.commands.calling import Gateway
from gateway.errors import ConfigurationError
from gateway.fencing.resource import canonical


def fetch(gateway: Gateway, resource: str, since: datetime | None, until: datetime | None) -> str:
    """The report as HTML. ``since`` and ``until`` are aware; without them, of the last day with anything of note.

    Raises ``ResourceMalformed``, and what ``Gateway.fetch`` raises.
    """
    asked = {"since": since, "until": until}
    parameters = {name: moment.isoformat() for name, moment in asked.items() if moment is not None}
    report = gateway.fetch(f"/v1/reports/{canonical(resource)}", parameters)
    if not report.lstrip().startswith("<!doctype html>"):
        raise gateway.stranger()
    return report


def keep(report: str, output: Path) -> None:
    """Write the report to a file. Raises ``ConfigurationError`` where that is not possible."""
    try:
        output.write_text(report, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"{output}: the report cannot be written there: {error.strerror}", advice=""
        ) from error


def moment(option: str, text: str | None) -> datetime | None:
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
