"""The effects of time on a process: stopped (SIGSTOP) past the end of its lease, and with a time of day that jumps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.client.stage import Stage
from tests.leases.asking import lies, needs_faketime
from tests.pausing import pause, resume
from tests.running import API_KEY

# Each is run as a program of its own: url, API key, name of the lock, path to write to.
BEGINNING = """
import asyncio, sys
import httpx
from gateway.client import LockLost, Stale, raise_for_refusal

url, key, name, path = sys.argv[1:]
row = {"id": int(name.rpartition("/")[2]), "owner": "zombie"}

def past_the_lock(headers):
    try:
        raise_for_refusal(httpx.put(url + path, json=row, headers={**headers, "Authorization": f"Bearer {key}"}))
    except Stale as error:
        print("Stale", error.token, error.fence, error.raised_by, flush=True)
"""

COROUTINES = f"""{BEGINNING}
from gateway.client import FencedClient

async def main():
    async with FencedClient(url, api_key=key) as client, client.lock(name, ttl=4, on_loss="tell") as lock:
        kept = lock.headers
        print("holds", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            await lock.http.put(path, json=row)
        except LockLost:
            print("LockLost", lock.lost.is_set(), flush=True)
        await asyncio.to_thread(past_the_lock, kept)

asyncio.run(main())
"""

THREADS = f"""{BEGINNING}
from gateway.client.blocking import FencedClient

with FencedClient(url, api_key=key) as client, client.lock(name, ttl=4, on_loss="tell") as lock:
    kept = lock.headers
    print("holds", flush=True)
    sys.stdin.readline()
    try:
        lock.http.put(path, json=row)
    except LockLost:
        print("LockLost", lock.lost.is_set(), flush=True)
    past_the_lock(kept)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("program", [COROUTINES, THREADS], ids=["coroutines", "threads"])
def test_a_process_that_was_stopped(stage: Stage, program: str) -> None:
    """Its own client sends nothing any more; what is sent all the same is refused, with who has taken over."""
    number = stage.account()
    resource, path = f"public.accounts/{number}", f"/v1/tables/accounts?id=eq.{number}"
    zombie = subprocess.Popen(
        [sys.executable, "-c", program, stage.origin, API_KEY, resource, path],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with zombie, stage.blocking(holder="successor") as client:
        assert zombie.stdin is not None
        assert zombie.stdout is not None
        try:
            assert zombie.stdout.readline() == "holds\n"
            pause(zombie.pid)
            with client.lock(resource, ttl=60, wait=30) as newer:
                newer.http.put(path, json={"id": number, "owner": "successor"}).raise_for_status()
                zombie.stdin.write("write\n")
                zombie.stdin.flush()
                resume(zombie.pid)
                assert zombie.stdout.readline() == "LockLost True\n"
                assert zombie.stdout.readline() == f"Stale 1 2 {newer.holder}\n"
                assert zombie.wait(60) == 0
                assert stage.owner(number) == "successor"
                assert [one["token"] for one in stage.rejections(resource)] == ["1"], "the other one was never sent"
        finally:
            zombie.kill()


JUMPING = """
import asyncio, sys, time
from gateway.client import FencedClient

url, key, name = sys.argv[1:]

async def main():
    async with FencedClient(url, api_key=key) as client, client.lock(name, ttl=60, on_loss="tell") as lock:
        began = time.time()
        print("holds", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            lock._kept.held = await client._leases.renew(lock._kept.held, 60)
            answer = await lock.http.get("/v1/fences")
            days = round((time.time() - began) / 86400)
            print(days, lock.lost.is_set(), 30 < lock.expires_in < 60, answer.status_code, flush=True)

asyncio.run(main())
"""


@needs_faketime
def test_the_time_of_day_jumps(stage: Stage, job: str, tmp_path: Path) -> None:
    """The lock is neither lost by it nor held for longer: its validity goes by a clock that no operator can set."""
    clock = tmp_path / "clock"
    program = subprocess.Popen(
        [sys.executable, "-c", JUMPING, stage.origin, API_KEY, job],
        cwd=ROOT, env={**os.environ, **lies(clock)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            assert program.stdout.readline() == "holds\n"
            for days in (1, -1):
                clock.write_text(f"{days:+}d\n")
                program.stdin.write("\n")
                program.stdin.flush()
                assert program.stdout.readline() == f"{days} False True 200\n"
            program.stdin.close()
            assert program.wait(60) == 0
        finally:
            program.kill()
    assert stage.standing(job)["holders"] == []
