"""Ceph's RADOS Gateway in front of the smallest cluster there is: one monitor, one OSD in memory, no authentication.

A store that does little of what AWS does with conditions, which makes it a good one to test with.
"""

import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from tests.processes import free_port
from tests.stores.processes import answers, daemon, wait_until
from tests.stores.store import OWNER, Store, User, program

_INSTALLATION = "apt-get install --no-install-recommends ceph-mon ceph-osd radosgw ceph-common"
_TRIES = 10
_PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

# A lone monitor agrees with no other, so it need not collect proposals for a second each. The test puts the OSD into
# the CRUSH map by hand: the OSD's own attempt now and then fails without authentication.
_CONFIGURATION = """
[global]
fsid = {fsid}
mon_host = [v1:127.0.0.1:{monitor_port}/0]
mon_initial_members = a
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr2 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
keyring = /dev/null
run_dir = {directory}
admin_socket =
log_file = {directory}/$name.log
mon_cluster_log_file = {directory}/cluster.log
crash_dir = {directory}
debug_default = 0
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_data = {directory}/monitor
mon_data_avail_crit = 0
mon_max_pg_per_osd = 1000
osd_data = {directory}/osd
osd_objectstore = memstore
memstore_device_bytes = 8589934592
osd_crush_chooseleaf_type = 0
osd_crush_update_on_start = false
osd_class_update_on_start = false
osd_class_load_list = *
osd_class_default_list = *
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
rgw_data = {directory}
rgw_frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw_dns_name = localhost
rgw_crypt_require_ssl = false
rgw_override_bucket_index_max_shards = 1
rgw_dynamic_resharding = false
rgw_run_sync_thread = false
rgw_lc_debug_interval = 10
"""


@contextmanager
def running(users: Sequence[User] = (OWNER,)) -> Iterator[Store]:
    """Start a cluster on free ports; killed and removed on exit. Raises ``StoreMissing``."""
    programs = {name: program(name, _INSTALLATION) for name in _PROGRAMS}
    with tempfile.TemporaryDirectory(prefix="ceph") as name, ExitStack() as daemons:
        cluster = _Cluster(Path(name), programs, daemons)
        cluster.start()
        cluster.add(users)
        yield Store("ceph", cluster.endpoint, users[0])


class _Cluster:
    """The programs of one cluster, and the directory they all live in."""

    def __init__(self, directory: Path, programs: dict[str, str], daemons: ExitStack) -> None:
        self._directory = directory
        self._programs = programs
        self._daemons = daemons
        self._id = str(uuid4())
        self._monitor_port, port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        (directory / "monitor").mkdir()
        (directory / "osd").mkdir()
        (directory / "ceph.conf").write_text(
            _CONFIGURATION.format(fsid=self._id, monitor_port=self._monitor_port, port=port, directory=directory)
        )

    def start(self) -> None:
        self._start_monitor()
        self._start_osd()
        rados = self._daemon("radosgw", "-n", "client.rgw")
        wait_until(partial(answers, self.endpoint), rados, self._log("radosgw"))

    def add(self, users: Sequence[User]) -> None:
        for user in users:
            self._run(
                "radosgw-admin",
                *("user", "create", f"--uid={user.name}", f"--display-name={user.name}"),
                *(f"--access-key={user.access_key_id}", f"--secret={user.secret_access_key}"),
                *(f"--email={user.name.rpartition('$')[2]}@example.com", "--max-buckets=100000"),
            )

    def _start_monitor(self) -> None:
        address = f"[v1:127.0.0.1:{self._monitor_port}]"
        self._run("monmaptool", "--create", "--fsid", self._id, "--addv", "a", address, "monmap", configured=False)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", "monmap")
        self._daemon("ceph-mon", "-i", "a")

    def _start_osd(self) -> None:
        identity = str(uuid4())
        self._tell_monitor("osd", "new", identity, "0")
        self._tell_monitor("osd", "crush", "add", "osd.0", "1.0", "host=localhost", "root=default")
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", identity)
        osd = self._daemon("ceph-osd", "-i", "0")
        wait_until(lambda: b" 1 up" in self._tell_monitor("osd", "stat"), osd, self._log("ceph-osd"))

    def _tell_monitor(self, *command: str) -> bytes:
        """Again and again, if need be: a young monitor without authentication now and then refuses one."""
        arguments = ("--connect-timeout", "20", *command)
        for _ in range(_TRIES - 1):
            with suppress(AssertionError):
                return self._run("ceph", *arguments)
            time.sleep(0.2)
        return self._run("ceph", *arguments)

    def _daemon(self, name: str, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [self._programs[name], "-f", "-c", "ceph.conf", *arguments]
        return self._daemons.enter_context(daemon(command, self._log(name)))

    def _run(self, name: str, *arguments: str, configured: bool = True) -> bytes:
        command = [self._programs[name], *(("-c", "ceph.conf") if configured else ()), *arguments]
        done = subprocess.run(command, cwd=self._directory, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"
        return done.stdout

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.out"
