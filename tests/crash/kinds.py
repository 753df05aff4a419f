"""The kinds of writes, each with all the durable steps it passes, in their order.

A test proves these steps: an undisturbed gateway passes them and no others, and all kinds together cover all the steps
that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from tests.crash.clients import Client
from tests.crash.deeds import (
    barrier,
    complete,
    copy,
    delete,
    delete_row,
    delete_two,
    delete_version,
    insert,
    insert_once,
    insert_two,
    put,
    put_in_two_parts,
    put_second,
    tag,
    update,
    update_one,
    upsert,
    write_two_once,
)
from tests.crash.story import Deed, Story

BEFORE = b"what was there at first"
ZOMBIE = b"the zombie's"
LARGE = b"the zombie's" * (6 * 1024 * 1024 // 12)

# A key that nothing happens to, to copy from, and what is there.
SOURCE = "source"
SOURCE_BODY = b"to be copied"

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


# The state before the write ---------------------------------------------------------------------------------------


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


def two_objects(story: Story) -> None:
    for deed in (put(BEFORE), put_second(BEFORE)):
        assert story.done(33, deed).succeeded


def an_upload(story: Story) -> None:
    """Opened and filled by 33, after the object that it is to replace."""
    an_object(story)
    _open_upload(story)


def an_upload_of_nothing(story: Story) -> None:
    _open_upload(story)


def an_older_upload(story: Story) -> None:
    """The object has changed since it was opened: then stores refuse every condition on its completion."""
    _open_upload(story)
    an_object(story)


def _open_upload(story: Story) -> None:
    client = Client(story.stage.healthy.port, 33)
    story.place.uploads.append(client.open_upload(story.place.key, ZOMBIE))


def a_row(story: Story) -> None:
    assert story.done(32, upsert("at first")).succeeded


def an_overtaken_upload(story: Story) -> None:
    an_upload(story)
    assert story.done(34, barrier()).succeeded


def a_row_of_this_holder(story: Story) -> None:
    assert story.done(33, upsert("at first")).succeeded


def an_overtaken_row(story: Story) -> None:
    assert story.done(33, upsert("at first")).succeeded
    assert story.done(34, barrier()).succeeded


def _late(deed: Deed, prepare: Prepare, **match: Any) -> Prepare:
    """A write of 33 is on its way to the store for as long as the story lasts; ``match`` says which request of it."""

    def prepared(story: Story) -> None:
        prepare(story)
        story.in_flight(33, deed, **match)

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
COMPLETE = _around("objects.begin", "objects.complete", "objects.finish")
# After a request of the key got lost, a put is sent as an upload.
AS_UPLOAD = _around("objects.begin") + COMPLETE
# A write of the key settles an older one by itself, and forgets it afterwards.
DISPLACING = _around("objects.begin") + PUT + _around("objects.abandon")
# The first completion is conditional, and refused; the second one is not.
COMPLETE_OLDER = COMPLETE[:4] + _around("objects.abandon") + COMPLETE
AMEND = _around("objects.begin", "objects.amend")
ABANDON = _around("objects.begin", "objects.abandon")

OBJECTS = (
    Kind("create", put(ZOMBIE), PUT, nothing),
    Kind("overwrite", put(ZOMBIE), PUT, an_object, BEFORE),
    Kind("same bytes", put(BEFORE), PUT, an_object, BEFORE),
    Kind("other form", put(ZOMBIE), AS_UPLOAD, a_forbidden_etag, BEFORE, token=34),
    Kind("delete", delete(), DELETE, an_object, BEFORE),
    Kind("delete by tombstone", delete(), ENTOMB, forbidden_absence, BEFORE, token=34),
    Kind("delete of nothing", delete(shows=False), ABANDON, nothing),
    Kind("failing condition", put(ZOMBIE, If_Match='"other"'), ABANDON, an_object, BEFORE),
    Kind("barrier", barrier(), _around("objects.raise"), an_object, BEFORE),
)
UPLOADS = (
    Kind("put in parts", put_in_two_parts(LARGE), COMPLETE, an_object, BEFORE),
    Kind("completion", complete(ZOMBIE), COMPLETE, an_upload, BEFORE),
    Kind("creating completion", complete(ZOMBIE), COMPLETE, an_upload_of_nothing),
    Kind("completion of an older upload", complete(ZOMBIE), COMPLETE_OLDER, an_older_upload, BEFORE),
)
OTHERS = (
    Kind("copy", copy(SOURCE, SOURCE_BODY), PUT, an_object, BEFORE),
    Kind("delete of two", delete_two(), DELETE + DELETE, two_objects, BEFORE),
)
AMENDMENTS = (
    Kind("tagging", tag("zombie"), AMEND + _around("objects.finish"), an_object, BEFORE),
    Kind("delete of a version", delete_version(), AMEND + _around("objects.abandon"), an_object, BEFORE),
)

SETTLED_BY_BUMP = _around("objects.forbid", "objects.bump", "objects.abandon")
SETTLED_BY_TOMBSTONE = _around("objects.forbid", "objects.entomb", "objects.abandon")
SETTLED_BY_GIVING_UP = _around("objects.give-up", "objects.abandon")
_LATE_OVERWRITE = _late(put(b"late"), an_object, method="PUT")
_LATE_CREATE = _late(put(b"late"), nothing, method="PUT")
_LATE_DELETE = _late(delete(), an_object, method="DELETE")
SECOND_COMPLETION = {"operation": "CompleteMultipartUpload", "nth": 2}
_LATE_COMPLETION = _late(complete(ZOMBIE), an_older_upload, **SECOND_COMPLETION)

OVER_OVERWRITE = Kind("put over overwrite", put(ZOMBIE), DISPLACING, _LATE_OVERWRITE, BEFORE, 34)
OVER_COMPLETION = Kind(
    "barrier over completion", barrier(), _around("objects.raise") + SETTLED_BY_GIVING_UP, _LATE_COMPLETION, BEFORE, 34
)
SETTLERS = (
    Kind("barrier over overwrite", barrier(), _around("objects.raise") + SETTLED_BY_BUMP, _LATE_OVERWRITE, BEFORE, 34),
    Kind("barrier over create", barrier(), _around("objects.raise") + SETTLED_BY_TOMBSTONE, _LATE_CREATE, None, 34),
    Kind("barrier over delete", barrier(), _around("objects.raise") + SETTLED_BY_BUMP, _LATE_DELETE, BEFORE, 34),
    OVER_OVERWRITE,
    Kind("put over create", put(ZOMBIE), DISPLACING, _LATE_CREATE, None, 34),
    OVER_COMPLETION,
    Kind("put over completion", put(b"34's"), PUT[:2] + SETTLED_BY_GIVING_UP + PUT, _LATE_COMPLETION, BEFORE, 34),
)

FAST = _around("tables.fast")
RAISE = _around("tables.raise")
SLOW = ("tables.claim.after", "tables.write.after", "tables.commit.after")
TABLES = (
    Kind("update", update("zombie"), FAST, a_row_of_this_holder),
    Kind("delete row", delete_row(), FAST, a_row_of_this_holder),
    Kind("raising update", update("zombie"), FAST + RAISE, a_row),
    Kind("raising insert", insert("zombie"), FAST + RAISE, nothing),
    Kind("raising delete row", delete_row(), FAST + RAISE, a_row),
    Kind("raising update of one", update_one("zombie"), SLOW, a_row),
    Kind("insert of two", insert_two("zombie"), SLOW, nothing),
)
# Writes that are repeated with the same key: see test_sent_again.py.
KEYED = (
    Kind("insert under a key", insert_once("zombie"), SLOW, nothing),
    Kind("transaction under a key", write_two_once("zombie"), (*SLOW[:2], *SLOW[1:]), a_row),
)
TABLE_SETTLER = Kind(
    "row over overwrite",
    upsert("zombie"),
    (*FAST, *RAISE, SLOW[0], *_around("objects.raise"), *SETTLED_BY_BUMP, *SLOW),
    _LATE_OVERWRITE,
    BEFORE,
    34,
)

STALE = (
    Kind("stale put", put(ZOMBIE), _around("objects.begin", "objects.reject"), an_overtaken_object, BEFORE),
    Kind("stale delete", delete(), _around("objects.begin", "objects.reject"), an_overtaken_object, BEFORE),
    Kind("stale completion", complete(ZOMBIE), _around("objects.reject"), an_overtaken_upload, BEFORE),
    Kind("stale tagging", tag("zombie"), _around("objects.reject"), an_overtaken_object, BEFORE),
    Kind("stale barrier", barrier(), _around("objects.raise", "api.reject"), an_overtaken_object, BEFORE),
    Kind("stale update", update("zombie"), (*FAST, *_around("tables.reject")), an_overtaken_row),
    Kind("stale update of one at most", update_one("zombie"), _around("tables.reject"), an_overtaken_row),
)

EVERY = (*OBJECTS, *UPLOADS, *OTHERS, *AMENDMENTS, *SETTLERS, *TABLES, *KEYED, TABLE_SETTLER, *STALE)
