"""The record as a stream of server-sent events, which a client resumes at its last event.

The id of an event is its position in the record, so the gateway keeps no state about its clients.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.api.record_views import EventFilters, Position, RejectionFilters, entry_view, rejection_view
from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal, Proof
from gateway.fencing.record import Entry, Filters
from gateway.http.streaming import SEND_TIMEOUT, BodyWriter, ReaderSlots, StreamedResponse
from gateway.record.following import Follower, Subscription

TYPE = "text/event-stream"
RETRY = b"retry: 1000\n"
"""Tells a client to reconnect after a second."""
# A proxy must not buffer the answer, because the answer never ends.
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The limits of streams, in seconds: ``heartbeat`` between two signs of life, ``timeout`` for a client to read.

    A sign of life carries the position of the record. At most ``most`` streams are served at one time.
    """

    heartbeat: float = 15.0
    timeout: float = SEND_TIMEOUT
    most: int = 200


class RejectionStream(RejectionFilters):
    """The filters of a stream of refused writes."""

    after: Annotated[
        Position | None, Field(description="Begin after this position; without it, with the next entry.")
    ] = None


class EventStream(EventFilters, RejectionStream):
    """The filters of a stream of entries."""


LastEventId = Annotated[
    Position | None,
    Header(description="The id of the last event that was received. The stream goes on after it, whatever `after` is."),
]


def routes(follower: Follower, caller: Authenticate, limits: StreamLimits | None = None) -> APIRouter:
    """Build the routes ``/v1/rejections/stream`` and ``/v1/events/stream``.

    A caller that may not audit gets its own entries only.
    """
    router = APIRouter()
    limits = limits or StreamLimits()
    room = ReaderSlots(limits.most, "streams")
    described: dict[str, Any] = {
        "description": "Server-sent events. The id of each event is its position. Comments keep the connection alive.",
        "response_class": Response,
        "responses": {200: {"content": {TYPE: {}}}},
    }

    def answer(
        principal: Principal, filters: Filters, after: int | None, view: Callable[[Entry], BaseModel]
    ) -> Response:
        opening = _opened(follower, room, limits, filters, after, view, principal.proof)
        return StreamedResponse(opening, TYPE, HEADERS, endless=True, timeout=limits.timeout)

    @router.get("/v1/rejections/stream", summary="Stream refused writes as they go on record", **described)
    async def stream_rejections(
        query: Annotated[RejectionStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        after = query.after if last_event_id is None else last_event_id
        return answer(principal, query.filters_for(principal), after, rejection_view)

    @router.get("/v1/events/stream", summary="Stream all entries as they go on record", **described)
    async def stream_events(
        query: Annotated[EventStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        after = query.after if last_event_id is None else last_event_id
        return answer(principal, query.filters_for(principal), after, entry_view)

    return router


@dataclass(frozen=True, slots=True)
class EntryWriter:
    """Writes the entries of a subscription until the stream is closed, the follower is, or ``proof`` has ended.

    ``proof`` is the caller's. ``view``: the form of an entry. ``heartbeat`` is in seconds.
    """

    subscription: Subscription
    heartbeat: float
    view: Callable[[Entry], BaseModel]
    proof: Proof | None

    @property
    def is_proven(self) -> bool:
        """Return whether the caller is still who it has proven to be."""
        return self.proof is None or self.proof.holds()

    async def __call__(self, outlet: BodyWriter) -> None:
        """Write the position first, so a client that is cut off before its first entry can resume."""
        subscription = self.subscription
        await outlet.write(RETRY + progress(str(subscription.position)))
        while self.is_proven:
            try:
                async with asyncio.timeout(self.heartbeat):
                    entries = await subscription.next()
            except TimeoutError:
                await outlet.write(progress(str(subscription.position)))
                continue
            if not entries or not self.is_proven:
                return
            await outlet.write(
                b"".join(event(str(one.position), one.kind, self.view(one).model_dump_json()) for one in entries)
            )


@asynccontextmanager
async def _opened(
    follower: Follower,
    room: ReaderSlots,
    limits: StreamLimits,
    filters: Filters,
    after: int | None,
    view: Callable[[Entry], BaseModel],
    proof: Proof | None,
) -> AsyncIterator[EntryWriter]:
    """Open a stream and yield what writes it. Raises ``TooManyReaders``, ``RequestMalformed``, ``Unavailable``."""
    with room.place(audits=filters.shown_to is None):
        async with follower.subscribed(filters, after) as subscription:
            yield EntryWriter(subscription, limits.heartbeat, view, proof)


def event(identifier: str, kind: str, data: str) -> bytes:
    """Return an event. ``data`` is JSON."""
    return f"id: {identifier}\nevent: {kind}\ndata: {data}\n\n".encode()


def progress(identifier: str) -> bytes:
    """Return an id without data: the client stores it and raises no event."""
    return f"id: {identifier}\n: still here\n\n".encode()
