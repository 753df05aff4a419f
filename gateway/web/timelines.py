"""The timeline of a resource, from what is asked for to the picture. A page and a report begin with it."""

from dataclasses import dataclass
from datetime import datetime

from gateway.db import record, search, timeline
from gateway.db.database import Database
from gateway.db.record import Head
from gateway.errors import RequestMalformed
from gateway.fencing.record import Filters
from gateway.timeline import picture, window
from gateway.timeline.history import History, Span
from gateway.timeline.shapes import Picture


@dataclass(frozen=True, slots=True)
class Shown:
    """A timeline, made at ``now`` by the database's clock, when the record ended at ``head``.

    ``last`` is when the last thing of note happened to the resource, within the span or not; None if nothing ever has.
    """

    history: History
    picture: Picture
    head: Head
    now: datetime
    last: datetime | None

    @property
    def span(self) -> Span:
        return self.history.span


async def shown(
    database: Database, resource: str, since: datetime | None, until: datetime | None, *, whole: bool = False
) -> Shown:
    """The timeline from ``since`` to ``until``. Without either: of the last day on which something of note happened.

    ``whole``: of everything there is on record instead. Raises ``RequestMalformed`` for spans that are none.
    """
    now = await database.now()
    await record.seal(database)
    head = await record.head(database)
    newest = await search.page(database, Filters(resource=resource), 1, before=head.position + 1)
    last = newest[0].at if newest else None
    if since is None and until is None:
        span = await _eventful(database, resource, last, head.position, now, whole=whole)
    else:
        until = now if until is None else until
        span = checked(until - window.DAY if since is None else since, until)
    history = await timeline.history(database, resource, span, head.position)
    return Shown(history, picture.draw(history), head, now, last)


def checked(since: datetime, until: datetime) -> Span:
    """A span somebody has asked for. Raises ``RequestMalformed``."""
    if not window.EARLIEST <= since < until <= window.LATEST:
        raise RequestMalformed("since must be before until, and both in a year from 2000 to 2199.")
    return Span(since, until)


async def _eventful(
    database: Database, resource: str, last: datetime | None, position: int, now: datetime, *, whole: bool
) -> Span:
    if last is None:
        return Span(now - window.DAY, now)
    # The last on record need not be the last that happened: what is committed late is sealed late.
    within = None if whole else Span(last - window.DAY, max(now, last))
    extent = await timeline.extent(database, resource, position, within)
    assert extent is not None
    return window.fitted(*extent, now)
