"""Listings through the gateway show what clients can read: no tombstones, no uploads of the gateway's own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import pytest_asyncio
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres, s3
from gateway.objects.protocol.effects import TOMBSTONE_SIZE, tombstone_body
from tests.doubles.s3 import S3Double
from tests.objects import raw
from tests.objects.clients import call, connect, in_thread, refused
from tests.objects.object_gateway import Stage, staged
from tests.objects.sweeping import entomb, forgetful
from tests.postgres import fresh_database
from tests.running import config, running

LISTS = ("list_objects", "list_objects_v2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixed(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """Keys with tombstones between them, in buckets of several kinds."""
    double = S3Double(buckets=["bucket", "clean", "stale", "odd", "uploads", "deep"])
    async with staged(postgres_server, double) as stage:
        for number in range(30):
            key = f"{'pqr'[number % 3]}{number // 6}/ü {number:02}+"
            if number % 3 and number // 6 != 3:
                double.put("bucket", key, b"x")
            else:
                await entomb(stage, key)
        yield stage


def visible(stage: Stage, bucket: str = "bucket") -> list[str]:
    found = stage.double.objects(bucket).items()
    keys = [key for key, stored in found if "fencing-tombstone" not in stored.content.metadata]
    return sorted(keys, key=str.encode)


def listed(client: S3Client, operation: Any, **arguments: Any) -> tuple[list[str], list[str], list[int]]:
    """Keys, common prefixes and sizes of pages, as boto3's paginator finds them."""
    size = arguments.pop("size")
    pages = list(client.get_paginator(operation).paginate(PaginationConfig={"PageSize": size}, **arguments))
    keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
    prefixes = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
    for page in pages:
        assert page.get("KeyCount", 0) in (0, len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ())))
    return keys, prefixes, [len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ())) for page in pages]


@pytest.mark.asyncio(loop_scope="module")
class TestObjects:
    @pytest.mark.parametrize("operation", LISTS)
    @pytest.mark.parametrize("size", [1, 2, 7, 1000])
    async def test_tombstones_are_left_out_and_pages_are_full(self, mixed: Stage, operation: str, size: int) -> None:
        keys, _, sizes = await in_thread(
            listed, client=connect(mixed.origin), operation=operation, size=size, Bucket="bucket"
        )
        assert keys == visible(mixed)
        assert set(sizes[:-1]) <= {size}

    @pytest.mark.parametrize("operation", LISTS)
    @pytest.mark.parametrize("size", [1, 3, 1000])
    async def test_prefixes_with_nothing_but_tombstones_are_left_out(
        self, mixed: Stage, operation: str, size: int
    ) -> None:
        keys, prefixes, sizes = await in_thread(
            listed, client=connect(mixed.origin), operation=operation, size=size, Bucket="bucket", Delimiter="/"
        )
        assert keys == []
        assert prefixes == sorted({key.partition("/")[0] + "/" for key in visible(mixed)})
        assert "q3/" not in prefixes
        assert set(sizes[:-1]) <= {size}

    async def test_within_a_prefix_and_from_a_key_on(self, mixed: Stage) -> None:
        keys = visible(mixed)
        listing = connect(mixed.origin).list_objects_v2
        answer = await call(listing, Prefix="q1/", FetchOwner=True)
        assert [one["Key"] for one in answer["Contents"]] == [key for key in keys if key.startswith("q1/")]
        assert answer["Contents"][0]["Owner"]["ID"]
        assert answer["Contents"][0]["ETag"]
        assert answer["Prefix"] == "q1/"
        answer = await call(listing, StartAfter=keys[3], MaxKeys=2)
        assert [one["Key"] for one in answer["Contents"]] == keys[4:6]
        assert (answer["KeyCount"], answer["MaxKeys"], answer["IsTruncated"]) == (2, 2, True)

    async def test_without_tombstones_the_stores_answer_passes_as_it_is(self, mixed: Stage) -> None:
        mixed.double.put("clean", "a", b"1")
        mixed.double.put("clean", "b\x01", b"2")
        since = len(mixed.double.requests)
        answer = await raw.send(mixed.origin, raw.head(mixed.origin, "GET", "/clean?list-type=2&prefix=b"))
        assert answer is not None
        assert b"<Key>b\x01</Key>" in answer.body
        assert [each.operation for each in mixed.double.requests[since:]] == ["ListObjectsV2"]

    async def test_a_key_that_may_be_a_tombstone_and_is_none_is_shown(self, mixed: Stage) -> None:
        await entomb(mixed, "rewritten", "as-large", "gone", bucket="stale")
        mixed.double.put("stale", "rewritten", b"x")
        mixed.double.put("stale", "as-large", b"x" * TOMBSTONE_SIZE)
        since = len(mixed.double.requests)
        answer = await call(connect(mixed.origin).list_objects_v2, Bucket="stale")
        assert [one["Key"] for one in answer["Contents"]] == ["as-large", "rewritten"]
        looked_at = [each.key for each in mixed.double.requests[since:] if each.operation == "HeadObject"]
        assert sorted(looked_at, key=str) == ["as-large", "gone"], "one of another size needs no look"

    async def test_an_error_of_the_store_is_passed_on_or_is_an_error(self, mixed: Stage) -> None:
        client = connect(mixed.origin)
        assert (await refused(client.list_objects_v2, Bucket="absent"))[:2] == (404, "NoSuchBucket")
        mixed.double.fail(503, operation="ListObjectsV2", times=1)
        assert (await refused(client.list_objects_v2))[:2] == (503, "SlowDown")
        mixed.double.fail(500, operation="HeadObject", times=1)
        assert (await refused(client.list_objects_v2))[:2] == (503, "ServiceUnavailable")
        mixed.double.fail(403, operation="ListObjectsV2", times=1, code="SignatureDoesNotMatch")
        assert (await refused(client.list_objects_v2))[:2] == (503, "ServiceUnavailable")
        mixed.double.fail(500, operation="ListObjectsV2", nth=2, times=1)
        assert (await refused(client.list_objects_v2, MaxKeys=2))[:2] == (503, "ServiceUnavailable")

    async def test_keys_with_characters_that_xml_forbids(self, mixed: Stage) -> None:
        """Encoded they are listed; else they stand there as S3 writes them, less the tombstones."""
        for key in ("a\x01+ %", "c\r"):
            mixed.double.put("odd", key, b"x")
        await entomb(mixed, "b", bucket="odd")
        answer = await call(connect(mixed.origin).list_objects_v2, Bucket="odd", MaxKeys=2)
        assert [one["Key"] for one in answer["Contents"]] == ["a\x01+ %", "c\r"]
        for query in ("list-type=2", "max-keys=2", "list-type=2&max-keys=2"):
            reply = await raw.send(mixed.origin, raw.head(mixed.origin, "GET", f"/odd?{query}"))
            assert reply is not None
            assert reply.status == 200
            assert b"<Key>a&#x1;+ %</Key>" in reply.body
            assert b"<Key>c&#13;</Key>" in reply.body
            assert b"<Key>b</Key>" not in reply.body
            assert b"EncodingType" not in reply.body

    async def test_a_prefix_with_many_tombstones_and_one_key(self, mixed: Stage) -> None:
        keys = [f"p/{number:03}" for number in range(120)]
        await entomb(mixed, *keys, "q/1", bucket="deep")
        mixed.double.put("deep", "p/999", b"x")
        answer = await call(connect(mixed.origin).list_objects_v2, Bucket="deep", Delimiter="/")
        assert [one["Prefix"] for one in answer["CommonPrefixes"]] == ["p/"]


@pytest.mark.parametrize("operation", LISTS)
async def test_a_key_deleted_through_the_gateway_is_not_listed(
    postgres_server: EmbeddedPostgres, operation: str
) -> None:
    async with staged(postgres_server, forgetful()) as stage:
        client = connect(stage.origin, "1")
        for key in ("a", "b", "c"):
            await call(client.put_object, Key=key, Body=b"x")
        await call(client.delete_object, Key="b")
        assert len(stage.double.objects("bucket")) == 3, "a tombstone stands there"
        answer = await call(getattr(client, operation))
        assert [one["Key"] for one in answer["Contents"]] == ["a", "c"]
        await call(client.put_object, Key="b", Body=b"again")
        answer = await call(getattr(client, operation))
        assert [one["Key"] for one in answer["Contents"]] == ["a", "b", "c"]


@pytest.mark.thorough
@pytest.mark.asyncio(loop_scope="module")
async def test_uploads_of_the_gateways_own_are_left_out(mixed: Stage) -> None:
    client, store = (
        connect(mixed.origin, "1"),
        connect(mixed.endpoint, access_key="AKIADOUBLE", secret_key="double-secret"),
    )
    ids: dict[str, str] = {}
    for key in ("a", "b/1", "c/1", "c/2", "d"):
        opened = client if key in ("b/1", "c/2") else store
        ids[key] = (await call(opened.create_multipart_upload, Bucket="uploads", Key=key))["UploadId"]
    for key in ("a", "c/1", "d"):
        await mixed.rows(
            "INSERT INTO fencing.upload (resource, bucket, key, upload_id, write_id, caller, staged)"
            " VALUES ($1, 'uploads', $1, $2, $3, 'writer', true)",
            key, ids[key], uuid4(),
        )  # fmt: skip

    def pages(**arguments: Any) -> list[dict[str, Any]]:
        paginator: Any = client.get_paginator("list_multipart_uploads")
        return list(paginator.paginate(Bucket="uploads", **arguments))

    for size in (1, 2, 1000):
        found = await in_thread(pages, PaginationConfig={"PageSize": size})
        assert [one["Key"] for page in found for one in page.get("Uploads", ())] == ["b/1", "c/2"]
        assert all(len(page["Uploads"]) == size for page in found[:-1])
    (page,) = await in_thread(pages, Delimiter="/")
    assert [one["Prefix"] for one in page["CommonPrefixes"]] == ["b/", "c/"]
    assert "Uploads" not in page


class TestVersions:
    async def test_a_tombstone_is_shown_as_a_delete_marker(self, postgres_server: EmbeddedPostgres) -> None:
        """Wherever it stands in the history, and whether or not Postgres still knows of it."""
        with s3() as embedded:
            store = {
                "endpoint": await asyncio.to_thread(embedded.endpoint),
                "access_key_id": "a",
                "secret_access_key": "b",
            }
            backend = connect(str(store["endpoint"]))
            await call(backend.create_bucket)
            await call(backend.put_bucket_versioning, VersioningConfiguration={"Status": "Enabled"})
            marks = {"fencing-tombstone": "true"}
            history: list[tuple[str, bytes, dict[str, str]]] = [
                ("k", b"first", {}),
                ("k", tombstone_body(uuid4()), marks),
                ("k", b"second", {}),
                ("other", b"x" * TOMBSTONE_SIZE, {}),
                ("z +", tombstone_body(uuid4()), marks),
            ]
            ids = [
                (await call(backend.put_object, Key=key, Body=body, Metadata=metadata))["VersionId"]
                for key, body, metadata in history
            ]
            async with fresh_database(postgres_server) as dsn, running(config(dsn, s3=store)) as origin:
                client = connect(origin, "1")
                answer = await call(client.list_object_versions)
                assert [(one["Key"], one["VersionId"], one["IsLatest"]) for one in answer["DeleteMarkers"]] == [
                    ("k", ids[1], False),
                    ("z +", ids[4], True),
                ]
                assert [(one["Key"], one["VersionId"]) for one in answer["Versions"]] == [
                    ("k", ids[2]),
                    ("k", ids[0]),
                    ("other", ids[3]),
                ]
                answer = await call(client.list_object_versions, Prefix="oth")
                assert "DeleteMarkers" not in answer

    async def test_a_bucket_that_never_had_versions_has_no_delete_markers(
        self, postgres_server: EmbeddedPostgres
    ) -> None:
        async with staged(postgres_server, forgetful("bucket")) as stage:
            client = connect(stage.origin, "1")
            for key in ("a", "b"):
                await call(client.put_object, Key=key, Body=b"x")
            await call(client.delete_object, Key="a")
            assert set(stage.double.objects("bucket")) == {"a", "b"}
            answer = await call(client.list_object_versions)
            assert [one["Key"] for one in answer["Versions"]] == ["b"]
            assert "DeleteMarkers" not in answer


@pytest.mark.thorough
async def test_a_listing_of_a_thousand_keys_of_the_longest_kind(stage: Stage) -> None:
    """Each key a kilobyte that is four and more when it is encoded."""
    for number in range(1000):
        stage.double.put("bucket", f"{number:04}" + "ü&" * 340, b"x")
    tombstone = f"{500:04}" + "ü&" * 340
    await entomb(stage, tombstone)
    for operation in LISTS:
        answer = await call(getattr(connect(stage.origin), operation))
        assert len(answer["Contents"]) == 999
        assert tombstone not in {one["Key"] for one in answer["Contents"]}
    reply = await raw.send(stage.origin, raw.head(stage.origin, "GET", f"/bucket?prefix={quote(tombstone, safe='')}"))
    assert reply is not None
    assert b"<Contents>" not in reply.body
