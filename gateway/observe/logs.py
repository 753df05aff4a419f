"""The log: one line of JSON on standard error for what an operator wants to know. Never a secret, never a payload."""

import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from time import monotonic
from typing import Any, TypeAlias, get_args

import structlog

from gateway.fencing.credential_redaction import redacted
from gateway.observe.events import (
    AlarmCleared,
    AlarmRaised,
    BucketAdministered,
    BypassFound,
    CatalogWarning,
    ConfigurationNoted,
    ConfigurationReloaded,
    ConnectionsCrowded,
    DatabaseOpened,
    EntriesLeftOut,
    Event,
    GuardRefused,
    HeadNoted,
    IntentSettled,
    KeysChanged,
    Listening,
    OutcomeLost,
    PartitionDropped,
    ReloadFailed,
    RequestAnswered,
    RequestFailed,
    RequestNotServed,
    SchemaIsNewer,
    ServiceUnreachable,
    StepReached,
    SweepFailed,
    TombstoneSwept,
    UploadSwept,
    WebhookDelivered,
    WebhookFailed,
    WorkerEnded,
    WriteRefused,
)
from gateway.observe.repeats import Repeats
from gateway.observe.stages import REQUEST_ID, TRACE_IDS


def _of_the_request(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Which request a line is about, where it is about one, and in which trace that is."""
    request_id = line.setdefault("request_id", REQUEST_ID.get())
    if request_id is None:
        del line["request_id"]
    elif request_id in TRACE_IDS:
        line["trace_id"] = TRACE_IDS[request_id]
    return line


def _without_credentials(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove credentials from all texts of a line: a path or the message of an exception may contain an address."""
    return {name: _redacted(value) for name, value in line.items()}


def _redacted(value: Any) -> Any:
    match value:
        case str():
            return redacted(value)
        case list():
            return [_redacted(one) for one in value]
        case dict():
            return {name: _redacted(one) for name, one in value.items()}
        case _:
            return value


_WORKER: dict[str, int] = {}


def name_worker(number: int) -> None:
    """Let each line of this process have the number of its worker."""
    _WORKER["worker"] = number


def _of_the_worker(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {**line, **_WORKER}


PROCESSORS = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _of_the_request,
    _of_the_worker,
    # Without local variables: among them are headers and bodies.
    structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False)),
    _without_credentials,
    structlog.processors.JSONRenderer(),
)
"""Renders an event as a line."""

_PRIORITIES = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}


def _with_priority(_: object, level: str, line: str) -> str:
    """Begin the line with its priority. The journal takes that off, and finds lines by it."""
    return f"<{_PRIORITIES.get(level, 5)}>{line}"


def to_journal(stream: str) -> None:
    """Give lines priorities if standard error is the stream of systemd's journal that ``JOURNAL_STREAM`` names."""
    try:
        standard_error = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):  # it is closed, or no file
        return
    if stream == f"{standard_error.st_dev}:{standard_error.st_ino}":
        _processors.append(_with_priority)


_processors: list[Any] = [*PROCESSORS]
# One write for a line and its end: an unbuffered stream is shared with other workers.
_logger = structlog.wrap_logger(structlog.WriteLogger(sys.stderr), processors=_processors)


class _Libraries(logging.Handler):
    """Writes what libraries log through Python's ``logging``, such as uvicorn and asyncio."""

    def emit(self, record: logging.LogRecord) -> None:
        write = _logger.error if record.levelno >= logging.ERROR else _logger.warning
        write(record.getMessage(), logger=record.name, exc_info=record.exc_info)


@contextmanager
def of_libraries() -> Iterator[None]:
    """Write the warnings and errors of libraries as lines of the log while the block runs."""
    handler = _Libraries(logging.WARNING)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)  # noqa: FBT003 - the signature of the standard library
    try:
        yield
    finally:
        logging.captureWarnings(False)  # noqa: FBT003
        logging.getLogger().removeHandler(handler)


REFUSALS = 100
"""Refused writes that are logged in one second. The record has every one; a storm of them must not be one of lines."""


class _Refusals:
    """Keeps count of the lines of a second."""

    def __init__(self) -> None:
        self._second, self._lines, self._left_out = 0, 0, 0

    def fit(self, second: int) -> bool:
        """Whether one more line fits into this second."""
        if second != self._second:
            if self._left_out:
                _logger.warning("more writes refused, all on record", left_out=self._left_out)
            self._second, self._lines, self._left_out = second, 0, 0
        self._lines += 1
        self._left_out += self._lines > REFUSALS
        return self._lines <= REFUSALS


_refusals = _Refusals()


_Repeated: TypeAlias = RequestNotServed | ServiceUnreachable | SweepFailed


class _Latest(dict[str, _Repeated]):
    """The latest event of each cause whose line is not written yet.

    A probe of a service and the requests that need it meet one cause, and share its lines.
    """

    def __init__(self) -> None:
        super().__init__()
        self._repeats: Repeats[str] = Repeats(lambda cause, count: _write_repeated(self.pop(cause), count))

    def note(self, event: _Repeated) -> None:
        match event:
            case SweepFailed(what, error):
                cause = f"{what}: {error}"
            case RequestNotServed(cause=known) | ServiceUnreachable(error=known):
                cause = event.repeated_as or known
        cause = cause if self._repeats.tells_apart(cause) else _OTHERS
        self[cause] = event
        self._repeats.note(cause)


_OTHERS = ""
_latest = _Latest()


def _write_repeated(event: _Repeated, count: int) -> None:
    match event:
        case RequestNotServed(request_id, area, code, cause, particulars, advice, _):
            _logger.warning(
                "request not served",
                count=count,
                plane=area,
                code=code,
                cause=cause,
                particulars=particulars or None,
                advice=advice,
                request_id=request_id,
            )
        case SweepFailed(what, error):
            _logger.warning("sweep failed", what=what, error=error, count=count)
        case ServiceUnreachable(service, error, advice, _):
            _logger.error("service unreachable", service=service, error=error, advice=advice, count=count)


# Frequent events, and those of each request, are named tuples.
_QUIET = (tuple, StepReached)


def log(event: Event) -> None:  # noqa: C901, PLR0912, PLR0915 - one arm an event
    """Write the event down, unless it is a step of an ordinary write."""
    if isinstance(event, _QUIET):
        return
    match event:
        case WriteRefused(plane, rejection):
            if not _refusals.fit(int(monotonic())):
                return
            _logger.warning(
                "write refused" if rejection.enforced else "write would be refused",
                plane=plane,
                resource=rejection.resource,
                reason=rejection.reason,
                token=str(rejection.attempt.token) if rejection.attempt.token else None,
                fence=str(rejection.fence.token) if rejection.fence else None,
                caller=rejection.attempt.caller,
                holder=rejection.attempt.holder,
                rejection=str(rejection.id),
                request_id=rejection.attempt.request_id,
                **({"action": rejection.missing.action, "on": rejection.missing.on} if rejection.missing else {}),
            )
        case EntriesLeftOut(plane, count):
            _logger.warning("writes of strangers would be refused, not on record", plane=plane, count=count)
        case IntentSettled(resource, bucket, key, write_id):
            _logger.info("write settled", resource=resource, bucket=bucket, key=key, write_id=write_id)
        case OutcomeLost(resource, bucket, key, write_id):
            _logger.warning("outcome lost", resource=resource, bucket=bucket, key=key, write_id=write_id)
        case TombstoneSwept(resource, bucket, key):
            _logger.info("tombstone swept", resource=resource, bucket=bucket, key=key)
        case UploadSwept(bucket, key, upload_id):
            _logger.info("upload swept", bucket=bucket, key=key, upload_id=upload_id)
        case HeadNoted(position, noted):
            _logger.info("record ends", position=position, hash=noted)
        case PartitionDropped(last_day):
            _logger.info("partition of the record dropped", last_day=last_day.isoformat())
        case BypassFound(plane, reason, resource, target, found_by, count):
            _logger.warning(
                "bypass found",
                plane=plane,
                reason=reason,
                resource=resource,
                target=target,
                found_by=found_by,
                count=count,
            )
        case GuardRefused(target, reason, count):
            _logger.warning("guard refused", target=target, reason=reason, count=count)
        case Listening(url, files):
            _logger.info("listening", url=url, files=files)
        case ConnectionsCrowded(connections, limit, closed, network):
            _logger.warning("connections crowded", connections=connections, limit=limit, closed=closed, network=network)
        case RequestNotServed() | ServiceUnreachable() | SweepFailed():
            _latest.note(event)
        case KeysChanged(issuer, keys):
            _logger.info("keys of an issuer changed", issuer=issuer, keys=keys)
        case BucketAdministered(caller, operation, bucket, status):
            _logger.info("bucket administered", caller=caller, operation=operation, bucket=bucket, status=status)
        case WebhookDelivered(webhook, _, position, failures):
            if failures:
                _logger.info("webhook delivers again", webhook=webhook, position=position, failures=failures)
        case WebhookFailed(webhook, error, failures, None):
            _logger.error("webhook paused: its receiver is gone", webhook=webhook, error=error, failures=failures)
        case WebhookFailed(webhook, error, failures, wait):
            _logger.warning("webhook failed", webhook=webhook, error=error, failures=failures, wait=wait)
        case AlarmRaised(alarm, count, minutes):
            _logger.warning("alarm raised", alarm=alarm, count=count, minutes=minutes)
        case AlarmCleared(alarm, count):
            _logger.info("alarm cleared", alarm=alarm, count=count)
        case ConfigurationNoted(warning):
            _logger.warning("configuration noted", warning=warning)
        case SchemaIsNewer(notice):
            _logger.info("schema is newer", notice=notice)
        case DatabaseOpened(term, timeline, started, continues, restored, waiting):
            log_it = _logger.error if restored else _logger.info if continues else _logger.warning
            log_it(
                "database opened",
                term=term,
                timeline=timeline,
                started=started.isoformat(),
                continues=continues,
                restored=restored,
                waiting="all" if waiting is None else waiting,
            )
        case ConfigurationReloaded(by, caller, changes):
            _logger.info("configuration reloaded", by=by, caller=caller, changes=list(changes))
        case ReloadFailed(error):
            _logger.error("reload failed", error=error)
        case WorkerEnded(number, pid, code, wait):
            _logger.error("worker ended", number=number, pid=pid, code=code, wait=wait)
        case CatalogWarning(table, warning):
            _logger.warning("catalog warning", table=table, warning=warning)
        case RequestFailed(request_id, method, path, error):
            _logger.error("request failed", request_id=request_id, method=method, path=path, exc_info=error)


# So that it is not even asked about what happens with each request: see ``Sinks``.
log.handlers = {kind: log for kind in get_args(Event) if not issubclass(kind, _QUIET)}  # type: ignore[attr-defined]


def log_requests(event: Event) -> None:
    """Write down each request that is over. The query is left out: it may be what proves the request."""
    if isinstance(event, RequestAnswered):
        _logger.info(
            "request",
            method=event.method,
            path=event.path,
            status=event.status or None,
            code=event.code,
            duration=round(event.seconds, 6),
            bytes=event.sent,
            plane=event.area,
            caller=event.caller,
            client=event.client,
            request_id=event.request_id,
            client_request_id=event.client_request_id,
        )


log_requests.handlers = {RequestAnswered: log_requests}  # type: ignore[attr-defined]
