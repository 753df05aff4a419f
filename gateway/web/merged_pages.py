"""Pages of a list over several records, merged by time. Their positions are cursors with one of each database."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db import search
from gateway.db.search import Total
from gateway.fencing.merging import Page, merge, read_cursor, write_cursor
from gateway.fencing.record import Entry, Filters
from gateway.web.places import Place, ask

SIZE = 50
"""Entries of a page."""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page of a list. ``older`` and ``newer`` are the parameters of the next pages; None if there are none.

    ``total`` is counted for the first page only. ``databases``: that of each entry, if the list is over several;
    ``missing``: those whose entries the page lacks.
    """

    entries: Sequence[Entry]
    total: Total | None
    newer: Mapping[str, int | str] | None
    older: Mapping[str, int | str] | None
    databases: Sequence[str] = ()
    missing: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MergedPage:
    """A page over several databases. ``now``: the latest time of their clocks, None if none answers.

    ``positions``: where a stream of the entries after this page begins.
    """

    page: RecordPage
    now: datetime | None
    positions: Mapping[str, int]


async def merge_pages(
    places: Sequence[Place],
    filters: Callable[[datetime], Filters],
    before: str | None = None,
    after: str | None = None,
    size: int = SIZE,
) -> MergedPage:
    """Read the page at a cursor, or the first one. ``filters`` are those at a moment of a database's clock.

    Raises ``RequestMalformed`` for an invalid cursor.
    """
    backwards = after is not None and before is None
    text = after if backwards else before
    names = [place.name or "" for place in places]
    cursor = {} if text is None else read_cursor(text, names)

    async def read(place: Place) -> tuple[datetime, Page[Entry], Total | None]:
        database, at = place.database, cursor.get(place.name or "")
        now = await database.now()
        asked = filters(now)
        bounds = {"after": at} if backwards else {"before": at}
        found = await search.find_page(database, asked, size + 1, oldest_first=backwards, **bounds)
        page = Page(found[:size], len(found) > size)
        if text is not None:
            return now, page, None
        return now, page, await search.count_entries(database, asked) if page.more else Total(len(found), exact=True)

    # A database that was down has no position. On the way back to newer entries, it has no place to begin.
    able = [place for place in places if not backwards or place.name in cursor]
    answers = await ask(able, read)
    pages = {place.name or "": page for place, (_, page, _) in answers.found}
    merged = merge(
        pages,
        size,
        time=lambda entry: entry.at,
        position=lambda entry: entry.position,
        newest_first=not backwards,
        cursor=cursor,
    )
    rows = merged.entries[::-1] if backwards else merged.entries
    newest, oldest = dict[str, int](), dict[str, int]()
    for name, entry in rows:
        newest.setdefault(name, entry.position)
        oldest[name] = entry.position
    reached, newer, older = merged.cursor, dict[str, int](), dict[str, int]()
    if backwards:
        newer = reached if merged.more else newer
        older = {name: oldest.get(name, position + 1) for name, position in reached.items()}
    else:
        newer = newer if text is None else {name: newest.get(name, max(reached[name] - 1, 0)) for name in reached}
        older = reached if merged.more else older
    totals = [total for _, (_, _, total) in answers.found if total is not None]
    page = RecordPage(
        [entry for _, entry in rows],
        Total(sum(one.count for one in totals), all(one.exact for one in totals)) if totals else None,
        {"after": write_cursor(newer)} if newer and rows else None,
        {"before": write_cursor(older)} if older and rows else None,
        [name for name, _ in rows],
        (*answers.missing, *(place.name or "" for place in places if place not in able)),
    )
    positions = {name: newest.get(name, max(reached.get(name, 0) - 1, 0)) for name in pages}
    return MergedPage(page, max((now for _, (now, _, _) in answers.found), default=None), positions)
