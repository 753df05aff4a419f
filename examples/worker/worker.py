"""A worker of which any number of replicas run. One of them leads: it counts clicks, and publishes each count.

The lock elects the leader. It covers the files below datasets/clicks/ and their row of the catalogue, so a newer leader
ends both at once. The engine, the S3 client and the block of the lock are all that fencing needs.

    pip install '.[client]' sqlalchemy 'psycopg[binary]'
"""

import os
import signal
import sys
import time

from sqlalchemy import create_engine, text

from gateway.client import LockLost, Stale
from gateway.client.blocking import FencedClient, Lock
from gateway.client.etcd import EtcdSource
from gateway.client.sqlalchemy import fenced

TTL = float(os.environ.get("TTL", "30"))
WORK = float(os.environ.get("WORK", "0.2"))

client = FencedClient(
    os.environ["GATEWAY_URL"],
    api_key=os.environ["GATEWAY_API_KEY"],
    access_key_id=os.environ["AWS_ACCESS_KEY_ID"],
    secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"],
    holder=os.environ.get("MACHINE"),
)
engine = fenced(create_engine(os.environ["GATEWAY_POSTGRES"].replace("postgresql://", "postgresql+psycopg://", 1)))
# Without ETCD, the gateway's own locks elect the leader.
election = EtcdSource(os.environ["ETCD"]) if "ETCD" in os.environ else None

READ = text("SELECT rows FROM catalogue WHERE dataset = 'clicks'")
PUBLISH = text(
    "INSERT INTO catalogue VALUES ('clicks', :file, :rows)"
    " ON CONFLICT (dataset) DO UPDATE SET file = excluded.file, rows = excluded.rows"
)


def main() -> None:
    while True:
        try:
            with client.lock("dataset/clicks", source=election, ttl=TTL) as lock:
                say(f"elected, token {lock.token}")
                while True:
                    publish(lock)
        except (LockLost, Stale) as lost:
            say(f"leads no more: {lost.message}")


def publish(lock: Lock) -> None:
    """Count ten more clicks. The file comes first, with the token in its name: the row never names a missing file."""
    with engine.begin() as transaction:
        # The fence was raised before this block, so no older leader changes what is read here.
        rows = (transaction.execute(READ).scalar() or 0) + 10
        file = f"datasets/clicks/{lock.token}-{rows}.txt"
        lock.s3.put_object(Bucket="reports", Key=file, Body=f"{rows}\n")
        say(f"publishing {file}")
        time.sleep(WORK)  # no program can look at its lock and write in one step: the pause comes in between
        transaction.execute(PUBLISH, {"file": file, "rows": rows})
    say(f"published {rows} clicks")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    # An exception leaves the block of the lock, so the successor does not have to wait for the end of the lease.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    main()
