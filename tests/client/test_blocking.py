"""The same locks for programs without an event loop: renewed while threads are busy, lost where threads look."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.client import LockLost, Stale, Unavailable
from gateway.client.blocking import FencedClient, Lock
from tests.client.stage import BUCKET, Asleep, Counter, Stage, slow
from tests.tiers import first
from tests.waiting import PATIENCE


@pytest.fixture
def client(stage: Stage) -> Iterator[FencedClient]:
    with stage.blocking() as one:
        yield one


WRITES: dict[str, Callable[[Lock, int, str], Any]] = {
    "http": lambda lock, number, owner: lock.http.put(
        f"/v1/tables/accounts?id=eq.{number}", json={"id": number, "owner": owner}
    ),
    "postgrest": lambda lock, number, owner: (
        lock.postgrest.from_("accounts").upsert({"id": number, "owner": owner}).execute()
    ),
    "s3": lambda lock, number, owner: lock.s3.put_object(
        Bucket=BUCKET, Key=f"accounts/{number}/file", Body=owner.encode()
    ),
}


@pytest.mark.parametrize("name", first(WRITES))
def test_a_zombie(stage: Stage, client: FencedClient, name: str) -> None:
    write, number = WRITES[name], stage.account()
    resource = f"public.accounts/{number}"

    def standing() -> str | None:
        body = stage.body(number)
        return stage.owner(number) if body is None else body.decode()

    with stage.blocking(clock=lambda: 0.0) as zombie:
        asleep = Asleep(zombie._client._leases)
        with zombie.lock(resource, source=asleep, ttl=0.3, on_loss="tell") as lock:
            write(lock, number, "zombie")
            with client.lock(resource, ttl=20) as newer:
                with pytest.raises(Stale) as refused:
                    write(lock, number, "late")
                assert (refused.value.fence, refused.value.raised_by) == (newer.token, newer.holder)
                assert standing() == "zombie"
                assert lock.lost.wait(PATIENCE)
                with pytest.raises(LockLost):
                    write(lock, number, "later")
                assert len(stage.rejections(resource)) == 1
                write(newer, number, "successor")
    assert standing() == "successor"


@pytest.mark.parametrize("on_loss", ["raise", "tell"])
def test_what_becomes_of_the_block(stage: Stage, job: str, on_loss: Any) -> None:
    counter = Counter(clock=slow)

    def work(client: FencedClient) -> str:
        with client.lock(job, source=counter, ttl=0.9, barrier=False, on_loss=on_loss) as lock:
            counter.take_away(job)
            assert lock.lost.wait(PATIENCE)
        return "done"

    with stage.blocking(clock=slow) as client:
        if on_loss == "tell":
            assert work(client) == "done"
        else:
            with pytest.raises(LockLost, match="somebody else"):
                work(client)
        with pytest.raises(KeyError), client.lock(job, source=counter, ttl=0.9, on_loss=on_loss):
            counter.take_away(job)
            raise KeyError


def test_credentials_and_the_environment(stage: Stage, client: FencedClient, job: str) -> None:
    with client.lock(job) as lock:
        assert lock.credentials().session_token
        assert len(lock.credentials(read="all").session_token) > len(lock.credentials().session_token)
        assert lock.environment(read=["s3/in/**"])["AWS_SESSION_TOKEN"]
        variables = lock.environment()
        assert (variables["FENCING_TOKEN"], variables["AWS_ENDPOINT_URL_S3"]) == (lock.token, stage.origin)


def test_closing_ends_what_waits_and_what_is_held(stage: Stage, job: str) -> None:
    client = stage.blocking()
    held = client.lock(job, on_loss="tell").__enter__()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            with client.lock(job):
                pass
        except Unavailable as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while stage.standing(job)["waiters"] == 0:
        time.sleep(0.02)
    client.close()
    thread.join(PATIENCE)
    assert len(ended) == 1
    view = stage.standing(job)
    assert (view["holders"], view["waiters"]) == ([], 0)
    held.__exit__(None, None, None)
    client.close()


INTERRUPTED = """
import os, signal, sys, threading
from gateway.client.blocking import FencedClient

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is in the background without
client = FencedClient(sys.argv[1], api_key=sys.argv[2])
with client.lock(sys.argv[3]):
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with client.lock(sys.argv[3]):
            print("never")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    client.lock(sys.argv[3] + "/abandoned").__enter__()
# Nobody closes the client: that must not keep the process alive.
"""


def test_ctrl_c_and_the_end_of_the_process(stage: Stage, job: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, stage.origin, "writer-api-key", job],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "interrupted\n", "")
    view = stage.standing(job)
    assert (view["holders"], view["waiters"]) == ([], 0)
