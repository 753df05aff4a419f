"""The commands of docs/guides/systemd.md, under a systemd of its own.

It is the first process of a namespace, on top of this machine's files. Its changes of these are in memory, and go with
it.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.guides.test_pages import GUIDES, PROGRAMS, over_tls, play
from tests.processes import PATIENCE, free_port
from tests.stores.processes import wait_until

HIERARCHIES = (Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"))
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BOOT = """
set -e
for hierarchy in systemd unified; do
    mkdir /sys/fs/cgroup/$hierarchy/{name}
    echo $$ > /sys/fs/cgroup/$hierarchy/{name}/cgroup.procs
done
exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc sh -ec '
    mount --make-rprivate /
    mount -t tmpfs none /mnt
    cd /mnt
    mkdir upper work root
    mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root
    cd root
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount -t tmpfs none sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    mount --rbind /dev dev
    mount -t tmpfs -o mode=755 none run
    cp {given}/gateway.toml {given}/dsn .{root}
    cp {given}/hosts etc/hosts
    printf "[Unit]\\nRequires=systemd-journald.service dbus.service\\n" > etc/systemd/system/guide.target
    pivot_root . mnt
    umount -l /mnt
    mount --make-rshared /
    export container=guide
    exec /lib/systemd/systemd --system --unit=guide.target'
"""
CONFIGURATION = """
[server]
listen = "127.0.0.1:{port}"
"""


@contextmanager
def systemd(given: Path) -> Iterator[tuple[str, ...]]:
    """Boot it with the files of a folder; the command that runs another one under it."""
    name = f"guide-{os.getpid()}"
    log = given / "log"
    with log.open("wb") as output:
        command = BOOT.format(name=name, given=given, root=ROOT)
        boot = subprocess.Popen(["sh", "-c", command], stdout=output, stderr=output)
    try:
        wait_until(lambda: bool(psutil.Process(boot.pid).children()), boot, log)
        [first] = psutil.Process(boot.pid).children()
        within = ("nsenter", "-t", str(first.pid), "-m", "-p", "-u", "-i", "-C", "-r", "-w")
        state = (*within, "systemctl", "is-system-running")
        wait_until(lambda: subprocess.run(state, capture_output=True, check=False).stdout == b"running\n", boot, log)
        yield (*within, "env", "--chdir", str(ROOT), f"PATH={PATH}")
    finally:
        boot.kill()
        boot.wait()
        for hierarchy in HIERARCHIES:
            remove(hierarchy / name)


def remove(group: Path) -> None:
    """Remove a group and those below it. A killed process is in its group until it has ended."""
    give_up = time.monotonic() + PATIENCE
    while group.exists() and time.monotonic() < give_up:
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(path.is_dir() for path in HIERARCHIES) or shutil.which("systemctl") is None,
    reason="no systemd, no root, or cgroups in another place",
)
@pytest.mark.skipif(not PROGRAMS, reason="no PostgreSQL of the system, and the embedded one answers at a socket alone")
def test_every_command_of_systemd_in_order() -> None:
    with tempfile.TemporaryDirectory(prefix="guide-", dir="/tmp") as name:
        given, work, port = Path(name) / "given", Path(name) / "work", free_port()
        given.mkdir()
        work.mkdir()
        with over_tls(Path(name), PROGRAMS[-1].parent) as variables:
            (given / "gateway.toml").write_text(CONFIGURATION.format(port=port))
            (given / "dsn").write_text(variables["DATABASE"])
            (given / "hosts").write_text("127.0.0.1 localhost db\n")
            with systemd(given) as within:
                more = {"PGPORT": variables["PGPORT"], "GATEWAY_URL": f"http://127.0.0.1:{port}"}
                play(GUIDES / "systemd.md", work, more, port, *within)
