"""The record as it goes on: server-sent events, which a client that comes back takes up where it was.

The id of an event is its position in the record, so nothing is remembered of a client that is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from gateway.api.record_views import EventFilters, Position, RejectionFilters, entry_view, rejection_view
from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal
from gateway.fencing.record import Entry, Filters
from gateway.http.streaming import SEND_TIMEOUT, BodyWriter, ReaderSlots, StreamedResponse
from gateway.record.following import Follower, Subscription

_TYPE = "text/event-stream"
# A proxy that collected the answer before it passed it on would never pass it on.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Seconds. ``heartbeat``: after which a client hears that it is still connected, and how far the record is.

    ``timeout``: in which it must take something of what waits for it. ``most``: so many are served at one time.
    """

    heartbeat: float = 15.0
    timeout: float = SEND_TIMEOUT
    most: int = 200


class RejectionStream(RejectionFilters):
    """Which refused writes are told."""

    after: Annotated[
        Position | None, Field(description="Begin after this position; without it, with what comes from now on.")
    ] = None


class EventStream(EventFilters, RejectionStream):
    """Which entries are told."""


LastEventId = Annotated[
    Position | None,
    Header(description="The id of the last event that was received: the stream goes on after it, whatever `after` is."),
]


def routes(follower: Follower, caller: Authenticate, manners: StreamLimits | None = None) -> APIRouter:
    """``/v1/rejections/stream`` and ``/v1/events/stream``. Those who may not audit are told of their own entries."""
    router = APIRouter()
    manners = manners or StreamLimits()
    room = ReaderSlots(manners.most, "streams")
    described: dict[str, Any] = {
        "description": "Server-sent events. The id of each is its position; comments keep the connection alive.",
        "response_class": Response,
        "responses": {200: {"content": {_TYPE: {}}}},
    }

    def answer(filters: Filters, after: int | None, view: Callable[[Entry], BaseModel]) -> Response:
        opening = _opened(follower, room, manners, filters, after, view)
        return StreamedResponse(opening, _TYPE, _HEADERS, endless=True, timeout=manners.timeout)

    @router.get("/v1/rejections/stream", summary="Refused writes as they go on record", **described)
    async def stream_rejections(
        query: Annotated[RejectionStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        return answer(query.wanted(principal), query.after if last_event_id is None else last_event_id, rejection_view)

    @router.get("/v1/events/stream", summary="The whole record as it goes on", **described)
    async def stream_events(
        query: Annotated[EventStream, Query()],
        principal: Annotated[Principal, Depends(caller)],
        last_event_id: LastEventId = None,
    ) -> Response:
        return answer(query.wanted(principal), query.after if last_event_id is None else last_event_id, entry_view)

    return router


@asynccontextmanager
async def _opened(
    follower: Follower,
    room: ReaderSlots,
    manners: StreamLimits,
    filters: Filters,
    after: int | None,
    view: Callable[[Entry], BaseModel],
) -> AsyncIterator[Callable[[BodyWriter], Any]]:
    """What writes a stream. Raises ``TooManyReaders``, ``RequestMalformed``, ``Unavailable``."""
    with room.place(audits=filters.shown_to is None):
        async with follower.subscribed(filters, after) as subscription:
            yield partial(_tell, subscription, manners.heartbeat, view)


async def _tell(
    subscription: Subscription, heartbeat: float, view: Callable[[Entry], BaseModel], outlet: BodyWriter
) -> None:
    """Tell for ever. The first words are where it begins, for a client that is cut off before it has heard anything."""
    await outlet.write(b"retry: 1000\n" + _progress(subscription))
    while True:
        try:
            async with asyncio.timeout(heartbeat):
                entries = await subscription.next()
        except TimeoutError:
            await outlet.write(_progress(subscription))
            continue
        await outlet.write(b"".join(_event(entry, view(entry)) for entry in entries))


def _event(entry: Entry, view: BaseModel) -> bytes:
    return f"id: {entry.position}\nevent: {entry.kind}\ndata: {view.model_dump_json()}\n\n".encode()


def _progress(subscription: Subscription) -> bytes:
    """An id without data: the client notes it down, and no event comes of it."""
    return f"id: {subscription.position}\n: still here\n\n".encode()
