"""Merges the records of several databases by time. Each record keeps its own order, that of its positions.

The next entry is always the one with the earliest time (the latest, if the newest come first) among the next ones of
all records. So the order depends on the records alone, and pages of any size, one after the other, have the same one.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar

from gateway.errors import RequestMalformed

T = TypeVar("T")

Cursor: TypeAlias = Mapping[str, int]
"""A position in the record of each database. A database without one has been read nowhere yet."""

_POSITION = re.compile(r"[A-Za-z0-9_-]{1,64}:(?:0|[1-9][0-9]{0,17})")
LONGEST = 16_384
"""The most characters of a cursor that is read."""


def read_cursor(text: str, databases: Collection[str]) -> dict[str, int]:
    """Read a cursor, such as ``north:4711,south:33``. Raises ``RequestMalformed``.

    It may lack databases, but names none twice, and none that is not one of ``databases``.
    """
    found: dict[str, int] = {}
    for part in text.split(",") if len(text) <= LONGEST else [""]:
        name, _, position = part.partition(":")
        if not _POSITION.fullmatch(part) or name in found:
            raise RequestMalformed(
                "A cursor over several databases has one position for each, as in north:4711,south:33.",
                advice="Send the cursor of the previous page unchanged, or name one database with ?database=.",
            )
        if name not in databases:
            raise RequestMalformed(
                f"The cursor names a database {name}, which the list does not have.",
                advice=f"The list has these: {', '.join(databases)}. Begin again without a cursor.",
            )
        found[name] = int(position)
    return found


def write_cursor(cursor: Cursor) -> str:
    """Return the text of a cursor, by name. It is empty if no database has a position."""
    return ",".join(f"{name}:{position}" for name, position in sorted(cursor.items()))


def first_of(times: Iterable[tuple[str, datetime]], *, newest_first: bool) -> str:
    """Return the database whose next entry comes first, by the times of the next ones. At one time, names decide."""
    by_name = sorted(times)
    return (max if newest_first else min)(by_name, key=lambda one: one[1])[0]


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Entries of one record, in its order. ``more``: there may be others after them."""

    entries: Sequence[T]
    more: bool


@dataclass(frozen=True, slots=True)
class Merged(Generic[T]):
    """A page of all records, each entry with its database. ``cursor`` leads to the next page, if there is ``more``."""

    entries: list[tuple[str, T]]
    cursor: dict[str, int]
    more: bool


def merge(
    pages: Mapping[str, Page[T]],
    most: int,
    *,
    time: Callable[[T], datetime],
    position: Callable[[T], int],
    newest_first: bool,
    cursor: Cursor | None = None,
) -> Merged[T]:
    """Merge one page of each record to a page of at most ``most`` entries.

    ``cursor`` is where the pages begin. A database that could not be read has no page: its position stays, so the next
    page brings what this one lacks. The page ends early where a record with ``more`` has no next entry.
    """
    left = {name: list(reversed(page.entries)) for name, page in pages.items()}
    taken: list[tuple[str, T]] = []
    reached = dict(cursor or {})
    while len(taken) < most and not any(pages[name].more and not rest for name, rest in left.items()):
        heads = [(name, time(rest[-1])) for name, rest in left.items() if rest]
        if not heads:
            break
        name = first_of(heads, newest_first=newest_first)
        entry = left[name].pop()
        taken.append((name, entry))
        reached[name] = position(entry)
    for name, rest in left.items():
        if len(rest) < len(pages[name].entries):
            continue
        # Entries that are recorded between two pages are newer than all of the list: they belong to no later page.
        if rest and newest_first:
            reached[name] = position(rest[-1]) + 1
        elif newest_first:
            reached.setdefault(name, 0)
    more = any(rest or pages[name].more for name, rest in left.items())
    return Merged(taken, reached, more)
