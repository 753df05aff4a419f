"""Two databases with a real store each, of which one may be down."""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

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
        yield found


@pytest_asyncio.fixture
async def origin(postgres_server: Server, stores: dict[str, Store]) -> AsyncIterator[str]:
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
            }
            for name, store in stores.items()
        ]
        async with running(settings(listed, stores=sections)) as one:
            yield one


async def test_a_store_that_hangs_takes_nothing_else_with_it(origin: str, stores: dict[str, Store]) -> None:
    await call(connect(origin, "10").put_object, Bucket="northern", Key="up", Body=b"x")
    await call(connect(origin, "10").put_object, Bucket="southern", Key="down", Body=b"x")
    port = int(stores["south"].endpoint.rpartition(":")[2])
    [process] = {
        one.pid
        for one in psutil.net_connections("tcp")
        if one.laddr and one.laddr.port == port and one.status == "LISTEN"
    }
    down = psutil.Process(process)
    down.suspend()
    try:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as api:
            for token in ("11", "12"):
                await call(connect(origin, token).put_object, Bucket="northern", Key="up", Body=b"x")
            lost = await outcome(connect(origin, "11").put_object, Bucket="southern", Key="down", Body=b"y")
            assert lost[0] == 503
            assert (await api.get("/v1/ready")).status_code == 204
            shown = (await api.get("/v1/health")).json()["databases"]
            assert shown["north"] == {"postgres": "ok", "s3": "ok"}
            assert shown["south"]["s3"] == "unreachable"
    finally:
        down.resume()
