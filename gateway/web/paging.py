"""Pages of the record, newest first: so many entries, and the addresses of the pages beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.fencing.record import Entry
from gateway.store import search
from gateway.store.database import Database
from gateway.store.search import Total
from gateway.web.filters import Asked

SIZE = 50


@dataclass(frozen=True, slots=True)
class Page:
    """``older`` and ``newer`` are what to ask for next, as parameters; None where nothing more is there.

    ``total`` is counted for the first page alone.
    """

    entries: Sequence[Entry]
    total: Total | None
    newer: dict[str, int] | None
    older: dict[str, int] | None


async def page(database: Database, asked: Asked, size: int = SIZE) -> Page:
    """The page that is asked for. One entry more than it has is looked for, to know whether there are any."""
    backwards = asked.after is not None and asked.before is None
    found = await search.page(
        database, asked.filters, size + 1, before=asked.before, after=asked.after, oldest_first=backwards
    )
    more, entries = len(found) > size, found[:size]
    if backwards:
        entries.reverse()
    total = None
    if asked.before is None and asked.after is None:
        total = await search.total(database, asked.filters) if more else Total(len(entries), exact=True)
    if not entries:
        return Page((), total, None, None)
    is_newest = asked.before is None if not backwards else not more
    is_oldest = not more if not backwards else False
    return Page(
        entries,
        total,
        None if is_newest else {"after": entries[0].position},
        None if is_oldest else {"before": entries[-1].position},
    )
