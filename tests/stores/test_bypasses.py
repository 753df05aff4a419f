"""The patrol finds each bypass of the gateway in the listings of real stores, and reports no other change."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from uuid import uuid4

import pytest

from gateway.db import intents
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Presented
from gateway.fencing.intent import Announcement, Begin
from gateway.fencing.token import Token
from tests.objects.clients import call, opened, outcome
from tests.stores.fenced import LONG, Fenced, fenced
from tests.stores.store import Store

BODY = b"as the gateway wrote it"

HOSTILE = [
    "a b", " leading", "trailing ", "two  spaces",
    "a+b", "100%", "%2F", "%41", "a%20b", "a&b=c;d", "a?b#c", "<a>'\"&amp;", "a\\b", "*", "~", "$", "a:b,c@d",
    "ä", "e\u0301", "\u00e9", "日本語", "\U0001f600", "\ud7ff", "\ue000", "\uffee", "\U0010fffd",
    "tab\there", "line\nfeed", "carriage\rreturn", "x\x01y", "x\x1fy", "x\x7fy", "\u0085", "\u2028", "\ufffe",
    "a/b/c", "a/b.c", "a/b-c", "a//b", "/a", "d/", "./a", "../a",
    "x" * 200, LONG + "x" * 1019, LONG + "ä" * 509 + "!", LONG + "\U0001f600" * 254 + "\uffee",
    LONG + "/".join(["y" * 200] * 5),
]  # fmt: skip

LARGE = b"x" * 5 * 1024 * 1024 + b"0123456789"

_LONG = {key for key in HOSTILE if len(key.encode()) > 1000}
_OF_FILES = {"a//b", "./a", "../a", *_LONG}
NOT_TAKEN = {
    "moto": {"line\nfeed"},
    "minio": {"/a", *_OF_FILES},
    "versitygw": {"/a", "d/", *_OF_FILES},
}
"""By store, keys that it refuses, or takes for others: some are files in directories."""


@pytest.fixture
async def front(postgres_server: EmbeddedPostgres, store: Store) -> AsyncIterator[Fenced]:
    async with fenced(postgres_server, store) as one:
        yield one


async def written(front: Fenced, keys: Sequence[str]) -> list[str]:
    """Write keys through the gateway; those that the store has taken."""
    writer, gate = front.through(), asyncio.Semaphore(8)

    async def one(key: str) -> bool:
        async with gate:
            status, _ = await outcome(writer.put_object, Bucket=front.bucket, Key=key, Body=BODY)
        return status == 200

    taken = await asyncio.gather(*(one(key) for key in keys))
    return [key for key, is_taken in zip(keys, taken, strict=True) if is_taken]


async def deleted_beside(front: Fenced, keys: Sequence[str]) -> None:
    s3 = front.beside()
    for key in keys:
        await call(s3.delete_object, Bucket=front.bucket, Key=key)


async def put_beside(front: Fenced, keys: Sequence[str], body: bytes = b"behind its back") -> None:
    s3 = front.beside()
    for key in keys:
        await call(s3.put_object, Bucket=front.bucket, Key=key, Body=body)


async def in_parts(front: Fenced, key: str, body: bytes, *, beside: bool = False) -> None:
    s3 = front.beside() if beside else front.through()
    pieces = [body[:-10], body[-10:]] if body == LARGE else [body]
    await call(s3.complete_multipart_upload, **await opened(s3, key, pieces, front.bucket))


@pytest.mark.parametrize("page", [1000, 3])
async def test_keys_of_every_kind(front: Fenced, page: int) -> None:
    """The patrol reads every key that the store accepts in its listing, and asks for it again."""
    taken = await written(front, HOSTILE)
    assert set(HOSTILE) - set(taken) <= NOT_TAKEN.get(front.store.name, set())
    await put_beside(front, ["0", "b", "a b c", "z"])
    assert (await front.patrolled(page), await front.bypasses()) == (0, [])
    changed, gone = taken[::2], taken[1::2]
    await put_beside(front, changed)
    await deleted_beside(front, gone)
    assert await front.patrolled(page) == len(taken)
    expected = [("object-changed", key) for key in changed] + [("object-vanished", key) for key in gone]
    assert await front.bypasses() == sorted(expected, key=lambda entry: entry[1])
    assert await front.patrolled(page) == 0


async def test_more_keys_than_a_page_of_the_store_has(front: Fenced) -> None:
    """The gateway knows few of them: the patrol goes from one known key to the next."""
    known = await written(front, [f"k{number:04}/{part}" for number in range(0, 1000, 40) for part in ("a", "b")])
    await put_beside(front, [f"k{number:04}/c" for number in range(1000)])
    assert await front.patrolled() == 0
    await put_beside(front, known[::7])
    await deleted_beside(front, known[3::7])
    for page in (1000, 7):
        found = [("object-changed", key) for key in known[::7]] + [("object-vanished", key) for key in known[3::7]]
        assert await front.patrolled(page) == (len(found) if page == 1000 else 0)
        assert await front.bypasses() == sorted(found, key=lambda entry: entry[1])


async def test_forms_of_the_same_bytes(front: Fenced) -> None:
    """The same bytes in another form have another ETag. In the same form the patrol cannot tell them apart."""
    await written(front, ["put", "put-in-parts"])
    await in_parts(front, "parts", LARGE)
    await in_parts(front, "parts-put", LARGE)
    await put_beside(front, ["put"], BODY)
    await in_parts(front, "parts", LARGE, beside=True)
    assert await front.patrolled() == 0
    await in_parts(front, "put-in-parts", BODY, beside=True)
    await put_beside(front, ["parts-put"], LARGE)
    assert await front.patrolled() == 2
    assert await front.bypasses() == [("object-changed", "parts-put"), ("object-changed", "put-in-parts")]


async def test_what_comes_where_the_gateway_had_deleted(front: Fenced) -> None:
    """If a key has a tombstone, its removal is a finding, too."""
    keys = ["a", "b", "c"]
    await written(front, keys)
    for key in keys:
        await call(front.through().delete_object, Bucket=front.bucket, Key=key)
    assert await front.patrolled() == 0
    tombstones = {row["key"] for row in await front.rows("SELECT key FROM fencing.object WHERE tombstone")}
    assert tombstones in (set(), set(keys))
    await put_beside(front, ["a"])
    await deleted_beside(front, ["b"])
    found = [("object-appeared", "a")] + [("object-vanished", "b")] * bool(tombstones)
    assert await front.patrolled() == len(found)
    assert await front.bypasses() == found


async def test_versions(postgres_server: EmbeddedPostgres, store: Store) -> None:
    """The state of a key after its last version, or the marker of a delete, is taken away."""
    async with fenced(postgres_server, store, versioned=True) as front:
        taken = await written(front, ["uncovered", "deleted", "undeleted", "through"])
        if store.name in ("ceph", "versitygw"):
            assert taken == [], "docs/stores.md: conditions do not hold in its versioned buckets"
            return
        s3, where = front.beside(), {"Bucket": front.bucket}
        writer = front.through()
        for key in ("uncovered", "through"):
            answer = await call(writer.put_object, **where, Key=key, Body=b"second")
            client = s3 if key == "uncovered" else writer
            await call(client.delete_object, **where, Key=key, VersionId=answer["VersionId"])
        await call(s3.delete_object, **where, Key="deleted")
        await call(writer.delete_object, **where, Key="undeleted")
        versions = await call(s3.list_object_versions, **where, Prefix="undeleted")
        latest = [each for each in versions.get("DeleteMarkers", []) + versions["Versions"] if each["IsLatest"]]
        await call(s3.delete_object, **where, Key="undeleted", VersionId=latest[0]["VersionId"])
        assert await front.patrolled() == 3
        assert await front.bypasses() == [
            ("object-vanished", "deleted"), ("object-changed", "uncovered"), ("object-appeared", "undeleted"),
        ]  # fmt: skip


async def test_every_way_of_writing(front: Fenced) -> None:
    writer, where = front.through(), {"Bucket": front.bucket}
    await written(front, ["put", "source", "gone", "a b", "a+b"])
    await call(writer.put_object, **where, Key="large", Body=b"x" * 9 * 1024 * 1024)
    await in_parts(front, "parts", LARGE)
    await call(writer.copy_object, **where, Key="copy", CopySource=f"{front.bucket}/source")
    await call(writer.put_object_tagging, **where, Key="put", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    await call(writer.put_object, **where, Key="empty", Body=b"")
    await call(writer.delete_object, **where, Key="gone")
    for key in ("large", "parts", "copy", "put", "gone", "empty"):
        assert (await front.patrolled(2), await front.bypasses()) == (0, []), key
        await call(writer.put_object, **where, Key=key, Body=b"once more")
    assert (await front.patrolled(), await front.bypasses()) == (0, [])


async def test_a_zombies_write_that_was_settled(front: Fenced) -> None:
    """If the store can bump, the write's object has been bumped. Otherwise it stays under way for minutes."""
    await written(front, ["k", "never"])
    database = Database(front.dsn)
    try:
        for key in ("k", "never"):
            name = f"s3/{front.bucket}/{key}"
            write = Announcement(name, front.bucket, key, uuid4(), Presented(Token(0, 1)), "zombie")
            (begun,) = await intents.begin(database, [Begin(write)], patient=True)
            assert begun.signed_at is not None
    finally:
        await database.close()
    await put_beside(front, ["k"], b"the zombie's, which is late")
    assert await front.patrolled() == 0
    for key in ("k", "never"):
        status = await front.barrier(key, "2")
        assert status in (200, 503)
        assert await front.patrolled() == 0
        if status == 200:
            await call(front.through("2").put_object, Bucket=front.bucket, Key=key, Body=b"the next holder's")
            assert await front.patrolled() == 0
    assert await front.bypasses() == []
