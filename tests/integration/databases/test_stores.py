"""Several stores: each bucket is in the store of its database, also if another store has one of the same name."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.databases import Server, as_gateway, fresh_database
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, S3Double, serve
from tests.integration.databases.fleet import databases, settings
from tests.integration.objects.clients import call, connect, outcome
from tests.running import ACCESS_KEY as ACCESS_KEY_OF_A_CALLER
from tests.running import SECRET_KEY as SECRET_KEY_OF_A_CALLER
from tests.running import running

NAMES = ("north", "south")


@pytest.fixture
def doubles() -> dict[str, S3Double]:
    """Two stores, which have buckets of the same names."""
    return {name: S3Double(buckets=["northern", "southern"]) for name in NAMES}


@pytest_asyncio.fixture
async def origin(postgres_server: Server, doubles: dict[str, S3Double]) -> AsyncIterator[str]:
    async with AsyncExitStack() as stack:
        addresses = [as_gateway(await stack.enter_async_context(fresh_database(postgres_server))) for _ in NAMES]
        listed = databases(*addresses, buckets=["southern"])
        for one, schema in zip(listed, ("public", "no_tables"), strict=True):
            one |= {"store": one["name"], "schemas": [schema]}
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
    async with httpx.AsyncClient() as browser:
        hoisted = await browser.put(str(address.url))
    assert hoisted.status_code == 501, hoisted.text
    assert "copy" not in doubles["north"].objects("northern")
