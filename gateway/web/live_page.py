"""The live page of refused writes, and its stream."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.db import record, search
from gateway.errors import RequestMalformed, SqlError, Unavailable
from gateway.fencing.merging import Page, merge, read_cursor, write_cursor
from gateway.fencing.record import Entry, Filters, Kind
from gateway.http.streaming import BodyWriter, ReaderSlots, StreamedResponse
from gateway.record.following import Subscription
from gateway.timeline.history import TAKEOVERS
from gateway.web.merged_pages import MergedPage, RecordPage, merge_pages
from gateway.web.places import Place, ask, chosen, names, of_one
from gateway.web.record_lists import form_field
from gateway.web.rendering import Site

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
        """Return the seconds until a sum is due; None if there is none."""
        return max(0.0, self._begun + 1.0 - now) if self._storm.count else None

    def due(self, now: float) -> SkippedEntries | None:
        """Return the sum if it is due, and begin a new second."""
        if not self._storm.count or now - self._begun < 1.0:
            return None
        storm, self._storm = self._storm, SkippedEntries()
        self._begun, self._shown = now, 0
        return storm


# A proxy must not buffer the answer, because the answer never ends.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_SHOWN = 30
"""The number of entries on the page when it is opened."""
_VIEWERS = 100
QUIET = 15.0
"""Seconds between two signs of life, which keep the connection open."""
_AGAIN = 5.0
"""Seconds between two looks at one of several databases."""
_DIGITS = 19
LONGEST = 600.0
"""Seconds after which a stream ends. The browser opens the next one, and the gateway checks its session again."""


def routes(site: Site) -> list[Route]:
    """Build the routes ``/ui/live`` and ``/ui/live/stream``."""
    room = ReaderSlots(_VIEWERS, "live pages")

    async def show(request: Request) -> Response:
        filters, places = _wanted(request), chosen(site.places, request)
        if places[0].name is None:
            entries = await search.find_page(site.place.database, filters, _SHOWN)
            now = await site.place.database.now()
            found = MergedPage(RecordPage(entries, None, None, None), now, {})
            after: str | int = entries[0].position if entries else 0
        else:
            found = await merge_pages(places, lambda _: filters, size=_SHOWN)
            after = write_cursor(found.positions)
        return site.pages.render(
            request,
            "live.html",
            entries=found.page.entries,
            owners=found.page.databases,
            missing=found.page.missing,
            places=names(site.places),
            fields={"prefix": filters.prefix or "", **of_one(places, site.places)},
            takeovers=len(filters.kinds) > 1,
            after=after,
            now=found.now,
        )

    async def stream(request: Request) -> Response:
        filters, places = _wanted(request), chosen(site.places, request)
        opened = (
            _opened(site, room, filters, await _position(site, request))
            if places[0].name is None
            else _opened_over(site, room, filters, places, _cursor(request, places))
        )
        return StreamedResponse(opened, "text/event-stream", _HEADERS, endless=True)

    return [Route("/ui/live", show), Route("/ui/live/stream", stream)]


def _wanted(request: Request) -> Filters:
    sent = request.query_params.multi_items()
    kinds = (Kind.REJECTION, *TAKEOVERS) if form_field(sent, "takeovers") == "true" else (Kind.REJECTION,)
    return Filters(kinds=kinds, prefix=form_field(sent, "prefix"))


async def _position(site: Site, request: Request) -> int | None:
    """Return the last position that the browser, or else the page, has received. None means from now on."""
    last = _last(request)
    if not (last.isascii() and last.isdecimal()) or len(last) > _DIGITS:
        return None
    return int(last) if int(last) <= await record.seal(site.place.database) else None


def _last(request: Request) -> str:
    return request.headers.get("last-event-id") or request.query_params.get("after", "")


def _cursor(request: Request, places: Sequence[Place]) -> dict[str, int]:
    """Return the positions that the browser has received. A database without one is followed from now on."""
    try:
        return read_cursor(_last(request), names(places))
    except RequestMalformed:
        return {}


@asynccontextmanager
async def _opened(
    site: Site, room: ReaderSlots, filters: Filters, after: int | None
) -> AsyncIterator[Callable[[BodyWriter], Coroutine[Any, Any, None]]]:
    with room.place(audits=True):
        async with site.place.follower.subscribed(filters, after) as subscription:
            yield partial(_write_entries, site, subscription, filters)


async def _write_entries(site: Site, subscription: Subscription, filters: Filters, outlet: BodyWriter) -> None:
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
            rows = site.pages.piece("live_rows.html", entries=shown[::-1], owners=())
            pieces.append(_event("entries", {"count": len(shown), "rows": rows}, shown[-1].position))
        if storm := pace.due(clock()):
            rows = site.pages.piece("live_storm.html", storm=storm, filters=filters, several=False)
            pieces.append(_event("storm", {"count": storm.count, "rows": rows}, subscription.position))
        await outlet.write(b"".join(pieces) or b": nothing new\n\n")


@asynccontextmanager
async def _opened_over(
    site: Site, room: ReaderSlots, filters: Filters, places: Sequence[Place], after: Mapping[str, int]
) -> AsyncIterator[Callable[[BodyWriter], Coroutine[Any, Any, None]]]:
    with room.place(audits=True):
        yield partial(_write_merged, site, places, filters, after)


@dataclass(slots=True)
class _Followed:
    """The state of a stream over several databases. ``reached``: all entries up to there have arrived.

    ``missing`` do not answer at the moment. ``changed``: there is something to send.
    """

    reached: dict[str, int]
    missing: set[str] = field(default_factory=set)
    waiting: dict[str, Page[Entry]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    taken: asyncio.Event = field(default_factory=asyncio.Event)

    def answers(self, name: str, *, up: bool) -> None:
        if up is (name in self.missing):
            (self.missing.discard if up else self.missing.add)(name)
            self.changed.set()

    async def follow(self, place: Place, filters: Filters) -> None:
        """Read the entries of one database. They wait until they are taken, so a slow browser costs no memory."""
        name = place.name or ""
        while not place.follower.closed:
            try:
                async with place.follower.subscribed(filters, self.reached.get(name)) as subscription:
                    self.answers(name, up=True)
                    self.reached[name] = subscription.position
                    while entries := await subscription.next():
                        while name in self.waiting:
                            await self.taken.wait()
                        self.waiting[name] = Page(entries, more=False)
                        self.reached[name] = subscription.position
                        self.changed.set()
            except RequestMalformed:  # its record is another one, or has gone back
                self.reached.pop(name, None)
            except (Unavailable, SqlError):
                self.answers(name, up=False)
            await asyncio.sleep(_AGAIN)

    async def watch(self, place: Place) -> None:
        """Notice that a database does not answer. No entry arrives then, and following says nothing."""
        while True:
            await asyncio.sleep(_AGAIN)
            self.answers(place.name or "", up=not (await ask([place], lambda one: one.database.now())).missing)

    def take(self) -> list[tuple[str, Entry]]:
        """Return all that waits, in the order of time."""
        pages, self.waiting = self.waiting, {}
        self.taken.set()
        self.taken = asyncio.Event()
        self.changed.clear()
        most = sum(len(page.entries) for page in pages.values())
        return merge(
            pages, most, time=lambda entry: entry.at, position=lambda entry: entry.position, newest_first=False
        ).entries


async def _write_merged(
    site: Site, places: Sequence[Place], filters: Filters, after: Mapping[str, int], outlet: BodyWriter
) -> None:
    clock = asyncio.get_running_loop().time
    pace, ends = EntryPacer(clock()), clock() + LONGEST
    absent = {name for name in names(places) if name not in after}
    followed, sent = _Followed(dict(after), set(absent)), dict(after)
    told: object = None
    tasks = [
        asyncio.ensure_future(work) for one in places for work in (followed.follow(one, filters), followed.watch(one))
    ]
    try:
        await outlet.write(b"retry: 2000\n\n")
        while clock() < ends and not any(place.follower.closed for place in places):
            wait = pace.wait(clock())
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET if wait is None else wait):
                    await followed.changed.wait()
            arrived = followed.take()
            shown = len(pace.take([entry for _, entry in arrived], clock()))
            sent |= {name: entry.position for name, entry in arrived[:shown]}
            storm = pace.due(clock())
            if pace.wait(clock()) is None:
                # Nothing waits to be counted, so all that has arrived is sent.
                sent |= followed.reached
            at, pieces = write_cursor(sent), list[bytes]()
            if shown:
                newest = arrived[:shown][::-1]
                given = {"entries": [entry for _, entry in newest], "owners": [name for name, _ in newest]}
                rows = site.pages.piece("live_rows.html", **given)
                pieces.append(_event("entries", {"count": shown, "rows": rows}, at))
            if storm:
                rows = site.pages.piece("live_storm.html", storm=storm, filters=filters, several=True)
                pieces.append(_event("storm", {"count": storm.count, "rows": rows}, at))
            state = sorted(followed.missing), sorted(absent - followed.missing)
            if state != told:
                told = state
                rows = site.pages.piece("live_missing.html", missing=state[0], back=state[1])
                pieces.append(_event("databases", {"rows": rows}, at))
            await outlet.write(b"".join(pieces) or b": nothing new\n\n")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _event(kind: str, data: dict[str, object], position: int | str) -> bytes:
    return f"event: {kind}\nid: {position}\ndata: {json.dumps(data)}\n\n".encode()
