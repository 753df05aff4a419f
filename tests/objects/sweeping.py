"""A sweeper of the test's own beside the gateway on stage, and tombstones to sweep."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from gateway.objects.protocol.effects import tombstone_body
from gateway.objects.protocol.runner import Runner
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.objects.sweeper import Sweeper
from tests.doubles.s3 import S3Double
from tests.objects.object_gateway import Stage
from tests.patience import patient
from tests.running import Events


def forgetful(*buckets: str) -> S3Double:
    """A store that ignores the conditions of deletes, so that each delete through the gateway leaves a tombstone."""
    double = S3Double(buckets=buckets or ("bucket",))
    double.behave(ignored_conditions=frozenset({"DeleteObject"}))
    return double


async def entomb(stage: Stage, *keys: str, bucket: str = "bucket", forbidden: bool = False) -> None:
    """Put tombstones where they stand after a delete; ``forbidden``: a late request may be waiting for absence."""
    for key in keys:
        resource = f"s3/{bucket}/{key}"
        metadata = {"fencing-tombstone": "true", "fencing-resource": resource, "fencing-token": "1"}
        stage.double.put(bucket, key, tombstone_body(uuid4()), metadata)
        await stage.rows(
            "INSERT INTO fencing.tombstone (resource, bucket, key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
            resource, bucket, key,
        )  # fmt: skip
        if forbidden:
            await stage.rows(
                "INSERT INTO fencing.forbidden VALUES ($1, $2, $3, '', now() + interval '1 minute')",
                resource, bucket, key,
            )  # fmt: skip


@asynccontextmanager
async def sweeper(stage: Stage, **settings: Any) -> AsyncIterator[tuple[Sweeper, Events]]:
    """A sweeper like the one of another gateway."""
    events = Events()
    database = patient(stage.dsn)
    try:
        async with Upstream(stage.settings()) as upstream:
            profiles = Profiles(upstream)
            runner = Runner(database, upstream, profiles, events, settings.get("pending_wait", 0.2))
            yield Sweeper(database, upstream, profiles, runner, events), events
    finally:
        await database.close()
