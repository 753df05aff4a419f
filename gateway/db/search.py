"""Searches the record: pages of it, its size, one entry with the entries around it, counts by a field.

A search goes stretch by stretch from the end at which its page begins. Each stretch is a partition of some days,
planned by its statistics. One statement for all would be planned for each, and read all for an unknown holder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from gateway.db import record
from gateway.db.database import Database
from gateway.db.overview import LOOKED_AT
from gateway.db.pool import load
from gateway.errors import NotFound
from gateway.fencing.record import EQUAL, Entry, Filters, MissingGrant

# An entry is sealed after it has happened, so no day before can have it. The database's clock may have been put back,
# and a day is a generous correction.
_CORRECTION = timedelta(days=1)
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Values:
    """The values of a statement, in the order of their numbers."""

    def __init__(self, *values: object) -> None:
        self.all = [*values]

    def add(self, value: object) -> str:
        """How the statement refers to the value."""
        self.all.append(value)
        return f"${len(self.all)}"


def conditions(filters: Filters, values: Values) -> list[str]:
    """Yield the conditions of a row, to be joined by AND; add the values they compare with to ``values``."""
    found = [operation.format(values.add(value)) for operation, value in _comparisons(filters)]
    if filters.enforced is not None:
        found.append("enforced" if filters.enforced else "NOT enforced")
    return found


def first_day(filters: Filters) -> date:
    """No day before this one has what is asked for."""
    if filters.since is None:
        return date.min
    try:
        return filters.since.astimezone(UTC).date() - _CORRECTION
    except OverflowError:  # at either end of the calendar
        return date.min


def after_prefix(prefix: str) -> str | None:
    """Return the least text that sorts after all texts with this prefix, by code points; None if there is none."""
    kept = prefix.rstrip(chr(_LAST))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)


def _comparisons(filters: Filters) -> Iterator[tuple[str, object]]:
    match filters.kinds:
        case ():
            pass
        case (kind,):
            yield "kind = {}", str(kind)
        case kinds:
            yield "kind = ANY ({}::text[])", [str(kind) for kind in kinds]
    yield from ((f"{name} = {{}}", value) for name in EQUAL if (value := getattr(filters, name)) is not None)
    if filters.prefix is not None:
        yield "resource >= {}", filters.prefix
        after = after_prefix(filters.prefix)
        if after is not None:
            yield "resource < {}", after
    if filters.token is not None:
        yield "epoch = {}", filters.token.epoch
        yield "value = {}", filters.token.value
    if filters.since is not None:
        yield "at >= {}", filters.since
    if filters.until is not None:
        yield "at < {}", filters.until
    if filters.shown_to is not None:
        yield "caller = {}", filters.shown_to


TOTAL_CAP = 10_000
"""So far entries are counted one by one; beyond it there are "more than"."""

_SQL = load("search")
# Stretches that are looked at before any others are planned for: planning for one takes a tenth of a millisecond.
_NEAR = 8
# So many of the others at once: twice as many arms of a statement take more than twice as long.
_MOST = 64


class Grouping(StrEnum):
    RESOURCE = "resource"
    HOLDER = "holder"
    CALLER = "caller"
    REASON = "reason"
    RULE = "rule"
    PLANE = "plane"
    KIND = "kind"


@dataclass(frozen=True, slots=True)
class PartitionDays:
    """The days of a partition, ``first`` and ``last`` included; those to come are not among them."""

    first: date
    last: date

    @property
    def days(self) -> list[date]:
        return [self.first + timedelta(days=number) for number in range((self.last - self.first).days + 1)]


@dataclass(frozen=True, slots=True)
class Total:
    """The number of entries. If it is not ``exact``, there are more than ``count``."""

    count: int
    exact: bool


@dataclass(frozen=True, slots=True)
class Group:
    """How many entries have the same value of a field, None being one too; when the last of them happened."""

    value: str | None
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class WriterGroup:
    """How many entries have the same caller, writer and reason. ``writer``: the holder or the program it names."""

    caller: str | None
    writer: str | None
    reason: str | None
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class DenialGroup:
    """How many requests of a caller lacked one grant. ``missing`` is None for entries that do not say it."""

    caller: str | None
    missing: MissingGrant | None
    count: int
    last: datetime


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the record: at most ``limit`` entries between two positions, neither included."""

    filters: Filters
    limit: int
    before: int | None = None
    after: int | None = None
    oldest_first: bool = False

    def conditions(self, values: Values) -> list[str]:
        wanted = conditions(self.filters, values)
        if self.before is not None:
            wanted.append(f"position < {values.add(self.before)}")
        if self.after is not None:
            wanted.append(f"position > {values.add(self.after)}")
        return wanted


class Page(NamedTuple):
    """A page of a list, in its order. ``newer`` and ``older``: the entries beyond which the next pages begin, if any.

    ``total`` is counted for the first page only.
    """

    entries: list[Entry]
    newer: Entry | None
    older: Entry | None
    total: Total | None


async def find_page(
    database: Database,
    filters: Filters,
    limit: int,
    *,
    before: int | None = None,
    after: int | None = None,
    oldest_first: bool = False,
) -> list[Entry]:
    """Return the entries of a slice."""
    await record.seal(database)
    asked = Slice(filters, limit, before, after, oldest_first)
    return await _look(database, asked, await _stretches(database, filters, before, after), limit)


async def read_page(database: Database, asked: Slice) -> Page:
    """Return a page of a list. It looks for one entry more, to know whether another page follows."""
    await record.seal(database)
    stretches = await _stretches(database, asked.filters, asked.before, asked.after)
    found = await _look(database, asked, stretches, asked.limit + 1)
    entries, is_more, total = found[: asked.limit], len(found) > asked.limit, None
    if asked.before is None and asked.after is None:
        total = (
            await _count(database, asked.filters, stretches, TOTAL_CAP) if is_more else Total(len(found), exact=True)
        )
    following = entries[-1] if is_more else None
    came_from = asked.after if asked.oldest_first else asked.before
    preceding = entries[0] if entries and came_from is not None else None
    newer, older = (following, preceding) if asked.oldest_first else (preceding, following)
    return Page(entries, newer, older, total)


async def count_entries(database: Database, filters: Filters, cap: int = TOTAL_CAP) -> Total:
    """How many entries there are, wherever a page begins."""
    await record.seal(database)
    return await _count(database, filters, await _stretches(database, filters), cap)


async def find_entry(database: Database, identifier: UUID, shown_to: str | None = None) -> Entry:
    """Return the entry of that id. Raise ``NotFound`` if there is none, or if ``shown_to`` may not see it."""
    await record.seal(database)
    rows = await database.search(_SQL["by_id"], identifier, shown_to)
    if not rows:
        raise NotFound(f"There is no entry {identifier} on record.", advice="Check the id; old days are not kept.")
    return record.entry_from_row(rows[0])


async def find_takeover(database: Database, rejection: Entry) -> Entry | None:
    """Return the takeover that made its writer a zombie: the first on record that went beyond its token."""
    if rejection.resource is None or rejection.token is None:
        return None
    token = rejection.token
    rows = await database.search(_SQL["takeover"], rejection.resource, token.epoch, token.value, rejection.position)
    return record.entry_from_row(rows[0]) if rows else None


def lag(rejection: Entry, takeover: Entry | None = None) -> timedelta | None:
    """Return how long its writer had been a zombie. Without the takeover, the least possible time; None if unknown.

    A write that was refused for another reason than an old token has not been overtaken.
    """
    fence = rejection.fence
    if rejection.token is None or fence is None or fence.token <= rejection.token:
        return None
    since = fence.raised_at if takeover is None else takeover.at
    # The fence may have been raised, and the refusal judged, before either is written down.
    return max(rejection.at - since, timedelta())


async def count_groups(database: Database, filters: Filters, by: Grouping, limit: int) -> list[Group]:
    """Return the ``limit`` most frequent values of a field among the newest ``LOOKED_AT`` entries."""
    await record.seal(database)
    values = Values(first_day(filters), limit, LOOKED_AT)
    counted = _with(_SQL["groups"], conditions(filters, values)).format(field=by)
    rows = await database.search(counted, *values.all)
    return [Group(row["value"], row["entries"], row["last"]) for row in rows]


async def count_writers(database: Database, filters: Filters, limit: int) -> list[WriterGroup]:
    """Return the ``limit`` most frequent writers and reasons among the newest ``LOOKED_AT`` entries."""
    await record.seal(database)
    values = Values(first_day(filters), limit, LOOKED_AT)
    rows = await database.search(_with(_SQL["writers"], conditions(filters, values)), *values.all)
    return [WriterGroup(row["caller"], row["writer"], row["reason"], row["entries"], row["last"]) for row in rows]


async def count_denials(database: Database, since: datetime, limit: int) -> list[DenialGroup]:
    """Return the ``limit`` most frequent denials since a time, by caller and missing grant."""
    await record.seal(database)
    rows = await database.search(_SQL["denials"], first_day(Filters(since=since)), since, limit, LOOKED_AT)
    return [
        DenialGroup(
            row["caller"],
            None if row["action"] is None else MissingGrant(row["action"], row["on"]),
            row["entries"],
            row["last"],
        )
        for row in rows
    ]


async def read_end(database: Database) -> tuple[int, date]:
    """Return the position of the last sealed entry, 0 if there is none, and the day that is being sealed."""
    (row,) = await database.search(_SQL["end"])
    return row["position"], row["day"]


async def read_after(database: Database, position: int, day: date, limit: int) -> list[tuple[Entry, date]]:
    """At most ``limit`` sealed entries after one of that day, in order, each with its day."""
    rows = await database.search(_SQL["after"], day, position, limit)
    return [(record.entry_from_row(row), row["day"]) for row in rows]


async def list_days(
    database: Database, filters: Filters, before: int | None = None, after: int | None = None
) -> list[date]:
    """Return the days that may have matching entries between two positions, the oldest first."""
    first = first_day(filters)
    stretches = await _stretches(database, filters, before, after)
    return [day for stretch in stretches for day in stretch.days if day >= first]


async def _stretches(
    database: Database, filters: Filters, before: int | None = None, after: int | None = None
) -> list[PartitionDays]:
    """Return the stretches that may have matching entries between two positions, the oldest first."""
    rows = await database.search(_SQL["stretches"], first_day(filters))
    stretches = [PartitionDays(row["first"], row["last"]) for row in rows]
    if before is not None:
        del stretches[await _begun(database, stretches, before - 1) :]
    if after is not None:
        del stretches[: max(await _begun(database, stretches, after + 1) - 1, 0)]
    return stretches


async def _begun(database: Database, stretches: list[PartitionDays], position: int) -> int:
    """How many of them begin at this position or before it. Takes stretches out that have no entries at all."""
    low, high = 0, len(stretches)
    while low < high:
        middle = (low + high) // 2
        rows = await database.search(_SQL["first_position"], stretches[middle].first, stretches[middle].last)
        if not rows:
            del stretches[middle]
            high -= 1
        elif rows[0]["position"] <= position:
            low = middle + 1
        else:
            high = middle
    return low


async def _look(database: Database, asked: Slice, stretches: Sequence[PartitionDays], limit: int) -> list[Entry]:
    """Return a page from some stretches, one after the other, and look at the next ones only if that is not enough.

    PostgreSQL reads the parts of a UNION ALL in their order, and stops as soon as it has enough rows. Parallel workers
    would change that order, so sessions for searches have none.
    """
    found: list[Entry] = []
    order = "ASC" if asked.oldest_first else "DESC"
    for some in _nearest_first(stretches if asked.oldest_first else stretches[::-1]):
        values = Values([stretch.first for stretch in some], [stretch.last for stretch in some], limit - len(found))
        one = _with(_SQL["stretch"], asked.conditions(values))
        arms = " UNION ALL ".join(one.format(number=number, order=order) for number in range(1, len(some) + 1))
        rows = await database.search(_SQL["page"].format(stretches=arms), *values.all)
        found += [record.entry_from_row(row["entry"]) for row in rows]
        if len(found) >= limit:
            break
    return found


async def _count(database: Database, filters: Filters, stretches: Sequence[PartitionDays], cap: int) -> Total:
    """How many entries these stretches have, which are all there are between the first and the last of them."""
    count = 0
    for some in _nearest_first(stretches[::-1]):
        values = Values(cap + 1 - count, some[-1].first, some[0].last)
        (row,) = await database.search(_with(_SQL["total"], conditions(filters, values)), *values.all)
        count += row["entries"]
        if count > cap:
            return Total(cap, exact=False)
    return Total(count, exact=True)


def _nearest_first(stretches: Sequence[PartitionDays]) -> Iterator[Sequence[PartitionDays]]:
    """Yield some stretches at a time, in this order: few at first, which may be enough."""
    begin = 0
    for end in (1, _NEAR, *range(_NEAR + _MOST, len(stretches) + _MOST, _MOST)):
        if stretches[begin:end]:
            yield stretches[begin:end]
        begin = end


def _with(sql: str, wanted: Sequence[str]) -> str:
    """Return the statement with further conditions, which contain numbers of values and no text of a caller."""
    return sql.replace("{conditions}", "".join(f" AND {condition}" for condition in wanted))
