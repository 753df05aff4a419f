"""Pages of the record: what is on one, what leads to the next, how much there is in all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.problems import Problem
from gateway.api.record_filters import RejectionQuery, position
from gateway.api.record_views import counted
from gateway.auth.principal import Principal
from gateway.fencing.record import Entry
from gateway.store import search
from gateway.store.database import Database
from gateway.store.search import Total

RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "There is no entry of the id in ``before`` or ``after``."}
}
"""What a list may answer beside its pages."""


@dataclass(frozen=True, slots=True)
class Found:
    """``leads``: the fields of an answer beside its entries."""

    entries: Sequence[Entry]
    leads: dict[str, Any]


async def page(database: Database, asked: RejectionQuery, principal: Principal) -> Found:
    """The page that is asked for. Raises ``NotFound`` for a cursor that leads nowhere."""
    filters = asked.wanted(principal)
    before = await position(database, asked.before, principal)
    after = await position(database, asked.after, principal)
    oldest_first = asked.order == "oldest"
    total: Total | None = None
    if before is None and after is None:
        found, total = await search.first_page(database, filters, asked.limit, oldest_first=oldest_first)
    else:
        found = await search.page(database, filters, asked.limit, before=before, after=after, oldest_first=oldest_first)
    is_full = len(found) == asked.limit
    last = found[-1].id if is_full else None
    return Found(
        found,
        {
            "before": None if oldest_first else last,
            "after": last if oldest_first else None,
            **counted(total),
        },
    )
