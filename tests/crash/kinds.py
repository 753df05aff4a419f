"""The kinds of writes, each with all the durable steps it passes, in their order.

That the steps are these is itself tested: an unharmed gateway passes them, no others, and all of them together are all
the steps there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from tests.crash.deeds import barrier, delete, delete_row, insert, insert_two, put, update, upsert
from tests.crash.story import Deed, Story

BEFORE = b"what was there at first"
ZOMBIE = b"the zombie's"

Prepare: TypeAlias = Callable[[Story], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of write: ``token`` is its writer's, ``before`` what is at the key when it comes."""

    name: str
    deed: Deed
    path: tuple[str, ...]
    prepare: Prepare
    before: bytes | None = None
    token: int = 33

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


@dataclass(frozen=True, slots=True)
class Stop:
    """A place on the path of a kind of write: the ``nth`` time of a step."""

    kind: Kind
    step: str
    nth: int

    def __str__(self) -> str:
        again = f"-{self.nth}" if self.nth > 1 else ""
        return f"{self.kind}-at-{self.step}{again}"


def stops(kinds: Iterable[Kind]) -> Iterator[Stop]:
    """Every place on the paths of these kinds."""
    for kind in kinds:
        for position, step in enumerate(kind.path):
            yield Stop(kind, step, kind.path[: position + 1].count(step))


def cases(kinds: Iterable[Kind]) -> list[Any]:
    """The stops as pytest's parameters."""
    return [pytest.param(stop, id=str(stop)) for stop in stops(kinds)]


# What stands there before ---------------------------------------------------------------------------------------


def nothing(_: Story) -> None:
    """No object, no row, no fence."""


def an_object(story: Story) -> None:
    assert story.done(33, put(BEFORE)).succeeded


def a_forbidden_etag(story: Story) -> None:
    """The ETag of the zombie's bytes must not come back: they were there when 34 settled a write of 33."""
    assert story.done(33, put(ZOMBIE)).succeeded
    _leave_behind(story, put(b"lost"))
    assert story.done(34, put(BEFORE)).succeeded


def forbidden_absence(story: Story) -> None:
    """The key must not become absent: it was when 34 settled a write of 33."""
    _leave_behind(story, put(b"lost"))
    assert story.done(34, put(BEFORE)).succeeded


def an_overtaken_object(story: Story) -> None:
    assert story.done(33, put(BEFORE)).succeeded
    assert story.done(34, barrier()).succeeded


def a_row(story: Story) -> None:
    assert story.done(32, upsert("at first")).succeeded


def a_row_of_this_holder(story: Story) -> None:
    assert story.done(33, upsert("at first")).succeeded


def an_overtaken_row(story: Story) -> None:
    assert story.done(33, upsert("at first")).succeeded
    assert story.done(34, barrier()).succeeded


def _late(deed: Deed, method: str, prepare: Prepare) -> Prepare:
    """A write of 33 is on its way to the store for as long as the story lasts."""

    def prepared(story: Story) -> None:
        prepare(story)
        story.in_flight(33, deed, method=method)

    return prepared


def _leave_behind(story: Story, deed: Deed) -> None:
    """A write of 33 whose intent stays: the store drops the request, unseen, and the connection with it."""
    story.stage.double.rule("cut", key=story.place.key, method="PUT")
    assert story.done(33, deed).unknown
    assert story.done(34, barrier()).succeeded


# The kinds ------------------------------------------------------------------------------------------------------


def _around(*names: str) -> tuple[str, ...]:
    """The steps before and after each of these."""
    return tuple(f"{name}.{moment}" for name in names for moment in ("before", "after"))


PUT = _around("objects.begin", "objects.put", "objects.finish")
DELETE = _around("objects.begin", "objects.delete", "objects.finish")
ENTOMB = _around("objects.begin", "objects.entomb", "objects.finish")
ABANDON = _around("objects.begin", "objects.abandon")

OBJECTS = (
    Kind("create", put(ZOMBIE), PUT, nothing),
    Kind("overwrite", put(ZOMBIE), PUT, an_object, BEFORE),
    Kind("same bytes", put(BEFORE), PUT, an_object, BEFORE),
    Kind("other form", put(ZOMBIE), PUT, a_forbidden_etag, BEFORE, token=34),
    Kind("delete", delete(), DELETE, an_object, BEFORE),
    Kind("delete by tombstone", delete(), ENTOMB, forbidden_absence, BEFORE, token=34),
    Kind("delete of nothing", delete(shows=False), ABANDON, nothing),
    Kind("failing condition", put(ZOMBIE, If_Match='"other"'), ABANDON, an_object, BEFORE),
    Kind("barrier", barrier(), _around("objects.raise"), an_object, BEFORE),
)

SETTLED_BY_BUMP = _around("objects.forbid", "objects.bump", "objects.abandon")
SETTLED_BY_TOMBSTONE = _around("objects.forbid", "objects.entomb", "objects.abandon")
_LATE_OVERWRITE = _late(put(b"late"), "PUT", an_object)
_LATE_CREATE = _late(put(b"late"), "PUT", nothing)
_LATE_DELETE = _late(delete(), "DELETE", an_object)

OVER_OVERWRITE = Kind("put over overwrite", put(ZOMBIE), PUT[:2] + SETTLED_BY_BUMP + PUT, _LATE_OVERWRITE, BEFORE, 34)
SETTLERS = (
    Kind("barrier over overwrite", barrier(), _around("objects.raise") + SETTLED_BY_BUMP, _LATE_OVERWRITE, BEFORE, 34),
    Kind("barrier over create", barrier(), _around("objects.raise") + SETTLED_BY_TOMBSTONE, _LATE_CREATE, None, 34),
    Kind("barrier over delete", barrier(), _around("objects.raise") + SETTLED_BY_BUMP, _LATE_DELETE, BEFORE, 34),
    OVER_OVERWRITE,
    Kind("put over create", put(ZOMBIE), PUT[:2] + SETTLED_BY_TOMBSTONE + PUT, _LATE_CREATE, None, 34),
)

FAST = _around("tables.fast")
SLOW = ("tables.claim.after", "tables.write.after", "tables.commit.after")
TABLES = (
    Kind("update", update("zombie"), FAST, a_row_of_this_holder),
    Kind("delete row", delete_row(), FAST, a_row_of_this_holder),
    Kind("raising update", update("zombie"), FAST + SLOW, a_row),
    Kind("raising insert", insert("zombie"), FAST + SLOW, nothing),
    Kind("raising delete row", delete_row(), FAST + SLOW, a_row),
    Kind("insert of two", insert_two("zombie"), SLOW, nothing),
)
TABLE_SETTLER = Kind(
    "row over overwrite",
    upsert("zombie"),
    (*FAST, SLOW[0], *_around("objects.raise"), *SETTLED_BY_BUMP, *SLOW),
    _LATE_OVERWRITE,
    BEFORE,
    34,
)

STALE = (
    Kind("stale put", put(ZOMBIE), _around("objects.reject"), an_overtaken_object, BEFORE),
    Kind("stale delete", delete(), _around("objects.reject"), an_overtaken_object, BEFORE),
    Kind("stale barrier", barrier(), _around("objects.raise", "api.reject"), an_overtaken_object, BEFORE),
    Kind("stale update", update("zombie"), (*FAST, SLOW[0], *_around("tables.reject")), an_overtaken_row),
)

EVERY = (*OBJECTS, *SETTLERS, *TABLES, TABLE_SETTLER, *STALE)
