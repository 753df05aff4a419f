"""A backup is really restored, and the database goes on beside what it was: no token of its past is issued again."""

import asyncio
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import asyncpg
import pytest

from gateway.demo.embedded import postgres
from tests import ROOT
from tests.leases.asking import problem, served
from tests.postgres import install

pytestmark = pytest.mark.thorough

JOB = "job/1"


async def test_recovery_to_a_point_in_time() -> None:
    with tempfile.TemporaryDirectory(prefix="pg") as directory:
        data, restored = Path(directory) / "data", Path(directory) / "restored"
        with postgres(data) as server:
            await asyncio.to_thread(install, server.dsn())
            async with served(server.dsn()) as service:
                await service.writer.release(await service.writer.got(JOB, "before the backup", barrier=True))
        # With their owners: where tests run as root, the server does not.
        subprocess.run(["cp", "-a", data, restored], check=True)
        with postgres(data) as server:
            async with served(server.dsn()) as service:
                for number in (2, 3):
                    lease = await service.writer.got(JOB, "lost with the server", barrier=True)
                    assert lease["token"] == str(number)
                    await service.writer.release(lease)
        # The ordinary recovery of PostgreSQL: as far as the archive goes, which here is nowhere.
        (restored / "recovery.signal").touch()
        with (restored / "postgresql.auto.conf").open("a") as settings:
            # The server admits no session before the recovery is over.
            settings.write("restore_command = 'false'\nhot_standby = off\n")
        with postgres(restored) as server:
            async with served(server.dsn()) as service:
                lease = await service.writer.got(JOB, "after the restore", barrier=True)
                assert lease["token"] == "1.1"
                # The token of a holder that the restore has forgotten: a higher number, of an earlier epoch.
                assert problem(await service.writer.barrier(JOB, "3")) == (412, "token-stale")
                await service.writer.release(lease)
                assert (await service.writer.got(JOB, "the next"))["token"] == "1.2", "once, not each time"


async def test_a_disk_put_back_to_a_snapshot() -> None:
    """The database sees no restore here. The statement that the documentation gives its operator makes up for that."""
    (told,) = re.findall(r"```sql\n(UPDATE fencing.issuer [^`]*)```", (ROOT / "docs" / "locks.md").read_text())
    with tempfile.TemporaryDirectory(prefix="pg") as directory:
        data, snapshot = Path(directory) / "data", Path(directory) / "snapshot"
        with postgres(data) as server:
            await asyncio.to_thread(install, server.dsn())
            async with served(server.dsn()) as service:
                await service.writer.release(await service.writer.got(JOB, "before the snapshot", barrier=True))
        subprocess.run(["cp", "-a", data, snapshot], check=True)
        with postgres(data) as server:
            async with served(server.dsn()) as service:
                assert (await service.writer.got(JOB, "forgotten", barrier=True))["token"] == "2"
        shutil.rmtree(data)
        snapshot.rename(data)
        with postgres(data) as server:
            async with served(server.dsn()) as service:
                lease = await service.writer.got(JOB, "who is told nothing", barrier=True)
                assert lease["token"] == "2", "or nothing needs to be said"
                await service.writer.release(lease)
            owner = await asyncpg.connect(server.dsn())
            await owner.execute(told)
            await owner.close()
            async with served(server.dsn()) as service:
                assert (await service.writer.got(JOB, "after the restore", barrier=True))["token"] == "1.1"
                assert problem(await service.writer.barrier(JOB, "2")) == (412, "token-stale")
