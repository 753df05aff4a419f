"""Journals in real stores: an acknowledged raise survives a restored backup, and takeovers are quick."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from uuid import uuid4

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.journal.bucket import BucketStore
from gateway.journal.contents import Problem
from tests.journal.installation import Installation, connected, installed
from tests.stores.store import Store


@pytest.fixture
async def installation(postgres_server: EmbeddedPostgres, store: Store) -> AsyncIterator[Installation]:
    bucket, owner = f"journal-{uuid4().hex[:12]}", store.owner
    store.connect().create_bucket(Bucket=bucket)
    async with (
        connected(store.endpoint, owner.access_key_id, owner.secret_access_key) as upstream,
        installed(postgres_server, BucketStore(upstream, bucket)) as one,
    ):
        yield one


VERSIONED_UNFIT = {"ceph", "versitygw"}
"""Stores that do not hold to conditions in a bucket with versions (docs/stores.md)."""


async def test_the_check_tells_which_stores_are_fit(installation: Installation) -> None:
    assert await installation.gateway().journal.find_unfit() is None
    assert not await installation.store.names("")


async def test_a_bucket_with_versions_may_be_unfit(installation: Installation, store: Store) -> None:
    assert isinstance(installation.store, BucketStore)
    bucket = installation.store._bucket
    store.connect().put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    found = await installation.gateway().journal.find_unfit()
    assert (found is not None and found.problem is Problem.UNFIT) is (store.name in VERSIONED_UNFIT)


async def test_a_fence_survives_a_restored_backup(installation: Installation) -> None:
    gateway = installation.gateway()
    await gateway.raised("order/5", 4)
    backup = await installation.save()
    gateway = installation.gateway()
    for token in range(5, 8):
        assert await gateway.raised("order/5", token) == "raised"
        await gateway.journal.compact(gateway.side)
    await gateway.raised("order/5", 9)
    await installation.restore(backup)
    gateway = installation.gateway()
    assert await gateway.raised("order/5", 8) == "token-stale"
    assert await installation.tokens() == {"order/5": 9}


async def test_takeovers_share_their_requests(
    installation: Installation, store: Store, record_property: Callable[[str, object], None]
) -> None:
    gateway = installation.gateway()
    await gateway.runner.open()
    holders, rounds = 32, 10

    async def holder(number: int) -> None:
        for token in range(1, rounds + 1):
            assert await gateway.raised(f"order/{number}", token) == "raised"

    began = time.monotonic()
    await asyncio.gather(*(holder(number) for number in range(holders)))
    rate = holders * rounds / (time.monotonic() - began)
    record_property(f"takeovers a second, {store.name}", round(rate))
    print(f"{store.name}: {rate:.0f} takeovers a second")
    segments = len(await installation.store.names("segments/"))
    assert segments < holders * rounds
