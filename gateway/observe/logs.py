"""The log: one line of JSON on standard error for what an operator wants to know. Never a secret, never a payload."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import date
from time import monotonic
from typing import Any

import structlog

from gateway.fencing.credential_redaction import redacted
from gateway.observe.events import LINES, Event, Line, RequestAnswered, Sink
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
        case list() | tuple():
            return [_redacted(one) for one in value]
        case dict():
            return {name: _redacted(one) for name, one in value.items()}
        case date():
            return value.isoformat()
        case float():
            return round(value, 6)
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


MOST_IN_A_SECOND = 100
"""Refused writes that are logged in one second. The record has every one; a storm of them must not be one of lines."""


class Log(Sink):
    """A sink: it writes the lines of some kinds of events."""

    def __init__(self, kinds: Iterable[type]) -> None:
        self.handlers = dict.fromkeys(kinds, self._tell)
        # A probe of a service and the requests that need it meet one cause, and share its lines.
        self._latest: dict[str, tuple[Line, Event]] = {}
        self._repeats: Repeats[str] = Repeats(lambda cause, count: _write(*self._latest.pop(cause), count=count))
        self._second, self._lines = 0, 0

    def _tell(self, event: Event) -> None:
        for line in LINES[type(event)]:
            if line.when is None or line.when(event):
                break
        else:
            return
        if line.cause is not None:
            known = line.cause(event)
            cause = known if self._repeats.tells_apart(known) else _OTHERS
            self._latest[cause] = line, event
            self._repeats.note(cause)
        elif not line.rest or self._fits(line, int(monotonic())):
            _write(line, event)

    def _fits(self, line: Line, second: int) -> bool:
        if second != self._second:
            if self._lines > MOST_IN_A_SECOND:
                getattr(_logger, line.level)(line.rest, left_out=self._lines - MOST_IN_A_SECOND)
            self._second, self._lines = second, 0
        self._lines += 1
        return self._lines <= MOST_IN_A_SECOND


_OTHERS = ""


def _write(line: Line, event: Event, **more: int) -> None:
    getattr(_logger, line.level)(line.words, **line.shown(event), **more)


log = Log(LINES.keys() - {RequestAnswered})
log_requests = Log({RequestAnswered})
"""Writes down each request that is over."""
