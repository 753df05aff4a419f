"""Stages: any part of a request that may take time, as one event at its begin and one at its end.

An operator can act on each of them. A slow ``begin`` is the database, a slow ``put`` the store. A slow ``turn`` is
another write of the same holder.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from time import perf_counter
from types import TracebackType
from typing import Self, TypeAlias

from gateway.observe.events import Observe, Service, ServiceAnswered, ServiceAsked, StageEntered, StageLeft

STAGES: Mapping[str, Mapping[str, str]] = {
    "tables": {
        "queue": "writes waiting for the trip that takes them along",
        "statement": "a trip of writes, until it is committed",
        "read-queue": "plain reads waiting for their trip",
        "read": "a trip of plain reads",
        "admission": "whether a token is taken, where that has to be looked up or the issuer to be asked",
        "transaction": "a write by a transaction of its own: claim, statements, commit",
        "settle": "making certain of object writes of an older holder",
        "record": "putting a refusal on record",
    },
    "objects": {
        "begin": "claiming the resource and announcing the write",
        "head": "looking at the object",
        "put": "the store takes the object in",
        "complete": "the store makes the object of its parts",
        "amend": "the store changes what goes with the object",
        "delete": "the store deletes the object",
        "entomb": "a tombstone takes the place of the object",
        "finish": "forgetting the intent",
        "abandon": "forgetting the intent of a write that can have no effect any more",
        "forbid": "settling: the ETag that an older write waits for must not come back",
        "bump": "settling: the object gets another ETag",
        "give-up": "settling: an upload is given up",
        "raise": "a barrier raises the fence",
        "turn": "waiting for another write of the same holder",
        "record": "putting a refusal on record",
    },
    "api": {"record": "putting a refusal on record"},
    "leases": {
        "acquire": "a lock, at once or not at all",
        "wait": "a lock, after waiting in its queue for as long as was asked for",
        "barrier": "the barrier, as a part of acquiring",
        "renew": "one lease, or many",
        "release": "giving a lease back",
    },
}
"""Every stage, by its area, and what it is."""


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

ORIGIN: ContextVar[object | None] = ContextVar("origin", default=None)
"""The position in a trace; None without a trace. Only ``gateway.observe.tracing`` looks into it."""

SENT_ALONG: ContextVar[Headers] = ContextVar("sent_along", default=())
"""Headers that go along with requests to other services, so that they can carry the trace on. They are not signed: what
stands on the way may change them.
"""

TRACE_IDS: dict[str, str] = {}
"""The trace of each request under way, by the id of the request; empty without tracing."""
