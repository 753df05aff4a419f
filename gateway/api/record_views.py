"""The filters that lists of the record take, and the views of its entries."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from gateway.api.requests import MAX_PAGE, STORABLE, TokenText
from gateway.auth.principal import Principal, shown_to
from gateway.db import search
from gateway.db.database import Database
from gateway.fencing.record import (
    FILTERS,
    Entry,
    EntryReason,
    Filters,
    Kind,
    also_denied,
    facts,
    missing_grant,
    object_key,
    program,
    statement,
    trace_id,
)
from gateway.fencing.token import Token

_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_POSITION = r"0|[1-9][0-9]{0,17}"
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_EARLIEST, _LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


def _on_the_calendar(moment: datetime) -> datetime:
    if not _EARLIEST <= moment <= _LATEST:
        raise ValueError("must be between the years 1 and 9999")
    return moment


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be part of a name")
    return text


def _written(value: object) -> object:
    """Refuse a lone number, which the model would take for seconds since 1970."""
    if isinstance(value, str) and not _DAY.match(value):
        raise ValueError("must be a time such as 2026-03-01T04:05:00Z")
    return value


Moment: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(_on_the_calendar)]
Text: TypeAlias = Annotated[str, Field(max_length=1024, json_schema_extra=STORABLE), AfterValidator(_storable)]
Position: TypeAlias = Annotated[int, Field(ge=0, lt=10**18)]
Cursor: TypeAlias = Annotated[str, Field(pattern=rf"^({_POSITION}|{_UUID})$", examples=["4711"])]


def _told(name: str, **more: Any) -> Any:
    return Field(description=FILTERS[name], **more)


class RejectionFilters(BaseModel):
    """The filters of rejections. All given ones must hold. Lists, exports, streams and the page all read them here."""

    model_config = ConfigDict(extra="forbid")

    resource: Annotated[Text | None, _told("resource")] = None
    prefix: Annotated[Text | None, _told("prefix")] = None
    holder: Annotated[Text | None, _told("holder")] = None
    caller: Annotated[Text | None, _told("caller")] = None
    reason: Annotated[EntryReason | None, _told("reason", examples=["token-stale"])] = None
    plane: Annotated[Text | None, _told("plane", examples=["tables", "objects", "api"])] = None
    rule: Annotated[Text | None, _told("rule")] = None
    enforced: Annotated[bool | None, _told("enforced")] = None
    token: Annotated[TokenText | None, _told("token")] = None
    since: Annotated[Moment | None, _told("since")] = None
    until: Annotated[Moment | None, _told("until")] = None

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return (Kind.REJECTION,)

    def filters(self, only: str | None = None) -> Filters:
        """Return the filters of the record. ``only``: the caller that sees no other entries than its own.

        Raises ``TokenMalformed``.
        """
        same = {name: getattr(self, name) for name in RejectionFilters.model_fields.keys() - {"prefix", "token"}}
        token = None if self.token is None else Token.parse(self.token)
        return Filters(kinds=self.kinds, prefix=self.prefix or None, token=token, shown_to=only, **same)

    def filters_for(self, principal: Principal) -> Filters:
        """Return the filters of the record, limited to what this caller may see. Raises ``TokenMalformed``."""
        return self.filters(shown_to(principal))


class EventFilters(RejectionFilters):
    """The filters of entries. All given ones must hold; of several kinds, one suffices."""

    kind: Annotated[list[Kind], _told("kind", max_length=len(Kind))] = []

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(dict.fromkeys(self.kind))


class PageQuery(BaseModel):
    """A part of a list. ``before`` and ``after`` are bounds. The order decides which of them leads to the next page."""

    order: Annotated[Literal["newest", "oldest"], Field(description="The entries that come first.")] = "newest"
    before: Annotated[
        Cursor | None, Field(description="An id or a position. Only entries before it in the record.")
    ] = None
    after: Annotated[Cursor | None, Field(description="An id or a position. Only entries after it in the record.")] = (
        None
    )
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class RejectionQuery(RejectionFilters, PageQuery):
    """A page of rejections."""


class EventQuery(EventFilters, RejectionQuery):
    """A page of entries."""


async def position(database: Database, cursor: str | None, principal: Principal) -> int | None:
    """Return the position of a cursor. Raises ``NotFound`` for the id of an entry that this caller may not see."""
    if cursor is None or re.fullmatch(_POSITION, cursor):
        return None if cursor is None else int(cursor)
    return (await search.find_entry(database, UUID(cursor), shown_to(principal))).position


async def read_page(
    database: Database, query: RejectionQuery, principal: Principal
) -> tuple[list[Entry], dict[str, Any]]:
    """Return the requested entries, and the other fields of the answer.

    Raises ``NotFound`` for a cursor that leads nowhere.
    """
    before = await position(database, query.before, principal)
    after = await position(database, query.after, principal)
    is_reversed = query.order == "oldest"
    asked = search.Slice(query.filters_for(principal), query.limit, before, after, is_reversed)
    page = await search.read_page(database, asked)
    leads = {"before": None if is_reversed else page.older, "after": page.newer if is_reversed else None}
    ids = {name: None if entry is None else entry.id for name, entry in leads.items()}
    total, exact = (None, None) if page.total is None else (page.total.count, page.total.exact)
    return page.entries, {**ids, "total": total, "total_exact": exact}


class MissingGrantView(BaseModel):
    """The grant that a denied request lacked."""

    action: str
    on: str = Field(description="The place or the resource, such as ``table public.orders``.")


class _Facts(BaseModel):
    id: UUID
    position: int = Field(description="Its place in the record, which has one order.")
    at: datetime
    plane: str | None
    rule: str | None
    resource: str | None
    reason: str | None
    enforced: bool | None
    token: str | None = Field(description="The token of the actor: the refused writer, or the new holder.")
    holder: str | None
    caller: str | None
    method: str | None
    target: str | None
    client: str | None
    request_id: str | None
    payload_size: int | None = Field(description="Bytes; null if the body was not read.")
    payload_sha256: str | None
    fence: str | None = Field(description="The fence that refused the write, or the one that was overtaken.")


class RejectionView(_Facts):
    """A refused write. If ``enforced`` is false, it passed although the rule would refuse it."""

    raised_by: str | None
    raised_at: datetime | None
    lag_seconds: float | None = Field(
        description="Seconds for which its writer had been overtaken, counted from when the refusing fence was raised."
    )
    missing: MissingGrantView | None = Field(description="The missing grant, if the reason is ``denied``.")
    also_denied: int = Field(description="Denials without credentials that this entry stands for, besides its own.")
    key: str | None = Field(description="The key of the object, if the body of the request names it (DeleteObjects).")
    trace_id: str | None = Field(description="The trace of the request, if the gateway sends traces.")
    program: str | None = Field(description="The name that the program gave itself, such as its ``User-Agent``.")
    statement: str | None = Field(
        description="The first words of the statement that a guard judged, without values: ``UPDATE orders SET``."
    )


class EntryView(_Facts):
    """An entry of any kind. Its line in an NDJSON export has the same fields."""

    kind: str = Field(description="One of the kinds of entries. A newer gateway on the same record may add others.")
    fence_holder: str | None
    fence_caller: str | None
    fence_raised_at: datetime | None
    details: Mapping[str, Any] | None
    hash: str = Field(description="SHA-256 over the entry and the hash before it, in hexadecimal digits.")


class _Part(BaseModel):
    """The size of the whole list, and where its next page begins."""

    total: int | None = Field(
        description=f"The number of entries, at most {search.TOTAL_CAP:,}; null on all pages but the first."
    )
    total_exact: bool | None = Field(description="False: the list has more than ``total`` entries.")
    before: UUID | None = Field(description="Pass as ``before`` for the next page; null on the last one.")
    after: UUID | None = Field(description="The same for the order ``oldest``: pass as ``after``.")


class RejectionList(_Part):
    rejections: list[RejectionView]


class EntryList(_Part):
    events: list[EntryView]


class RejectionPage(BaseModel):
    """A rejection with its context. Here ``lag_seconds`` counts from the takeover, not from the latest fence."""

    rejection: RejectionView
    takeover: EntryView | None = Field(
        description="The takeover that made its writer a zombie; null if it is not on record or hidden."
    )
    others: list[RejectionView] = Field(description="The same caller's newest other rejections.")


class HeadView(BaseModel):
    """The end of the record. A copy kept elsewhere shows later whether any entry up to it was changed."""

    position: int
    hash: str


def rejection_view(entry: Entry, takeover: Entry | None = None) -> RejectionView:
    """Return the view of a rejection. With ``takeover``, the lag counts from it."""
    fence, lag, missing = entry.fence, search.lag(entry, takeover), missing_grant(entry.details)
    return RejectionView(
        **facts(entry),
        raised_by=None if fence is None else fence.raised_by,
        raised_at=None if fence is None else fence.raised_at,
        lag_seconds=None if lag is None else lag.total_seconds(),
        missing=None if missing is None else MissingGrantView(action=missing.action, on=missing.on),
        also_denied=also_denied(entry.details),
        key=object_key(entry.details),
        trace_id=trace_id(entry.details),
        program=program(entry.details),
        statement=statement(entry.details),
    )


def entry_view(entry: Entry) -> EntryView:
    return EntryView(**facts(entry))
