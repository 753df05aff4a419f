"""docs/locks.md: what it shows works as it stands there."""

import asyncio
import re
from pathlib import Path

import asyncpg

from tests import ROOT
from tests.clients.commands import Shell
from tests.leases.asking import served
from tests.running import API_KEY

PAGE = (ROOT / "docs/locks.md").read_text()


def snippet(language: str) -> str:
    """The only one in this language."""
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return str(code)


async def test_a_lock_by_curl(dsn: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int)")
        await connection.execute("INSERT INTO accounts VALUES (1, 100)")
        rule = {"name": "public.accounts", "resource": "account/{id}"}
        async with served(dsn, tables=[rule]) as service:
            shell = Shell(tmp_path, {"GATEWAY": service.origin, "API_KEY": API_KEY})
            done = await asyncio.to_thread(shell.run, "bash", "-euo", "pipefail", "-c", snippet("sh"))
            assert done.status == 0, done.error
            assert await connection.fetchval("SELECT balance FROM accounts") == 110
            fence = (await service.writer.http.get("/v1/fences/account/1")).json()
            assert (fence["token"], fence["raised_by"]) == ("1", "nightly@host7:4711")
            assert (await service.writer.lock("account/1"))["holders"] == []
    finally:
        await connection.close()


async def test_a_restore_that_nobody_has_noticed(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with served(dsn) as service:
            assert (await service.writer.got("job/1", "a"))["token"] == "1"
            await connection.execute(snippet("sql"))
            await connection.execute("UPDATE fencing.lease SET expires_at = acquired_at")
            assert (await service.writer.got("job/1", "b", barrier=True))["token"] == "1.1"
            assert (await service.writer.barrier("job/1", "900")).status_code == 412, "one that was lost"
    finally:
        await connection.close()
