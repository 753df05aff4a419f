"""Processes that fork: the lock stays the parent's, and the child neither hangs, nor writes under it, nor ends it."""

import subprocess
import sys

import pytest

from tests import ROOT
from tests.client.stage import Stage
from tests.running import API_KEY

# Each is run as a program of its own: url, API key, name of the lock.
THREADS = """
import os, sys
from gateway.client import LockLost
from gateway.client.blocking import FencedClient
from gateway.client.current import held

url, key, name = sys.argv[1:]
client = FencedClient(url, api_key=key)
told = []
try:
    with client.lock(name, ttl=20) as lock:
        lock.http.get("/v1/fences").raise_for_status()
        child = os.fork()
        if not child:
            try:
                lock.http.get("/v1/fences")
            except LockLost as error:
                told.append("forked from" in str(error))
            told.append(held() == ())
            with client.lock(name + "/childs", wait=0) as own:
                told += own.http.get("/v1/fences").is_success, own.token == "1", lock.lost.is_set()
            client.close()
        else:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            lock.check()
            with client.lock(name + "/childs", wait=0) as other:
                held = lock.http.get(f"/v1/leases/{name}").json()["holders"]
                print("parent", code, held[0]["holder"] == lock.holder, other.token == "2")
except LockLost as error:
    assert not child
    print("child", *told, "forked from" in str(error), flush=True)
"""

COROUTINES = """
import asyncio, os, sys
from gateway.client import FencedClient, LockLost

url, key, name = sys.argv[1:]
client = FencedClient(url, api_key=key)

async def parent():
    async with client.lock(name, ttl=20) as lock:
        child = os.fork()
        if not child:
            told = []
            try:
                await lock.http.get("/v1/fences")
            except LockLost as error:
                told.append("forked from" in str(error))
            try:
                await lock.__aexit__(None, None, None)
            except LockLost as error:
                told.append("forked from" in str(error))
            asyncio.events._set_running_loop(None)
            asyncio.run(own(told))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        lock.check()
        async with client.lock(name + "/childs", wait=0) as other:
            held = (await lock.http.get(f"/v1/leases/{name}")).json()["holders"]
            print("parent", code, held[0]["holder"] == lock.holder, other.token == "2")

async def own(told):
    async with client.lock(name + "/childs", wait=0) as lock:
        print("child", *told, (await lock.http.get("/v1/fences")).is_success, lock.token == "1", flush=True)

asyncio.run(parent())
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (THREADS, "child True True True True True True\nparent 0 True True\n"),
        (COROUTINES, "child True True True True\nparent 0 True True\n"),
    ],
    ids=["threads", "coroutines"],
)
def test_a_fork_in_the_block(stage: Stage, job: str, program: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program, stage.origin, API_KEY, job],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
    for name in (job, f"{job}/childs"):
        assert stage.standing(name)["holders"] == []
