"""Entries of the record as they are answered: rejections by themselves, and all kinds alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from pydantic import BaseModel, Field

from gateway.api.record_filters import RejectionQuery, position
from gateway.auth.principal import Principal
from gateway.db import search
from gateway.db.database import Database
from gateway.db.search import Total
from gateway.fencing.record import Entry, Kind
from gateway.http.problems import Problem

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


class RejectionView(BaseModel):
    """A refused write, or, where ``enforced`` is false, one that passed and would have been refused."""

    id: UUID
    position: int = Field(description="Its place in the record, which is in one order.")
    at: datetime
    resource: str | None
    reason: str | None
    enforced: bool | None
    token: str | None
    fence: str | None
    raised_by: str | None
    raised_at: datetime | None
    lag_seconds: float | None = Field(
        description="For how long its writer had been overtaken: since the fence that refused it was raised, at least."
    )
    holder: str | None
    caller: str | None
    plane: str | None
    rule: str | None
    method: str | None
    target: str | None
    payload_size: int | None = Field(description="Bytes; null where the body was not read.")
    payload_sha256: str | None
    client: str | None
    request_id: str | None


class EntryView(BaseModel):
    """An entry of any kind. The fields are those of its line in an NDJSON export."""

    position: int
    id: UUID
    at: datetime
    kind: Kind
    plane: str | None
    rule: str | None
    resource: str | None
    reason: str | None
    enforced: bool | None
    token: str | None = Field(description="Of who acted: the refused writer, the new holder.")
    holder: str | None
    caller: str | None
    method: str | None
    target: str | None
    client: str | None
    request_id: str | None
    payload_size: int | None
    payload_sha256: str | None
    fence: str | None = Field(description="What it met: the fence that refused it, or the one it has overtaken.")
    fence_holder: str | None
    fence_caller: str | None
    fence_raised_at: datetime | None
    details: Mapping[str, Any] | None
    hash: str = Field(description="SHA-256 over the entry and the hash before it, in hexadecimal digits.")


class Counted(BaseModel):
    """How much there is beside the page."""

    total: int | None = Field(
        description=f"How many there are, counted up to {search.TOTAL_CAP:,}; null on all pages but the first."
    )
    total_exact: bool | None = Field(description="False: there are more than ``total``.")


Before: TypeAlias = Annotated[
    UUID | None, Field(description="Pass as ``before`` for the next page; null on the last one.")
]
After: TypeAlias = Annotated[
    UUID | None, Field(description="The same where the oldest are asked for first: pass as ``after``.")
]


class RejectionList(Counted):
    rejections: list[RejectionView]
    before: Before
    after: After


class EntryList(Counted):
    events: list[EntryView]
    before: Before
    after: After


class RejectionPage(BaseModel):
    """All about one rejection. Here ``lag_seconds`` is since the takeover, whatever has been raised after it."""

    rejection: RejectionView
    takeover: EntryView | None = Field(
        description="What made its writer a zombie; null where it is not on record, or not for this caller."
    )
    others: list[RejectionView] = Field(description="The same caller's newest other rejections.")


class HeadView(BaseModel):
    """The end of the record. Noted down elsewhere, it shows later whether anything up to it has been changed."""

    position: int
    hash: str


def rejection_view(entry: Entry, takeover: Entry | None = None) -> RejectionView:
    """With the takeover that has caused it, the lag is since then."""
    fence, lag = entry.fence, search.lag(entry, takeover)
    return RejectionView(
        **_fields(entry, RejectionView),
        fence=None if fence is None else str(fence.token),
        raised_by=None if fence is None else fence.raised_by,
        raised_at=None if fence is None else fence.raised_at,
        lag_seconds=None if lag is None else lag.total_seconds(),
    )


def entry_view(entry: Entry) -> EntryView:
    fence = entry.fence
    return EntryView(
        **_fields(entry, EntryView),
        fence=None if fence is None else str(fence.token),
        fence_holder=None if fence is None else fence.holder,
        fence_caller=None if fence is None else fence.caller,
        fence_raised_at=None if fence is None else fence.raised_at,
    )


def counted(total: Total | None) -> dict[str, Any]:
    """The fields of ``Counted``."""
    return {
        "total": None if total is None else total.count,
        "total_exact": None if total is None else total.exact,
    }


def _fields(entry: Entry, view: type[BaseModel]) -> dict[str, Any]:
    """What an entry and its view call by the same name."""
    same = {name: getattr(entry, name) for name in view.model_fields.keys() & set(Entry.__slots__) - {"fence"}}
    return {**same, "token": None if entry.token is None else str(entry.token)}
