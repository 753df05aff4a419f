"""Buckets of several databases: each in the store of its owner, and keys below a prefix fenced in another database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from mypy_boto3_s3 import S3Client

from gateway.app import sweep
from gateway.objects.protocol.effects import tombstone_body
from gateway.objects.sweeper import Swept
from gateway.observe.events import SweepFailed
from tests.databases.fleet import Fleet, databases, fleet, settings
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.test_forms import post, signed
from tests.postgres import Server, as_gateway, fresh_database
from tests.running import ACCESS_KEY as ACCESS_KEY_OF_A_CALLER
from tests.running import SECRET_KEY as SECRET_KEY_OF_A_CALLER
from tests.running import Events, running
from tests.tiers import first
from tests.waiting import PATIENCE

BUCKET = "shared"
OURS, THEIRS = "tenant-7/k", "rest/k"
OWNERS = {OURS: "south", THEIRS: "north"}


@pytest.fixture
def double() -> S3Double:
    return S3Double(buckets=[BUCKET, "southern"])


@pytest_asyncio.fixture
async def gateway(postgres_server: Server, double: S3Double) -> AsyncIterator[Fleet]:
    async with fleet(postgres_server, double, buckets=["southern", f"{BUCKET}/tenant-7/"]) as one:
        yield one


async def fences(gateway: Fleet) -> dict[str, list[str]]:
    prefix = f"s3/{BUCKET}/"
    return {name: [one.removeprefix(prefix) for one in await gateway.fences(name)] for name in ("north", "south")}


def names(key: str) -> dict[str, str]:
    return {"Bucket": BUCKET, "Key": key}


async def write_in_each_way(gateway: Fleet, writer: S3Client, folder: str, source: str) -> list[str]:
    """Write keys in a folder in each way that names one key, and return them."""
    body, large = b"x", b"y" * (9 * 1024 * 1024)
    await call(writer.put_object, **names(f"{folder}/put"), Body=body)
    await call(writer.put_object, **names(f"{folder}/large"), Body=large)
    await call(writer.put_object_tagging, **names(f"{folder}/put"), Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
    await call(writer.copy_object, **names(f"{folder}/copy"), CopySource=f"{BUCKET}/{source}")
    await call(writer.put_object, **names(f"{folder}/deleted"), Body=body)
    await call(writer.delete_object, **names(f"{folder}/deleted"))
    upload = {**names(f"{folder}/parts")}
    upload["UploadId"] = (await call(writer.create_multipart_upload, **upload))["UploadId"]
    part = await call(writer.upload_part, **upload, PartNumber=1, Body=large)
    copied = await call(writer.upload_part_copy, **upload, PartNumber=2, CopySource=f"{BUCKET}/{source}")
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}, {"PartNumber": 2, "ETag": copied["CopyPartResult"]["ETag"]}]
    await call(writer.complete_multipart_upload, **upload, MultipartUpload={"Parts": parts})
    assert (await post(signed(gateway.origin, f"{folder}/form", bucket=BUCKET))).status_code == 204
    return [f"{folder}/{name}" for name in ("put", "large", "copy", "deleted", "parts", "form")]


async def test_each_form_of_a_write_is_fenced_by_the_owner_of_its_key(gateway: Fleet, double: S3Double) -> None:
    writer = connect(gateway.origin, "5")
    for key in (OURS, THEIRS):
        await call(writer.put_object, **names(key), Body=key.encode())
    # The database of the destination decides, and the source of a copy is only read.
    ours = await write_in_each_way(gateway, writer, "tenant-7", THEIRS)
    theirs = await write_in_each_way(gateway, writer, "rest", OURS)
    assert double.objects(BUCKET)["tenant-7/copy"].content.body == THEIRS.encode()
    assert double.objects(BUCKET)["rest/copy"].content.body == OURS.encode()
    assert await fences(gateway) == {"north": sorted([THEIRS, *theirs]), "south": sorted([OURS, *ours])}
    for name in ("north", "south"):
        for table in ("intent", "object", "upload"):
            found = await gateway.asked(name, f"SELECT DISTINCT key FROM fencing.{table}")
            assert all((key.startswith("tenant-7/")) == (name == "south") for key in found), (name, table)


async def test_a_list_of_deletes_is_fenced_key_by_key(gateway: Fleet, double: S3Double) -> None:
    keys = ["tenant-7/a", "rest/a", "tenant-7/b", "rest/b"]
    for key in keys:
        await call(connect(gateway.origin, "5").put_object, **names(key), Body=b"x")
    async with gateway.api() as api:
        for key in ("tenant-7/b", "rest/b"):
            await api.post(f"/v1/fences/s3/{BUCKET}/{key}/barrier", json={"token": "8"})
    wanted = {"Objects": [{"Key": key} for key in keys]}
    answer = await call(connect(gateway.origin, "5").delete_objects, Bucket=BUCKET, Delete=wanted)
    assert [one["Key"] for one in answer["Deleted"]] == keys[:2]
    assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [(key, "StaleFencingToken") for key in keys[2:]]
    assert set(double.objects(BUCKET)) == set(keys[2:])
    gateway.lines["south"].cut()
    answer = await call(connect(gateway.origin, "8").delete_objects, Bucket=BUCKET, Delete=wanted)
    assert sorted(one["Key"] for one in answer["Deleted"]) == ["rest/a", "rest/b"]
    assert {one["Key"] for one in answer["Errors"]} == {"tenant-7/a", "tenant-7/b"}


async def leave(gateway: Fleet, double: S3Double, database: str, folder: str, *, stored: bool = True) -> str:
    """Leave, in a database, a tombstone that may go, one that may not, and an old mutation that never arrived."""
    for kind in ("spare", "needed"):
        place = (f"s3/{BUCKET}/{folder}/{kind}", BUCKET, f"{folder}/{kind}")
        metadata = {"fencing-tombstone": "true", "fencing-resource": place[0], "fencing-token": "1"}
        if stored:
            double.put(BUCKET, place[2], tombstone_body(uuid4()), metadata)
        await gateway.asked(
            database, "INSERT INTO fencing.tombstone (resource, bucket, key) VALUES ($1, $2, $3)", *place
        )
        if kind == "needed":
            forbidden = "INSERT INTO fencing.forbidden VALUES ($1, $2, $3, '', now() + interval '1 minute')"
            await gateway.asked(database, forbidden, *place)
    intent = f"s3/{BUCKET}/{folder}/pending"
    await gateway.asked(database, "INSERT INTO fencing.fence (resource, epoch, value) VALUES ($1, 0, 5)", intent)
    await gateway.asked(
        database,
        "INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value)"
        f" VALUES ('{intent}', '{BUCKET}', '{folder}/pending', gen_random_uuid(), 1, 0, 5)",
    )
    return f"{folder}/spare"


async def swept(gateway: Fleet, database: str) -> tuple[Swept, Events]:
    events = Events()
    (part,) = (one for one in gateway.settings.parts if one.name == database)
    return await sweep(part, events), events


async def rows(gateway: Fleet, database: str) -> list[str]:
    tables = ("tombstone", "forbidden", "intent", "object")
    query = " UNION ALL ".join(f"SELECT '{table} ' || key FROM fencing.{table}" for table in tables)
    return await gateway.asked(database, f"SELECT * FROM ({query}) AS t ORDER BY 1")


async def test_each_sweeper_takes_what_its_own_database_has_left(gateway: Fleet, double: S3Double) -> None:
    for database, folder in (("south", "tenant-7"), ("north", "rest")):
        await leave(gateway, double, database, folder)
    before = {name: await rows(gateway, name) for name in ("north", "south")}
    since = double.sequence
    assert (await swept(gateway, "north"))[0] == Swept(tombstones=1)
    changed = [one.key for one in double.applied(after=since) if ".fencing-gateway/" not in one.key]
    assert changed == ["rest/spare"]
    assert await rows(gateway, "south") == before["south"]
    assert set(double.objects(BUCKET)) == {"rest/needed", "tenant-7/needed", "tenant-7/spare"}
    middle = await rows(gateway, "north")
    assert (await swept(gateway, "south"))[0] == Swept(tombstones=1)
    assert set(double.objects(BUCKET)) == {"rest/needed", "tenant-7/needed"}
    assert await rows(gateway, "north") == middle


async def test_a_sweeper_leaves_a_tombstone_alone_that_the_rules_have_given_away(
    gateway: Fleet, double: S3Double
) -> None:
    """The owner of the key may rely on the object there: a request of an older holder may wait for its absence."""
    await leave(gateway, double, "south", "tenant-7")
    spare = await leave(gateway, double, "north", "tenant-7", stored=False)
    since = double.sequence
    round_of_north, events = await swept(gateway, "north")
    assert round_of_north == Swept()
    assert not [one.key for one in double.applied(after=since) if ".fencing-gateway/" not in one.key]
    failed = {one.what for one in events if isinstance(one, SweepFailed)}
    assert failed == {f"{BUCKET}/{spare}"}
    # Nor does a barrier there change the object.
    await gateway.asked("north", "UPDATE fencing.intent SET resource = 'job/x', settling = false")
    async with gateway.api() as api:
        barred = await api.post("/v1/fences/job/x/barrier", json={"token": "9"})
    assert barred.status_code == 422, barred.text
    assert not [one.key for one in double.applied(after=since) if ".fencing-gateway/" not in one.key]


@pytest.fixture
def keeping(double: S3Double) -> S3Double:
    """A store that ignores the conditions of deletes, so that each delete leaves a tombstone."""
    double.behave(ignored_conditions=frozenset({"DeleteObject"}))
    return double


async def test_a_listing_hides_what_each_database_has_left(keeping: S3Double, gateway: Fleet) -> None:
    client = connect(gateway.origin, "5")
    for key in ("tenant-7/a", "tenant-7/gone", "rest/a", "rest/gone"):
        await call(client.put_object, **names(key), Body=b"x")
    for key in ("tenant-7/gone", "rest/gone"):
        await call(client.delete_object, **names(key))
    assert "tenant-7/gone" in keeping.objects(BUCKET)

    async def listed(**more: Any) -> list[str]:
        page = await call(client.list_objects_v2, Bucket=BUCKET, **more)
        return [one["Key"] for one in page.get("Contents", [])] + [
            one["Prefix"] for one in page.get("CommonPrefixes", [])
        ]

    assert await listed() == ["rest/a", "tenant-7/a"]
    assert await listed(Delimiter="/") == ["rest/", "tenant-7/"]
    assert await listed(Prefix="tenant-7/") == ["tenant-7/a"]
    await call(client.delete_object, **names("tenant-7/a"))
    assert await listed(Delimiter="/") == ["rest/"]
    gateway.lines["south"].cut()
    assert await listed(Prefix="rest/") == ["rest/a"]
    for more in ({}, {"Prefix": "tenant-7/"}):
        assert (await outcome(client.list_objects_v2, Bucket=BUCKET, **more))[0] == 503
    gateway.lines["south"].mend()
    gateway.lines["north"].cut()
    async with asyncio.timeout(30):
        while (await outcome(client.list_objects_v2, Bucket=BUCKET, Prefix="tenant-7/"))[0] != 200:
            await asyncio.sleep(0.1)
    assert await listed(Prefix="tenant-7/") == []


@pytest.mark.thorough
async def test_writes_to_the_bucket_itself_are_those_of_its_owner(gateway: Fleet, double: S3Double) -> None:
    client = connect(gateway.origin, "5")
    for key in OWNERS:
        await call(client.put_object, **names(key), Body=b"x")
    probes = [one for one in double.requests if ".fencing-gateway/probe/" in (one.key or "")]
    folders = {(one.key or "").removeprefix("/").split("/")[2] for one in probes}
    assert len(folders) == 1, "both share a store and its probe"
    told = "SELECT details ->> 'operation' FROM fencing.record WHERE kind = 'administration' AND plane = 'objects'"
    await call(client.put_bucket_versioning, Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    seen = len(double.requests)
    await call(client.put_object, **names(OURS), Body=b"y")
    probes = [one for one in double.requests[seen:] if ".fencing-gateway/probe/" in (one.key or "")]
    assert probes, "the other database also forgets what the bucket did before"
    refused = await outcome(client.delete_bucket, Bucket=BUCKET)
    assert refused == (501, "NotImplemented")
    assert not [one for one in double.requests if str(one.operation) == "DeleteBucket"]
    done = {name: [one for one in await gateway.asked(name, told) if one] for name in ("north", "south")}
    assert done == {"north": ["PutBucketVersioning"], "south": []}


# Stores: each bucket is in the store of its database, also if another store has one of the same name. ---------------

NAMES = ("north", "south")


@pytest.fixture
def doubles() -> dict[str, S3Double]:
    """Two stores, which have buckets of the same names."""
    return {name: S3Double(buckets=["northern", "southern"]) for name in NAMES}


@asynccontextmanager
async def serving(postgres_server: Server, doubles: dict[str, S3Double]) -> AsyncIterator[str]:
    """Serve two databases, of which those of ``doubles`` have a store."""
    async with AsyncExitStack() as stack:
        addresses = [as_gateway(await stack.enter_async_context(fresh_database(postgres_server))) for _ in NAMES]
        listed = databases(*addresses, buckets=["southern"] if "south" in doubles else [])
        for one, schema in zip(listed, ("public", "no_tables"), strict=True):
            one |= {"store": one["name"] if one["name"] in doubles else None, "schemas": [schema]}
        stores = [
            {
                "name": name,
                "endpoint": await stack.enter_async_context(serve(double)),
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
            }
            for name, double in doubles.items()
        ]
        yield await stack.enter_async_context(running(settings(listed, stores=stores)))


@pytest_asyncio.fixture
async def origin(postgres_server: Server, doubles: dict[str, S3Double]) -> AsyncIterator[str]:
    async with serving(postgres_server, doubles) as one:
        yield one


async def test_a_bucket_is_in_the_store_of_its_database(origin: str, doubles: dict[str, S3Double]) -> None:
    client = connect(origin, "5")
    for bucket, owner in (("northern", "north"), ("southern", "south")):
        await call(client.put_object, Bucket=bucket, Key="k", Body=b"x")
        assert [name for name in NAMES if "k" in doubles[name].objects(bucket)] == [owner]
    # The other store has a bucket of the name of the source, too. It is another bucket.
    doubles["north"].put("southern", "secret", b"of a bucket that the gateway does not serve")
    source = "southern/secret"
    refused = await outcome(client.copy_object, Bucket="northern", Key="copy", CopySource=source)
    assert refused == (501, "NotImplemented")
    # A signed address may have the header of the source among its parameters.
    address = AWSRequest("PUT", f"{origin}/northern/copy?x-amz-copy-source=southern%2Fsecret&x-fencing-token=5")
    S3SigV4QueryAuth(Credentials(ACCESS_KEY_OF_A_CALLER, SECRET_KEY_OF_A_CALLER), "s3", "us-east-1").add_auth(address)
    async with httpx.AsyncClient(timeout=PATIENCE) as browser:
        hoisted = await browser.put(str(address.url))
    assert hoisted.status_code == 501, hoisted.text
    assert "copy" not in doubles["north"].objects("northern")
    assert await outcome(client.list_buckets) == (501, "NotImplemented")


@pytest.mark.parametrize("having", first(NAMES))
async def test_all_buckets_are_listed_if_one_store_has_them(
    postgres_server: Server, doubles: dict[str, S3Double], having: str
) -> None:
    """The other database has no store at all."""
    async with serving(postgres_server, {having: doubles[having]}) as origin:
        listed = await call(connect(origin, "5").list_buckets)
        assert [one["Name"] for one in listed["Buckets"]] == ["northern", "southern"]
