"""Stages: any part of a request that may take time, as one event at its begin and one at its end.

An operator can act on each of them. A slow ``begin`` is the database, a slow ``put`` the store. A slow ``turn`` is
another write of the same holder.
"""

from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Self, TypeAlias

from gateway.errors import GatewayError
from gateway.observe.events import Observe, Service, ServiceAnswered, ServiceAsked, StageEntered, StageLeft


class staged:  # noqa: N801 - reads as a phrase at its call sites
    """While this lasts, a stage is under way."""

    __slots__ = ("_area", "_began", "_observe", "_stage")

    def __init__(self, observe: Observe, area: str, stage: str) -> None:
        self._observe, self._area, self._stage = observe, area, stage

    def __enter__(self) -> None:
        self._observe(StageEntered(self._area, self._stage))
        self._began = perf_counter()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        failure = None if kind is None else kind.__name__
        self._observe(StageLeft(self._area, self._stage, perf_counter() - self._began, failure))


class asking:  # noqa: N801
    """While this lasts, another service is asked. Set ``status`` to what it answers."""

    __slots__ = ("_began", "_method", "_observe", "_path", "_service", "status")

    def __init__(self, observe: Observe, service: Service, method: str, path: str) -> None:
        self._observe, self._service, self._method, self._path = observe, service, method, path
        self.status: int | None = None

    def __enter__(self) -> Self:
        self._observe(ServiceAsked(self._service, self._method, self._path))
        self._began = perf_counter()
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        failure = None if error is None else getattr(error, "code", type(error).__name__)
        seconds = perf_counter() - self._began
        self._observe(ServiceAnswered(self._service, self._method, self.status, seconds, failure))


Headers: TypeAlias = tuple[tuple[str, str], ...]

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request; None outside of any."""

FAULTS: ContextVar[list[GatewayError] | None] = ContextVar("faults", default=None)
"""The errors of services that the request has met. The protocol of objects keeps only their texts."""


def note_fault(error: GatewayError) -> None:
    """Note an error of a service, for the log line of the request that meets it."""
    faults = FAULTS.get()
    if faults is not None:
        faults[:] = [error]


ORIGIN: ContextVar[object | None] = ContextVar("origin", default=None)
"""The position in a trace; None without a trace. Only ``gateway.observe.tracing`` looks into it."""

SENT_ALONG: ContextVar[Headers] = ContextVar("sent_along", default=())
"""Headers that go along with requests to other services, so that they can carry the trace on. They are not signed: what
stands on the way may change them.
"""

TRACE_IDS: dict[str, str] = {}
"""The trace of each request under way, by the id of the request; empty without tracing."""
