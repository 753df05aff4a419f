"""The crontab of docs/guides/cron.md, carried out by Debian's cron.

cron reads fixed folders. So it runs in a namespace of its own, in which these are empty but for that file.
"""

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from textwrap import dedent

import httpx
import pytest

from gateway.client import libpq
from gateway.demo import embedded
from tests import ROOT
from tests.guard.stage import session
from tests.processes import PATIENCE, free_port, started

JOB = str(ROOT / "examples/cron/nightly.sh")
PAGE = ROOT / "docs/guides/cron.md"
ALONE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
DAEMON = """
for folder in /etc/cron.d /var/spool /run; do mount -t tmpfs none $folder || exit; done
mkdir -p /var/spool/cron/crontabs
if [ -e /etc/crontab ]; then mount --bind /dev/null /etc/crontab; fi
cp {crontab} /etc/cron.d/nightly && chmod 644 /etc/cron.d/nightly && exec cron -f
"""


@pytest.mark.installed
def test_one_of_three_machines_does_the_work_of_the_night() -> None:
    if os.geteuid() != 0 or shutil.which("cron") is None:
        pytest.skip("there is no cron, or no root to run it")
    if subprocess.run((*ALONE, "true"), check=False).returncode != 0:
        pytest.skip("no namespace can be made")
    with tempfile.TemporaryDirectory(prefix="cron-", dir="/tmp") as name:
        directory, port = Path(name), free_port()
        said, crontab = directory / "said", directory / "crontab"
        with started("demo", "--port", str(port), temporary=directory) as demo:
            demo.wait_for(lambda: "\nEND\n" in demo.output.read_text())
            crontab.write_text(three_machines(demo.output.read_text(), directory))
            daemon = subprocess.Popen((*ALONE, "sh", "-c", DAEMON.format(crontab=shlex.quote(str(crontab)))))
            try:
                # It begins with the next minute.
                demo.wait_for(lambda: said.exists() and said.read_text().count("exit ") >= 3)
            finally:
                daemon.kill()
                daemon.wait()
            rows = httpx.get(f"http://127.0.0.1:{port}/v1/tables/runs", timeout=PATIENCE).json()
            assert demo.stop() == 0
        told = said.read_text()
    # A machine that is late finds no lock held, but the row. So does the next minute, on a slow machine.
    assert told.count("working") == told.count("done\n") == len(rows) == 1, told
    assert told.count("is held by") + told.count("has done the night") >= 2, told
    assert told.count("exit 0\n") == told.count("exit ") >= 3, told


async def test_a_failed_upload_leaves_the_night_to_the_next_machine(dsn: str) -> None:
    """No store listens. So there is no report, and no row that says that there is one."""
    async with session(dsn) as owner:
        await owner.execute("CREATE TABLE runs (job text, day date, machine text, PRIMARY KEY (job, day))")
        environment = {
            **os.environ,
            **libpq.environment(dsn),
            "PATH": f"{Path(sys.executable).parent}:{Path(embedded.psql()).parent}:{os.environ['PATH']}",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
            **dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "x"),
            "AWS_REGION": "eu-1",
            "AWS_MAX_ATTEMPTS": "1",
            "MACHINE": "machine-a",
            "WORK": "0",
        }
        ended = await asyncio.to_thread(
            subprocess.run, [JOB], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert "upload failed" in ended.stderr
        assert (ended.returncode, "done" in ended.stdout) == (1, False), ended
        assert await owner.fetchval("SELECT count(*) FROM runs") == 0


def three_machines(demo: str, directory: Path) -> str:
    """Return the page's crontab for this demo: the line of each machine, for each minute, with its output in a file."""
    (shown,) = re.findall(r"^ *```crontab\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    *settings, line = dedent(shown).splitlines()
    (exported,) = re.findall(r"^export (.*)$", demo, re.MULTILINE)
    known = dict(word.split("=", 1) for word in shlex.split(exported))
    key = directory / "key"
    key.write_text(known["GATEWAY_API_KEY"])
    places = {
        "/opt/gateway/bin": f"{Path(sys.executable).parent}:{Path(embedded.psql()).parent}",
        "https://gateway.example.com": known["GATEWAY_URL"],
        "postgresql://worker@db.example.com/shop": known["GATEWAY_POSTGRES"],
        "/etc/gateway/key": str(key),
        "/opt/nightly.sh": JOB,
    }
    schedule, user = "0 3 * * *", "worker"
    assert line.startswith(f"{schedule}  {user}  ")
    command = line.removeprefix(f"{schedule}  {user}  ")
    machines = [
        f'MACHINE=machine-{name}\n* * * * *  root  ({command}; echo "exit $?") >> {directory / "said"} 2>&1'
        for name in "abc"
    ]
    crontab = "\n".join([*settings, *machines, ""])
    for shown, ours in places.items():
        assert shown in crontab
        crontab = crontab.replace(shown, ours)
    return crontab
