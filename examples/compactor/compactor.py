"""Compacts the events of a data set into one Parquet file, and points the catalogue at it.

Run it on as many machines as you like: the lock elects one of them. It covers the files below datasets/clicks/ and the
row of the catalogue. Each write shows the same token, to S3 and to Postgres, so a newer leader ends both at once.

    pip install '.[client]' pyarrow
    python -m examples.compactor.compactor

It wants GATEWAY_URL, GATEWAY_API_KEY, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import asyncio
import io
import json
import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.client import FencedClient, Lock

BUCKET, EVENTS, DATASET = "reports", "events/", "clicks"
LOCK = f"dataset/{DATASET}"


async def main() -> None:
    async with gateway() as client, client.lock(LOCK, ttl=float(os.environ.get("TTL", "30"))) as lock:
        print(f"elected, token {lock.token}", flush=True)
        async with lock.s3() as s3:
            events = await read(s3)
            file = await write_file(s3, lock, events)
        # The file first: the catalogue never names one that is not there.
        await write_row(lock, file, events)
        print(f"{len(events)} events in {file}", flush=True)


async def read(s3: Any) -> list[dict[str, Any]]:
    """Return all events. The fence was raised before, so no older leader can change the result any more."""
    events = []
    async for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=EVENTS):
        for one in page.get("Contents", ()):
            found = await s3.get_object(Bucket=BUCKET, Key=one["Key"])
            events.append(json.loads(await found["Body"].read()))
    return events


async def write_file(s3: Any, lock: Lock, events: list[dict[str, Any]]) -> str:
    """Write a new file; its name contains the token, so no other leader has it. Raise ``Stale``."""
    packed = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(events), packed)
    file = f"datasets/{DATASET}/{lock.token}.parquet"
    await s3.put_object(Bucket=BUCKET, Key=file, Body=packed.getvalue())
    return file


async def write_row(lock: Lock, file: str, events: list[dict[str, Any]]) -> None:
    """The catalogue's one row of this data set. Raises ``Stale``."""
    row = {"dataset": DATASET, "file": file, "rows": len(events)}
    answer = await lock.http.put(f"/v1/tables/catalogue?dataset=eq.{DATASET}", json=row)
    answer.raise_for_status()


def gateway() -> FencedClient:
    return FencedClient(
        os.environ["GATEWAY_URL"],
        api_key=os.environ["GATEWAY_API_KEY"],
        access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
        secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        holder=os.environ.get("MACHINE"),
    )


if __name__ == "__main__":
    asyncio.run(main())
