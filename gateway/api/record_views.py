"""Entries of the record as they are answered: rejections by themselves, and all kinds alike."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from gateway.api.requests import MAX_PAGE, TokenText, storable
from gateway.auth.principal import Principal, shown_to
from gateway.db import search
from gateway.db.database import Database
from gateway.db.search import Total
from gateway.fencing.record import Entry, Filters, Kind
from gateway.fencing.token import Token
from gateway.http.problems import Problem

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_POSITION = r"0|[1-9][0-9]{0,17}"
_EARLIEST, _LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _on_the_calendar(moment: datetime) -> datetime:
    if not _EARLIEST <= moment <= _LATEST:
        raise ValueError("must be between the years 1 and 9999")
    return moment


Moment: TypeAlias = Annotated[AwareDatetime, AfterValidator(_on_the_calendar)]
Text: TypeAlias = Annotated[str, Field(max_length=1024)]
Position: TypeAlias = Annotated[int, Field(ge=0, lt=10**18)]
Cursor: TypeAlias = Annotated[str, Field(pattern=rf"^({_POSITION}|{_UUID})$", examples=["4711"])]


class RejectionFilters(BaseModel):
    """Which rejections; all that are given must hold."""

    model_config = ConfigDict(extra="forbid")

    resource: Text | None = None
    prefix: Annotated[Text | None, Field(description="How the name of the resource begins.")] = None
    holder: Text | None = None
    caller: Text | None = None
    reason: Annotated[Text | None, Field(examples=["token-stale"])] = None
    plane: Annotated[Text | None, Field(examples=["tables", "objects", "api"])] = None
    rule: Annotated[
        Text | None, Field(description="The table, or the pattern of keys, whose rule the write came under.")
    ] = None
    enforced: Annotated[bool | None, Field(description="False: only what a rule in observe mode let pass.")] = None
    token: TokenText | None = None
    since: Annotated[Moment | None, Field(description="When it happened: from then on.")] = None
    until: Annotated[Moment | None, Field(description="When it happened: before then.")] = None

    def of(self, principal: Principal, kinds: tuple[Kind, ...]) -> Filters:
        """As the record takes them, for what this caller is shown. Raises ``RequestMalformed``, ``TokenMalformed``."""
        return Filters(
            kinds=kinds,
            resource=storable(self.resource),
            prefix=storable(self.prefix) or None,
            holder=storable(self.holder),
            caller=storable(self.caller),
            reason=storable(self.reason),
            plane=storable(self.plane),
            rule=storable(self.rule),
            enforced=self.enforced,
            token=None if self.token is None else Token.parse(self.token),
            since=self.since,
            until=self.until,
            shown_to=shown_to(principal),
        )

    def wanted(self, principal: Principal) -> Filters:
        """Of rejections."""
        return self.of(principal, (Kind.REJECTION,))


class EventFilters(RejectionFilters):
    """Which entries; all that are given must hold. ``kind`` may be repeated: any of them."""

    kind: Annotated[list[Kind], Field(max_length=len(Kind))] = []

    def wanted(self, principal: Principal) -> Filters:
        return self.of(principal, tuple(dict.fromkeys(self.kind)))


class PageQuery(BaseModel):
    """Which part of a list. ``before`` and ``after`` are both bounds; which one leads on is a question of the order."""

    order: Annotated[Literal["newest", "oldest"], Field(description="What comes first.")] = "newest"
    before: Annotated[
        Cursor | None, Field(description="An id or a position: only entries before that one in the record.")
    ] = None
    after: Annotated[
        Cursor | None, Field(description="An id or a position: only entries after that one in the record.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class RejectionQuery(RejectionFilters, PageQuery):
    """A page of rejections."""


class EventQuery(EventFilters, RejectionQuery):
    """A page of entries."""


async def position(database: Database, cursor: str | None, principal: Principal) -> int | None:
    """Where a cursor points to. Raises ``NotFound`` for the id of something that this caller is not shown."""
    if cursor is None or re.fullmatch(_POSITION, cursor):
        return None if cursor is None else int(cursor)
    return (await search.entry(database, UUID(cursor), shown_to(principal))).position


RESPONSES: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "There is no entry of the id in ``before`` or ``after``."}
}
"""What a list may answer beside its pages."""


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """``leads``: the fields of an answer beside its entries."""

    entries: Sequence[Entry]
    leads: dict[str, Any]


async def page(database: Database, asked: RejectionQuery, principal: Principal) -> FoundEntries:
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
    return FoundEntries(
        found,
        {
            "before": None if oldest_first else last,
            "after": last if oldest_first else None,
            **total_fields(total),
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


class Totals(BaseModel):
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


class RejectionList(Totals):
    rejections: list[RejectionView]
    before: Before
    after: After


class EntryList(Totals):
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


def total_fields(total: Total | None) -> dict[str, Any]:
    """The fields of ``Counted``."""
    return {
        "total": None if total is None else total.count,
        "total_exact": None if total is None else total.exact,
    }


def _fields(entry: Entry, view: type[BaseModel]) -> dict[str, Any]:
    """What an entry and its view call by the same name."""
    same = {name: getattr(entry, name) for name in view.model_fields.keys() & set(Entry.__slots__) - {"fence"}}
    return {**same, "token": None if entry.token is None else str(entry.token)}
