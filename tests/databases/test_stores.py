"""Several stores: each bucket is in the store of its database, also if another store has one of the same name."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
import pytest_asyncio
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.databases.fleet import databases, settings
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server, as_gateway, fresh_database
from tests.running import ACCESS_KEY as ACCESS_KEY_OF_A_CALLER
from tests.running import SECRET_KEY as SECRET_KEY_OF_A_CALLER
from tests.running import running
from tests.waiting import PATIENCE

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
                "sweep_interval": 0,
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
    assert await outcome(client.copy_object, Bucket="northern", Key="copy", CopySource=source) == (
        501,
        "NotImplemented",
    )
    # A signed address may have the header of the source among its parameters.
    address = AWSRequest("PUT", f"{origin}/northern/copy?x-amz-copy-source=southern%2Fsecret&x-fencing-token=5")
    S3SigV4QueryAuth(Credentials(ACCESS_KEY_OF_A_CALLER, SECRET_KEY_OF_A_CALLER), "s3", "us-east-1").add_auth(address)
    async with httpx.AsyncClient(timeout=PATIENCE) as browser:
        hoisted = await browser.put(str(address.url))
    assert hoisted.status_code == 501, hoisted.text
    assert "copy" not in doubles["north"].objects("northern")
    assert await outcome(client.list_buckets) == (501, "NotImplemented")


@pytest.mark.parametrize("having", NAMES)
async def test_all_buckets_are_listed_if_one_store_has_them(
    postgres_server: Server, doubles: dict[str, S3Double], having: str
) -> None:
    """The other database has no store at all."""
    async with serving(postgres_server, {having: doubles[having]}) as origin:
        listed = await call(connect(origin, "5").list_buckets)
        assert [one["Name"] for one in listed["Buckets"]] == ["northern", "southern"]
