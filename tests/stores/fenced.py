"""A gateway in front of a real store, with a patrol of the test's own beside it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
from mypy_boto3_s3 import S3Client
from pydantic import SecretStr

from gateway.config.sections import ObjectStore
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.resource import escape_path
from gateway.objects.bypass import BypassScan
from gateway.objects.key_rules import KeyRule, Resources
from gateway.objects.store.operations import Upstream
from gateway.observe.events import SweepFailed
from tests.objects.clients import connect
from tests.postgres import fresh_database
from tests.running import API_KEY, Events, config, running
from tests.stores.store import REGION, Store

LONG, LONG_NAMED = "long/", "long"
"""The prefix of keys that are longer than the name of a resource may be, and the resource that they belong to."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A store behind a gateway, and one bucket in it. ``origin`` is the gateway's."""

    origin: str
    store: Store
    settings: ObjectStore
    bucket: str
    dsn: str

    def through(self, token: str = "1") -> S3Client:
        """A client of the gateway."""
        return connect(self.origin, token)

    def beside(self) -> S3Client:
        """A client of the store itself."""
        return self.store.connect()

    async def patrolled(self, page: int = 1000) -> int:
        """How much one whole round finds. Fails where a bucket could not be looked through."""
        events, database = Events(), Database(self.dsn)
        try:
            async with Upstream(self.settings) as upstream:
                rules = Resources([KeyRule.compile(f"{self.bucket}/{LONG}**", LONG_NAMED)])
                found = await BypassScan(database, upstream, rules, events, page).round(10_000)
        finally:
            await database.close()
        failed = [event.error for event in events if isinstance(event, SweepFailed)]
        assert failed == []
        return found

    async def bypasses(self) -> list[tuple[str, str]]:
        """Return the bypasses on record: reason and key, in the order of keys."""
        rows = await self.rows("SELECT reason, details::text FROM fencing.record WHERE kind = 'bypass'")
        found = [(str(reason), str(json.loads(details).get("key"))) for reason, details in rows]
        return sorted(found, key=lambda entry: entry[1])

    async def barrier(self, key: str, token: str) -> int:
        """Raise the fence of a key; the status."""
        async with httpx.AsyncClient(base_url=self.origin, timeout=60) as api:
            path = f"/v1/fences/s3/{self.bucket}/{escape_path(key)}/barrier"
            answer = await api.post(path, json={"token": token}, headers={"Authorization": f"Bearer {API_KEY}"})
        return answer.status_code

    async def rows(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Ask the database itself."""
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetch(sql, *arguments)
        finally:
            await connection.close()


@asynccontextmanager
async def fenced(postgres: EmbeddedPostgres, store: Store, *, versioned: bool = False) -> AsyncIterator[Fenced]:
    """Put a gateway in front of a store, with a fresh bucket and database. It makes no rounds by itself."""
    bucket = f"bucket-{uuid4().hex[:12]}"
    await asyncio.to_thread(_create, store, bucket, versioned)
    settings: dict[str, Any] = {
        "endpoint": store.endpoint,
        "region": REGION,
        "access_key_id": store.owner.access_key_id,
        "secret_access_key": SecretStr(store.owner.secret_access_key),
        "distrust": store.distrust,
    }
    rules = [{"match": f"{bucket}/{LONG}**", "resource": LONG_NAMED}]
    async with (
        fresh_database(postgres) as dsn,
        running(config(dsn, store.endpoint, s3=settings, objects=rules)) as origin,
    ):
        yield Fenced(origin, store, ObjectStore.model_validate(settings), bucket, dsn)


def _create(store: Store, bucket: str, versioned: bool) -> None:  # noqa: FBT001 - runs in a thread
    s3 = store.connect()
    s3.create_bucket(Bucket=bucket)
    if versioned:
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
