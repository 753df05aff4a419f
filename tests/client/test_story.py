"""The whole story: a holder is stopped past the end of its lease, another one takes over, and the first one writes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from gateway.client import Lock, LockLost, Stale
from tests.client.counter import Asleep
from tests.client.stage import BUCKET, Stage
from tests.waiting import PATIENCE

Write = Callable[[Lock, int, str], Awaitable[Any]]


async def by_http(lock: Lock, number: int, owner: str) -> httpx.Response:
    return await lock.http.put(f"/v1/tables/accounts?id=eq.{number}", json={"id": number, "owner": owner})


async def by_postgrest(lock: Lock, number: int, owner: str) -> Any:
    return await lock.postgrest.from_("accounts").upsert({"id": number, "owner": owner}).execute()


async def by_s3(lock: Lock, number: int, owner: str) -> Any:
    async with lock.s3() as s3:
        return await s3.put_object(Bucket=BUCKET, Key=f"accounts/{number}/file", Body=owner.encode())


async def by_boto3(lock: Lock, number: int, owner: str) -> Any:
    s3 = lock.boto3()
    try:
        return await asyncio.to_thread(s3.put_object, Bucket=BUCKET, Key=f"accounts/{number}/file", Body=owner.encode())
    finally:
        s3.close()


WRITES: dict[str, Write] = {"http": by_http, "postgrest": by_postgrest, "s3": by_s3, "boto3": by_boto3}


def standing(stage: Stage, number: int) -> str | None:
    body = stage.body(number)
    return stage.owner(number) if body is None else body.decode()


@pytest.mark.parametrize("name", WRITES)
async def test_a_zombie(stage: Stage, name: str) -> None:
    write, number = WRITES[name], stage.account()
    resource = f"public.accounts/{number}"
    # Its machine was stopped, with its clock: what it knows says that it holds the lock.
    zombie, successor = stage.client(clock=lambda: 0.0), stage.client(holder="successor")
    async with zombie, successor:
        asleep = Asleep(zombie._leases)
        async with zombie.lock(resource, source=asleep, ttl=0.3, on_loss="tell") as lock:
            await write(lock, number, "zombie")
            async with successor.lock(resource, ttl=20) as newer:
                assert int(newer.token) == int(lock.token) + 1
                assert not lock.lost.is_set()

                with pytest.raises(Stale) as refused:
                    await write(lock, number, "late")
                assert standing(stage, number) == "zombie"
                [record] = stage.rejections(resource)
                said = refused.value
                assert (said.code, said.resource, said.token, said.fence, said.raised_by, said.rejection) == (
                    "token-stale", resource, lock.token, newer.token, newer.holder, str(record["id"]),
                )  # fmt: skip
                assert said.raised_at is not None
                assert "trying again" in str(said) or "retrying cannot succeed" in str(said)

                # Now it knows, and stops by itself.
                await asyncio.wait_for(lock.lost.wait(), PATIENCE)
                with pytest.raises(LockLost) as known:
                    await write(lock, number, "later")
                assert known.value.__cause__ is said
                assert len(stage.rejections(resource)) == 1, "nothing was sent"

                await write(newer, number, "successor")
                assert standing(stage, number) == "successor"
