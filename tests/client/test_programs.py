"""Whole programs under a lock: zombies, forks, a clock that jumps, their imports, and the snippets of docs/sdk.md."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.client import Lock, LockLost, Stale
from tests import ROOT
from tests.client.stage import BUCKET, Asleep, Stage
from tests.leases.asking import lies, needs_faketime
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY
from tests.tiers import first
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


@pytest.mark.parametrize("name", first(WRITES))
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


# Processes that fork: the lock stays the parent's, and the child neither hangs, nor writes under it, nor ends it.


# Each is run as a program of its own: url, API key, name of the lock.
FORKING_THREADS = """
import os, sys
from gateway.client import LockLost
from gateway.client.blocking import FencedClient
from gateway.client.guarded import held

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

FORKING_COROUTINES = """
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


# The child's locks do not wait for a renewal that only the parent sends.
FORKING_BETWEEN = """
import asyncio, os, sys
from gateway.client import FencedClient

url, key, name = sys.argv[1:]
client = FencedClient(url, api_key=key)

async def parent():
    async with client.lock(name + "/parents", ttl=60) as lock:
        renewal = asyncio.ensure_future(client._leases.renew(lock._kept.held, 60))
        await asyncio.sleep(0)
        assert client._leases._batches._open is not None
        child = os.fork()
        if not child:
            asyncio.events._set_running_loop(None)
            asyncio.run(own())
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print("parent", code, (await renewal).resource == lock.resource, flush=True)

async def own():
    async with client.lock(name + "/childs", ttl=60) as lock:
        renewed = await asyncio.wait_for(client._leases.renew(lock._kept.held, 60), 10)
        print("child", renewed.resource == lock.resource, flush=True)

asyncio.run(parent())
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (FORKING_THREADS, "child True True True True True True\nparent 0 True True\n"),
        (FORKING_COROUTINES, "child True True True True\nparent 0 True True\n"),
        (FORKING_BETWEEN, "child True\nparent 0 True\n"),
    ],
    ids=["threads", "coroutines", "between coroutines"],
)
def test_a_fork_in_the_block(stage: Stage, job: str, program: str, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program, stage.origin, API_KEY, job],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
    for name in (job, f"{job}/childs"):
        assert stage.standing(name)["holders"] == []


# A time of day that jumps: libfaketime lies to a process about the time.


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


# docs/sdk.md: every snippet that it says is run does what it says.


PAGE = ROOT / "docs/sdk.md"
SNIPPETS = dict(re.findall(r"^<!-- run: (\S+) -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))
OURS = {
    "http://127.0.0.1:8080": "{origin}",
    '"demo-key"': f'"{API_KEY}"',
    '"demo"': f'"{ACCESS_KEY}"',
    '"demo-secret"': f'"{SECRET_KEY}"',
}


def test_all_but_the_last_are_run() -> None:
    assert list(SNIPPETS) == ["lock", "database", "errors", "blocking"]
    assert PAGE.read_text().count("```python\n") == len(SNIPPETS) + 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in SNIPPETS if name != "database"])  # tests/guard has its tables
def test_snippets(stage: Stage, name: str) -> None:
    code = SNIPPETS[name]
    for theirs, ours in OURS.items():
        code = code.replace(theirs, ours.format(origin=stage.origin))
    before = stage.standing("public.accounts/42")["token"]
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    after = stage.standing("public.accounts/42")
    assert (int(after["token"]), after["holders"]) == (int(before or 0) + 1, [])
    assert stage.owner(42) == "dora"
    assert name == "errors" or stage.body(42, "statement") == b"120"


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the snippets as programs, and with one that uses the results of S3 clients."""
    folder = tmp_path_factory.mktemp("typed")
    for name, code in SNIPPETS.items():
        (folder / f"{name}.py").write_text(code)
    return folder


WRONG = """
from gateway.client.blocking import FencedClient, Lock

def upload(lock: Lock) -> int:
    lock.s3.put_object(Bucket="reports", Key=5)
    return lock.token

upload(FencedClient("http://127.0.0.1:8080"))
"""


@pytest.mark.thorough
def test_the_snippets_pass_mypy_strict_and_mistakes_are_found(typed: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "/dev/null", "--cache-dir", str(typed)]
    checked = subprocess.run([*command, typed], capture_output=True, text=True, timeout=PATIENCE * 4, check=False)
    assert checked.stdout.startswith("Success: no issues found"), checked.stdout + checked.stderr
    (wrong := typed / "wrong").mkdir()
    (wrong / "wrong.py").write_text(WRONG)
    found = subprocess.run([*command, wrong], capture_output=True, text=True, timeout=PATIENCE * 4, check=False)
    lines = re.findall(r"wrong\.py:(\d+): error", found.stdout)
    assert lines == ["5", "6", "8"], found.stdout


@pytest.mark.installed
def test_the_snippets_pass_pyright(typed: Path) -> None:
    pyright = ROOT / "tests/clients/javascript/node_modules/.bin/pyright"
    if not pyright.exists():
        pytest.skip("pyright is not installed: make clients")
    checked = subprocess.run(
        [pyright, "--pythonpath", sys.executable, *typed.glob("*.py")],
        capture_output=True, text=True, timeout=PATIENCE * 4, check=False,
    )  # fmt: skip
    assert (checked.returncode, "0 errors" in checked.stdout) == (0, True), checked.stdout + checked.stderr


# A program that imports the client library loads no part of the server, and no library that it does not use.


SERVER = {"fastapi", "starlette", "uvicorn", "asyncpg", "sqlalchemy", "pydantic", "aiohttp", "orjson", "structlog"}
EXTRAS = {"boto3", "botocore", "aiobotocore", "postgrest", "kazoo", "redis", "django"}


def test_the_client_is_light() -> None:
    code = "import sys, gateway.client, gateway.client.blocking; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names = loaded.stdout.split()
    assert not (SERVER | EXTRAS) & {name.split(".")[0] for name in names}
    own = {name for name in names if name.startswith("gateway.")}
    inside = ("gateway.client", "gateway.errors", "gateway.fencing", "gateway.batching")
    outside = {name for name in own if not name.startswith(inside)}
    assert outside == set()
