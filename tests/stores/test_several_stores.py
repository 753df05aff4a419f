"""Two databases with a real store each: every bucket is in the store of its database, and one store may be down."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.databases.fleet import databases, settings
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server, as_gateway, fresh_database
from tests.running import API_KEY, running
from tests.stores import minio, versitygw
from tests.stores.store import REGION, Store, StoreMissing
from tests.waiting import PATIENCE


@pytest.fixture(scope="module")
def stores() -> Iterator[dict[str, Store]]:
    with ExitStack() as stack:
        try:
            found = {
                "north": stack.enter_context(minio.running()),
                "south": stack.enter_context(versitygw.running()),
            }
        except StoreMissing as missing:
            pytest.skip(str(missing))
        for name, store in found.items():
            store.connect().create_bucket(Bucket=f"{name}ern")
            # The same name in the other store belongs to no database.
            other = found["south" if name == "north" else "north"]
            other.connect().create_bucket(Bucket=f"{name}ern")
        yield found


@dataclass(frozen=True, slots=True)
class Served:
    origin: str
    stores: dict[str, Store]


@pytest_asyncio.fixture
async def gateway(postgres_server: Server, stores: dict[str, Store]) -> AsyncIterator[Served]:
    async with fresh_database(postgres_server) as north, fresh_database(postgres_server) as south:
        listed = databases(as_gateway(north), as_gateway(south), store="south", buckets=["southern"])
        listed[0] |= {"store": "north", "buckets": ["northern"], "schemas": ["public"]}
        sections = [
            {
                "name": name,
                "endpoint": store.endpoint,
                "region": REGION,
                "access_key_id": store.owner.access_key_id,
                "secret_access_key": store.owner.secret_access_key,
                "sweep_interval": 0,
                "timeout": 2,
            }
            for name, store in stores.items()
        ]
        async with running(settings(listed, stores=sections)) as origin:
            yield Served(origin, stores)


def keys(store: Store, bucket: str) -> list[str]:
    return [one["Key"] for one in store.connect().list_objects_v2(Bucket=bucket).get("Contents", [])]


async def test_each_bucket_is_in_the_store_of_its_database(gateway: Served) -> None:
    for name, store in gateway.stores.items():
        bucket, other = f"{name}ern", gateway.stores["south" if name == "north" else "north"]
        client = connect(gateway.origin, "5")
        await call(client.put_object, Bucket=bucket, Key="small", Body=b"x")
        await call(client.put_object, Bucket=bucket, Key="large", Body=b"x" * 9 * 1024 * 1024)
        assert keys(store, bucket) == ["large", "small"]
        assert not keys(other, bucket)
        newer = connect(gateway.origin, "6")
        await call(newer.copy_object, Bucket=bucket, Key="small", CopySource=f"{bucket}/large")
        assert (await outcome(client.put_object, Bucket=bucket, Key="small", Body=b"late"))[0] == 412
        found = await call(client.get_object, Bucket=bucket, Key="small")
        # The gateway has the event loop of this test.
        assert len(await asyncio.to_thread(found["Body"].read)) == 9 * 1024 * 1024
    crossing = connect(gateway.origin, "7")
    refused = await outcome(crossing.copy_object, Bucket="southern", Key="copy", CopySource="northern/small")
    assert refused[:2] == (501, "NotImplemented")
    assert (await outcome(crossing.list_buckets))[0] == 501


async def test_a_store_that_hangs_takes_nothing_else_with_it(gateway: Served) -> None:
    await call(connect(gateway.origin, "10").put_object, Bucket="northern", Key="up", Body=b"x")
    await call(connect(gateway.origin, "10").put_object, Bucket="southern", Key="down", Body=b"x")
    port = int(gateway.stores["south"].endpoint.rpartition(":")[2])
    [process] = {
        one.pid
        for one in psutil.net_connections("tcp")
        if one.laddr and one.laddr.port == port and one.status == "LISTEN"
    }
    down = psutil.Process(process)
    down.suspend()
    try:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(base_url=gateway.origin, headers=headers, timeout=PATIENCE) as api:
            for token in ("11", "12"):
                await call(connect(gateway.origin, token).put_object, Bucket="northern", Key="up", Body=b"x")
            lost = await outcome(connect(gateway.origin, "11").put_object, Bucket="southern", Key="down", Body=b"y")
            assert lost[0] == 503
            assert (await api.get("/v1/ready")).status_code == 204
            shown = (await api.get("/v1/health")).json()["databases"]
            assert shown["north"] == {"postgres": "ok", "s3": "ok"}
            assert shown["south"]["s3"] == "unreachable"
    finally:
        down.resume()
