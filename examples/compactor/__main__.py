"""A leader-elected compactor: events become one Parquet file in S3 and one row in Postgres, under one lock."""

import asyncio
import io
import json
import sys
from contextlib import AbstractContextManager
from uuid import uuid4

import pyarrow.parquet as pq

from examples.compactor.compactor import BUCKET, DATASET, EVENTS, LOCK
from examples.telling import ACCESS_KEY, API_KEY, SECRET_KEY, Machine, Stage, machine, say, stage
from gateway.client import FencedClient


def main() -> None:
    here = stage(__doc__)
    asyncio.run(produce(here, "web-1", "web-2"))
    if here.zombie:
        zombie(here)
    else:
        with compactor(here, "compactor-a") as first:
            first.hear("elected")
            with compactor(here, "compactor-b") as second:
                first.end()
                second.end()
    look(here)


def zombie(here: Stage) -> None:
    """The leader is paused, for longer than its lease lasts, when it has read everything and is about to write."""
    with compactor(here, "compactor-a", "zombie") as first:
        first.hear("about to write")
        first.stopped()
        say(f"compactor-a stands still (SIGSTOP). Its lease runs out after {here.ttl:g} s.")
        asyncio.run(produce(here, "web-3"))
        with compactor(here, "compactor-b") as second:
            second.end()
        say("compactor-a wakes up (SIGCONT), knows nothing, and writes.")
        first.resume()
        first.end()
    here.refusals(LOCK, 2)


async def produce(here: Stage, *producers: str) -> None:
    """Each producer has a lock of its own, which covers its events."""
    async with FencedClient(
        here.url, api_key=API_KEY, access_key_id=ACCESS_KEY, secret_access_key=SECRET_KEY
    ) as client:
        for producer in producers:
            async with client.lock(f"producer/{producer}") as lock, lock.s3() as s3:
                for number in range(2):
                    event = json.dumps({"producer": producer, "number": number})
                    await s3.put_object(Bucket=BUCKET, Key=f"{EVENTS}{producer}/{uuid4()}.json", Body=event)
    say(f"{' and '.join(producers)}: 2 events each, in s3://{BUCKET}/{EVENTS}")


def look(here: Stage) -> None:
    """Show the row of the catalogue, and whether it is true."""
    row = here.get("/v1/tables/catalogue", dataset=f"eq.{DATASET}")[0]
    found = here.s3().get_object(Bucket=BUCKET, Key=row["file"])["Body"].read()
    rows = pq.read_metadata(io.BytesIO(found)).num_rows
    say(f"The catalogue: {DATASET} is {row['file']} with {row['rows']} rows. That file has {rows}.")


def compactor(here: Stage, name: str, program: str = "compactor") -> AbstractContextManager[Machine]:
    command = [sys.executable, "-m", f"examples.compactor.{program}"]
    return machine(
        here, name, command, TTL=str(here.ttl), AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY
    )


if __name__ == "__main__":
    main()
