"""The live page of refused writes, and its stream."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.db import record, search
from gateway.fencing.record import Entry, Filters, Kind
from gateway.http.streaming import BodyWriter, ReaderSlots, StreamedResponse
from gateway.record.following import Subscription
from gateway.timeline.history import TAKEOVERS
from gateway.web.record_lists import form_field
from gateway.web.rendering import Site, database_of

A_SECOND = 20
"""The most entries that are shown one by one in a second."""
_NAMED = 3


@dataclass(slots=True)
class SkippedEntries:
    """Entries that were only counted. ``busiest`` are the resources with the most of them."""

    count: int = 0
    first: datetime | None = None
    last: datetime | None = None
    resources: Counter[str] = field(default_factory=Counter)

    def add(self, entries: Sequence[Entry]) -> None:
        self.count += len(entries)
        self.first = self.first or entries[0].at
        self.last = entries[-1].at
        self.resources.update(entry.resource for entry in entries if entry.resource is not None)

    @property
    def busiest(self) -> list[tuple[str, int]]:
        return self.resources.most_common(_NAMED)


class EntryPacer:
    """Limits how many entries a second are shown. Times are those of a monotonic clock, passed in."""

    def __init__(self, now: float) -> None:
        self._begun = now
        self._shown = 0
        self._storm = SkippedEntries()

    def take(self, entries: Sequence[Entry], now: float) -> Sequence[Entry]:
        """Return the new entries to show at once. The sum at the end of the second counts the others."""
        if not entries:
            return ()
        if now - self._begun >= 1.0 and not self._storm.count:
            self._begun, self._shown = now, 0
        shown = entries[: max(0, A_SECOND - self._shown)] if not self._storm.count else ()
        self._shown += len(shown)
        if len(shown) < len(entries):
            self._storm.add(entries[len(shown) :])
        return shown

    def wait(self, now: float) -> float | None:
        return max(0.0, self._begun + 1.0 - now) if self._storm.count else None

    def due(self, now: float) -> SkippedEntries | None:
        if not self._storm.count or now - self._begun < 1.0:
            return None
        storm, self._storm = self._storm, SkippedEntries()
        self._begun, self._shown = now, 0
        return storm


_SHOWN = 30
"""The number of entries on the page when it is opened."""
_VIEWERS = 100
QUIET = 15.0
"""Seconds between two signs of life, which keep the connection open."""
_DIGITS = 19
LONGEST = 600.0
"""Seconds after which a stream ends. The browser opens the next one, and the gateway checks its session again."""


def routes(site: Site) -> list[Route]:
    room = ReaderSlots(_VIEWERS, "live pages")

    async def show(request: Request) -> Response:
        filters = _wanted(request)
        entries = await search.find_page(site.place.database, filters, _SHOWN)
        return site.pages.render(
            request,
            "live.html",
            entries=entries,
            fields={"prefix": filters.prefix or ""},
            takeovers=len(filters.kinds) > 1,
            after=entries[0].position if entries else 0,
            now=await site.place.database.now(),
        )

    async def stream(request: Request) -> Response:
        of = database_of(request)
        opened = _opened(site, room, _wanted(request), await _position(site, request), of)
        return StreamedResponse(opened, "text/event-stream", endless=True)

    return [Route("/ui/live", show), Route("/ui/live/stream", stream)]


def _wanted(request: Request) -> Filters:
    sent = request.query_params.multi_items()
    kinds = (Kind.REJECTION, *TAKEOVERS) if form_field(sent, "takeovers") == "true" else (Kind.REJECTION,)
    return Filters(kinds=kinds, prefix=form_field(sent, "prefix"))


async def _position(site: Site, request: Request) -> int | None:
    """Return the last position that the browser, or else the page, has received. None means from now on."""
    last = request.headers.get("last-event-id") or request.query_params.get("after", "")
    if not (last.isascii() and last.isdecimal()) or len(last) > _DIGITS:
        return None
    return int(last) if int(last) <= await record.seal(site.place.database) else None


@asynccontextmanager
async def _opened(
    site: Site, room: ReaderSlots, filters: Filters, after: int | None, of: str | None
) -> AsyncIterator[Callable[[BodyWriter], Coroutine[Any, Any, None]]]:
    with room.place(audits=True):
        async with site.place.follower.subscribed(filters, after) as subscription:
            yield partial(_write_entries, site, subscription, filters, of)


async def _write_entries(
    site: Site, subscription: Subscription, filters: Filters, of: str | None, outlet: BodyWriter
) -> None:
    clock = asyncio.get_running_loop().time
    pace, ends = EntryPacer(clock()), clock() + LONGEST
    await outlet.write(b"retry: 2000\n\n")
    while clock() < ends and not site.place.follower.closed:
        wait = pace.wait(clock())
        entries: Sequence[Entry] = ()
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET if wait is None else wait):
                entries = await subscription.next()
        shown = pace.take(entries, clock())
        pieces = []
        if shown:
            rows = site.pages.piece("live_rows.html", entries=shown[::-1], of=of)
            pieces.append(_event("entries", {"count": len(shown), "rows": rows}, shown[-1].position))
        if storm := pace.due(clock()):
            rows = site.pages.piece("live_storm.html", storm=storm, filters=filters, of=of)
            pieces.append(_event("storm", {"count": storm.count, "rows": rows}, subscription.position))
        await outlet.write(b"".join(pieces) or b": nothing new\n\n")


def _event(kind: str, data: dict[str, object], position: int) -> bytes:
    return f"event: {kind}\nid: {position}\ndata: {json.dumps(data)}\n\n".encode()
