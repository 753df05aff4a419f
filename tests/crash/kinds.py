"""The kinds of writes, each with all the durable steps it passes, in their order; and how new holders take over.

A test proves these steps: an undisturbed gateway passes them and no others, and all kinds together cover all the steps
that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from tests.crash.clients import Answer, Client

if TYPE_CHECKING:
    from tests.crash.stage import Story


@dataclass(frozen=True, slots=True)
class Place:
    """A row and a key of one resource, used by no other test. ``-number`` is another row, to write two at once.

    ``uploads`` are the ids of the uploads opened for the key, the last one last.
    """

    number: int
    uploads: list[str] = field(default_factory=list, compare=False)

    @property
    def key(self) -> str:
        return f"accounts/{self.number}/photo"

    @property
    def second_key(self) -> str:
        return f"accounts/{self.number}/album"

    @property
    def keys(self) -> tuple[str, str]:
        return self.key, self.second_key

    @property
    def resource(self) -> str:
        return f"public.accounts/{self.number}"


@dataclass(frozen=True, slots=True)
class Deed:
    """Something a client does. ``body`` is what it puts, None where it puts nothing.

    ``parts``: in how many parts, where it goes in parts. ``writes``: how many keys it writes, all of them at once.
    ``amends``: it changes the object's tags.
    ``shows`` False: where it succeeds, nothing of it is to be seen in the store or in the table.
    """

    name: str
    perform: Callable[[Client, Place], Answer] = field(repr=False)
    body: bytes | None = field(default=None, repr=False)
    parts: int = 1
    writes: int = 1
    deletes: bool = False
    amends: bool = False
    shows: bool = True


# Deeds of clients ------------------------------------------------------------------------------------------

Takeover: TypeAlias = Callable[[bytes | None], tuple[Deed, ...]]
"""The writes of the new holder, given the object that was at the key at first."""

_MERGE = "resolution=merge-duplicates"


def put(body: bytes, **headers: str) -> Deed:
    return Deed("put", lambda client, place: client.put(place.key, body, **headers), body=body)


def delete(*, shows: bool = True) -> Deed:
    """``shows`` False: there is nothing to delete."""
    return Deed("delete", lambda client, place: client.delete(place.key), deletes=True, shows=shows)


def put_in_two_parts(body: bytes) -> Deed:
    """``body`` is more than the gateway takes into memory, and more than one part."""
    return replace(put(body), name="put in two parts", parts=2)


def complete(body: bytes) -> Deed:
    """Complete the upload that was opened for the key, the last one if there are several."""

    def perform(client: Client, place: Place) -> Answer:
        return client.complete(place.key, place.uploads[-1], body)

    return Deed("completion", perform, body=body)


def copy(source: str, body: bytes, *, parts: int = 1) -> Deed:
    """``body`` is what is at the key ``source``."""
    return Deed("copy", lambda client, place: client.copy(source, place.key), body=body, parts=parts)


def delete_two() -> Deed:
    """Both keys of the place in one request."""

    def perform(client: Client, place: Place) -> Answer:
        return client.delete_many(place.key, place.second_key)

    return Deed("delete of two", perform, deletes=True, writes=2)


def tag(value: str) -> Deed:
    return Deed("tagging", lambda client, place: client.tag(place.key, value), amends=True)


def delete_version() -> Deed:
    """The only version there is in a bucket that keeps none, for good and without a condition."""
    return Deed("delete of a version", lambda client, place: client.delete_version(place.key, "null"), deletes=True)


def put_second(body: bytes) -> Deed:
    """At the place's other key."""
    return Deed("put at the second key", lambda client, place: client.put(place.second_key, body), shows=False)


def barrier() -> Deed:
    return Deed("barrier", lambda client, place: client.barrier(place.resource), shows=False)


def upsert(note: str) -> Deed:
    """The row, whether it is there or not."""

    def perform(client: Client, place: Place) -> Answer:
        return client.table("POST", "accounts", {"id": place.number, "note": note}, Prefer=_MERGE)

    return Deed("upsert", perform)


def insert(note: str) -> Deed:
    return Deed("insert", lambda client, place: client.table("POST", "accounts", {"id": place.number, "note": note}))


def insert_two(note: str) -> Deed:
    """Two rows, of two resources, in one request."""

    def perform(client: Client, place: Place) -> Answer:
        rows = [{"id": number, "note": note} for number in (place.number, -place.number)]
        return client.table("POST", "accounts", rows)

    return Deed("insert of two", perform)


def update(note: str) -> Deed:
    return Deed("update", lambda client, place: client.table("PATCH", _filtered(place), {"note": note}))


def update_one(note: str) -> Deed:
    """An update that may have to be undone, so that it cannot be a single statement."""
    strictly = {"Prefer": "handling=strict,max-affected=1"}
    return Deed(
        "update of one", lambda client, place: client.table("PATCH", _filtered(place), {"note": note}, **strictly)
    )


def insert_once(note: str) -> Deed:
    """A row, under a key: however often it is sent, it is inserted once."""

    def perform(client: Client, place: Place) -> Answer:
        rows = {"id": place.number, "note": note}
        headers = {"Idempotency-Key": f"insert-{place.number}", "Prefer": "return=representation"}
        return client.table("POST", "accounts", rows, **headers)

    return Deed("insert under a key", perform)


def write_two_once(note: str) -> Deed:
    """A transaction under a key: the row is replaced, and another one inserted."""

    def perform(client: Client, place: Place) -> Answer:
        insert = {"method": "POST", "table": "accounts", "body": {"id": -place.number, "note": note}}
        query = f"id=eq.{place.number}"
        update = {"method": "PATCH", "table": "accounts", "query": query, "body": {"note": note}}
        return client.transaction([insert, update], **{"Idempotency-Key": f"two-{place.number}"})

    return Deed("transaction under a key", perform)


def delete_row() -> Deed:
    return Deed("delete of a row", lambda client, place: client.table("DELETE", _filtered(place)))


def by_barrier(_: bytes | None) -> tuple[Deed, ...]:
    return (barrier(),)


def by_writing(_: bytes | None) -> tuple[Deed, ...]:
    return (put(b"the new holder's"),)


def by_restoring(before: bytes | None) -> tuple[Deed, ...]:
    """In the end there is what was there at first, to the byte: its ETag must not be."""
    return barrier(), put(b"in between"), delete() if before is None else put(before)


def by_removing(_: bytes | None) -> tuple[Deed, ...]:
    return barrier(), delete()


def by_row(_: bytes | None) -> tuple[Deed, ...]:
    return (upsert("the new holder's"),)


def _filtered(place: Place) -> str:
    return f"accounts?id=eq.{place.number}"


# Kinds ----------------------------------------------------------------------------------------------------

BEFORE = b"what was there at first"
ZOMBIE = b"the zombie's"
LARGE = b"the zombie's" * (6 * 1024 * 1024 // 12)

# A key that nothing happens to, to copy from, and what is there.
SOURCE = "source"
SOURCE_BODY = b"to be copied"

Prepare: TypeAlias = "Callable[[Story], None]"


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


def cases(kinds: Iterable[Kind], *quick: str) -> list[Any]:
    """The stops as pytest's parameters. If some kinds are named ``quick``, those of all others are thorough."""
    later = [pytest.mark.thorough]
    return [
        pytest.param(stop, id=str(stop), marks=later if quick and stop.kind.name not in quick else [])
        for stop in stops(kinds)
    ]


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
SECOND_COMPLETION: dict[str, Any] = {"operation": "CompleteMultipartUpload", "nth": 2}
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
# Writes that are repeated with the same key.
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
