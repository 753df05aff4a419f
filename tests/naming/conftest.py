"""Gateways with rules of their own, side by side on one database and one store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import connect, outcome
from tests.postgres import fresh_database
from tests.running import API_KEY, config, running
from tests.tables.asking import send
from tests.waiting import PATIENCE

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, account bigint NOT NULL, note text);
INSERT INTO orders VALUES (1, 10, ''), (2, 10, ''), (3, 30, '');
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One database and one store. ``dsn`` is that of the owner."""

    dsn: str
    endpoint: str

    async def rows(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            await connection.close()

    async def execute(self, sql: str) -> None:
        connection = await asyncpg.connect(self.dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def until(self, sql: str) -> None:
        """Wait until a query returns a row."""
        async with asyncio.timeout(PATIENCE):
            while not await self.rows(sql):
                await asyncio.sleep(0.02)

    def config(self, **sections: Any) -> Config:
        return config(self.dsn, self.endpoint, **sections)

    @asynccontextmanager
    async def gateway(self, **sections: Any) -> AsyncIterator["Gateway"]:
        """Run a gateway with these rules."""
        async with running(self.config(**sections)) as origin:
            headers = {"Authorization": f"Bearer {API_KEY}"}
            async with httpx.AsyncClient(base_url=f"{origin}/v1/tables", headers=headers, timeout=60) as client:
                yield Gateway(origin, client)

    async def fences(self) -> dict[str, str]:
        found = await self.rows("SELECT resource, fencing.token_v1(epoch, value) AS token FROM fencing.fence")
        return {row["resource"]: row["token"] for row in found}


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway."""

    origin: str
    client: httpx.AsyncClient

    async def patch(self, row: int, token: object, note: str = "x", prefer: str | None = None) -> httpx.Response:
        return await send(self.client, "PATCH", f"/orders?id=eq.{row}", {"note": note}, token=token, prefer=prefer)

    async def patch_account(self, account: int, token: object) -> httpx.Response:
        return await send(self.client, "PATCH", f"/orders?account=eq.{account}", {"note": "x"}, token=token)

    async def put(self, key: str, token: object, body: bytes = b"x") -> tuple[int, str]:
        client = connect(self.origin, str(token))
        return await outcome(client.put_object, Bucket="bucket", Key=key, Body=body)


@pytest.fixture
async def place(postgres_server: EmbeddedPostgres) -> AsyncIterator[Place]:
    async with fresh_database(postgres_server) as dsn, serve(S3Double(buckets=["bucket", "other"])) as endpoint:
        found = Place(dsn, endpoint)
        await found.execute(TABLES)
        yield found


BY_ACCOUNT = {"tables": [{"name": "public.orders", "resource": "account/{account}"}]}
BY_ORDER = {"tables": [{"name": "public.orders", "resource": "order/{id}"}]}
KEYS_BY_ACCOUNT = {"objects": [{"match": "bucket/{account}/**", "resource": "account/{account}"}]}
