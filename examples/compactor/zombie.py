"""The compactor, stopped after its last look at the lock, and going on as if nothing had happened.

No program can look at its lease and write in one step; the pause comes in between. Here the pause is certain. The
client library checks the lock before each request, and finds it held, as it would a moment before a pause.
"""

import asyncio
import os
import signal

from examples.compactor.compactor import DATASET, LOCK, gateway, read, write_file, write_row
from gateway.client.errors import Stale


async def main() -> None:
    ttl = float(os.environ.get("TTL", "30"))
    async with gateway() as client, client.lock(LOCK, ttl=ttl, on_loss="tell") as lock, lock.s3() as s3:
        print(f"elected, token {lock.token}", flush=True)
        events = await read(s3)
        lock.check()
        # From here on every look at the lock has been taken already.
        lock.check = lambda: None  # type: ignore[method-assign]
        file = f"datasets/{DATASET}/{lock.token}.parquet"
        print(f"about to write {len(events)} events to {file}", flush=True)

        os.kill(os.getpid(), signal.SIGSTOP)

        try:
            await write_file(s3, lock, events)
        except Stale as refused:
            print(f"file: {refused.message}", flush=True)
        # Stubborn, too: the refusal of the file would have ended any other program.
        try:
            await write_row(lock, file, events)
        except Stale as refused:
            print(f"row: {refused.message}", flush=True)
            raise SystemExit(1) from refused


asyncio.run(main())
