"""Bodies that wait for a paused database use up the memory of that database, and no other one's."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.databases.fleet import SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect
from tests.postgres import Server
from tests.waiting import PATIENCE

SHARE = 4 * 1024 * 1024
"""Bytes for the bodies of one database. A third share reads those that tell their database."""
LARGE = "x" * (3 * 1024 * 1024)
CLIENTS = 2


def patch(api: httpx.AsyncClient, schema: str, token: str) -> Any:
    headers = {"Fencing-Token": token, "Content-Profile": schema}
    return api.patch("/v1/tables/orders?id=eq.1", json={"status": LARGE}, headers=headers)


def transaction(api: httpx.AsyncClient, schema: str, token: str) -> Any:
    write = {"method": "PATCH", "table": "orders", "schema": schema, "query": "id=eq.2", "token": token}
    return api.post("/v1/transaction", json={"writes": [{**write, "body": {"status": LARGE}}]})


def put(gateway: Fleet, bucket: str, token: str) -> Any:
    return call(connect(gateway.origin, token).put_object, Bucket=bucket, Key="large", Body=LARGE.encode())


async def memory(api: httpx.AsyncClient) -> float:
    lines = (await api.get("/v1/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("gateway_body_memory_bytes ")).split()[1])


@pytest.mark.thorough
async def test_large_bodies_for_a_paused_database_leave_room_for_the_others(postgres_server: Server) -> None:
    server = {"memory": 3 * SHARE}
    double = S3Double(buckets=["northern", "southern"])
    async with fleet(postgres_server, double, gives_up=SOON, server=server) as gateway, gateway.api() as api:
        for schema, bucket in (("north", "northern"), ("south", "southern")):
            assert (await patch(api, schema, "1")).status_code == 204
            await put(gateway, bucket, "1")
        gateway.lines["south"].pause()
        waiting = [asyncio.create_task(patch(api, "south", "2")) for _ in range(CLIENTS)]
        waiting += [asyncio.create_task(put(gateway, "southern", "2")) for _ in range(CLIENTS)]
        async with asyncio.timeout(PATIENCE):
            while await memory(api) < SHARE:
                await asyncio.sleep(0.05)
        try:
            # A list of writes is in memory before its database is known, so it cannot wait for a share.
            for _ in range(CLIENTS):
                refused = await transaction(api, "south", "2")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert "All memory for requests of this database is in use" in refused.text
            for token in ("2", "3"):
                assert (await patch(api, "north", token)).status_code == 204
                assert (await transaction(api, "north", token)).status_code == 200
                await put(gateway, "northern", token)
            assert await memory(api) <= 2 * SHARE
        finally:
            gateway.lines["south"].resume()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await memory(api) == 0
        assert (await transaction(api, "south", "3")).status_code == 200
