"""What the routes of the record may be asked for: the same filters for lists, exports and streams."""

import re
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from gateway.api.requests import MAX_PAGE, TokenText, storable
from gateway.auth.principal import Principal, shown_to
from gateway.db import search
from gateway.db.database import Database
from gateway.fencing.record import Filters, Kind
from gateway.fencing.token import Token

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


class Page(BaseModel):
    """Which part of a list. ``before`` and ``after`` are both bounds; which one leads on is a question of the order."""

    order: Annotated[Literal["newest", "oldest"], Field(description="What comes first.")] = "newest"
    before: Annotated[
        Cursor | None, Field(description="An id or a position: only entries before that one in the record.")
    ] = None
    after: Annotated[
        Cursor | None, Field(description="An id or a position: only entries after that one in the record.")
    ] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


class RejectionQuery(RejectionFilters, Page):
    """A page of rejections."""


class EventQuery(EventFilters, RejectionQuery):
    """A page of entries."""


async def position(database: Database, cursor: str | None, principal: Principal) -> int | None:
    """Where a cursor points to. Raises ``NotFound`` for the id of something that this caller is not shown."""
    if cursor is None or re.fullmatch(_POSITION, cursor):
        return None if cursor is None else int(cursor)
    return (await search.entry(database, UUID(cursor), shown_to(principal))).position
