"""Holds locks by the client library: ``python -m bench.lock_holder ORIGIN LOCKS MOST``, until its input ends.

MOST is how many are renewed in one request. It says ``ready`` once it has all of them, and ends with the number of
those that were lost. They are not given back.
"""

import asyncio
import sys

from bench.lock_client import TTL
from gateway.client import FencedClient, leases

AT_ONCE = 16
"""Locks that are acquired at the same time."""


async def hold(origin: str, locks: int) -> int:
    """Hold locks as a program does that has many; how many it has lost in the end."""
    client = FencedClient(origin)
    held = [client.lock(f"held/{number}", ttl=TTL, barrier=False, on_loss="tell") for number in range(locks)]
    waiting = iter(held)

    async def acquire() -> None:
        for lock in waiting:
            await lock.__aenter__()

    await asyncio.gather(*(acquire() for _ in range(AT_ONCE)))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    return sum(lock.lost.is_set() for lock in held)


if __name__ == "__main__":
    to, number, most = sys.argv[1:]
    vars(leases)["MOST"] = int(most)
    print(asyncio.run(hold(to, int(number))), flush=True)
