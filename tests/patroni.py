"""Three PostgreSQL servers under Patroni with etcd. A node is its server and its Patroni, lost and paused together."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from tests.pausing import pause
from tests.postgres import memory_or_disk
from tests.processes import free_port
from tests.sources.servers import ServerMissing, etcd
from tests.waiting import PATIENCE

TTL = 5
"""Seconds after which another node takes over from one that is silent. Patroni's default is 30."""

_SETTINGS: dict[str, Any] = {
    "ttl": TTL,
    "loop_wait": 1,
    "retry_timeout": 2,
    "master_start_timeout": 0,
    "maximum_lag_on_failover": 1 << 30,
    "postgresql": {
        "use_pg_rewind": True,
        # Processes are killed here and no machine, so nothing needs to be on a disk.
        "parameters": {"fsync": "off", "max_connections": 200, "wal_keep_size": "256MB"},
        "pg_hba": [
            "local all all trust",
            "host all all 127.0.0.1/32 trust",
            "host replication all 127.0.0.1/32 trust",
        ],
    },
}


@dataclass
class Node:
    """One node. ``started`` is its Patroni, None while the node is down."""

    name: str
    directory: Path
    port: int
    api: str
    user: str | None
    started: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        environment = {**os.environ, "LC_ALL": "C", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        environment.pop("PYTHONPATH", None)
        with (self.directory / "patroni.log").open("ab") as log:
            self.started = subprocess.Popen(
                ["/usr/bin/patroni", str(self.directory / "patroni.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
                user=self.user,
                start_new_session=True,
            )

    def kill(self) -> None:
        """SIGKILL of all that runs on the node."""
        self._signal(signal.SIGKILL)
        if self.started is not None:
            self.started.wait()
        self.started = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        processes = self._signal(signal.SIGSTOP)
        pause(*(process.pid for process in processes))
        try:
            yield
        finally:
            for process in processes:
                process.send_signal(signal.SIGCONT)

    def _signal(self, number: int) -> list[psutil.Process]:
        """Signal Patroni, then the server, then its sessions: each starts those that follow."""
        signalled: dict[int, psutil.Process] = {}
        if self.started is None:
            # Its number of a process is that of another one by now, perhaps.
            return []
        for _ in range(2):
            found = [psutil.Process(self.started.pid)]
            pid = self.directory / "data" / "postmaster.pid"
            if pid.exists():
                try:
                    server = psutil.Process(int(pid.read_text().split()[0]))
                    found += [server, *server.children(recursive=True)]
                except psutil.NoSuchProcess:
                    pass
            for process in found:
                if process.pid not in signalled:
                    try:
                        process.send_signal(number)
                        signalled[process.pid] = process
                    except psutil.NoSuchProcess:
                        pass
        return list(signalled.values())


@dataclass
class Cluster:
    """The three nodes. ``synchronous``: each commit waits for a standby."""

    nodes: list[Node]
    synchronous: bool
    _names: dict[str, Node] = field(init=False)

    def __post_init__(self) -> None:
        self._names = {node.name: node for node in self.nodes}

    def dsn(self, database: str = "postgres") -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def members(self) -> list[dict[str, Any]]:
        """The members as the first node that answers sees them."""
        for node in self.nodes:
            try:
                members: list[dict[str, Any]] = httpx.get(f"{node.api}/cluster", timeout=1).json()["members"]
            except (httpx.TransportError, KeyError, json.JSONDecodeError):
                continue
            return members
        return []

    def leader(self, *but: Node) -> Node | None:
        for node in self.nodes:
            if node in but:
                continue
            try:
                leads = httpx.get(f"{node.api}/primary", timeout=1).status_code == 200
                # It has the lock before its server is promoted.
                if leads and httpx.get(f"{node.api}/patroni", timeout=1).json()["role"] in ("master", "primary"):
                    return node
            except (httpx.TransportError, KeyError, json.JSONDecodeError):
                continue
        return None

    def primary(self, *but: Node) -> Node:
        """The node that takes writes, once there is one."""
        found: Node = _sooner_or_later(lambda: self.leader(*but), "no node leads")
        return found

    def ready(self, standbys: int = 1) -> None:
        """Return once another node could take over: a synchronous one where commits wait for it."""

        def is_ready() -> bool:
            members = [one for one in self.members() if one.get("state") in ("running", "streaming")]
            roles = {one["role"] for one in members}
            following = [one for one in members if one["role"] != "leader" and one.get("lag") == 0]
            return (
                len(following) >= standbys and "leader" in roles and ("sync_standby" in roles or not self.synchronous)
            )

        try:
            _sooner_or_later(is_ready, "no node could take over")
        except AssertionError as error:
            logs = "".join((node.directory / "patroni.log").read_text()[-3000:] for node in self.nodes)
            raise AssertionError(f"{error}: {self.members()}\n{logs}") from error

    def switch_over(self) -> None:
        """Let another node take over in good order."""
        leader = self.primary()
        roles = {member["name"]: member["role"] for member in self.members()}
        wanted = "sync_standby" if self.synchronous else "replica"
        candidate = next(name for name, role in roles.items() if role == wanted)
        answer = httpx.post(
            f"{leader.api}/switchover", json={"leader": leader.name, "candidate": candidate}, timeout=PATIENCE
        )
        assert answer.status_code == 200, answer.text


@contextmanager
def patroni(embedded: EmbeddedPostgres, *, synchronous: bool) -> Iterator[Cluster]:
    """Run the nodes with the programs of the embedded server. Skips the test where Patroni or etcd is missing."""
    if shutil.which("patroni", path="/usr/bin") is None:
        pytest.skip("Patroni is not installed: apt-get install --no-install-recommends patroni etcd-server")
    with tempfile.TemporaryDirectory(prefix="patroni", dir=memory_or_disk()) as name, ExitStack() as stack:
        own = Path(name)
        own.chmod(0o777)
        (own / "etcd").mkdir()
        try:
            keeper = etcd(own / "etcd", former=True)
        except ServerMissing as missing:
            pytest.skip(str(missing))
        stack.callback(keeper.kill)
        keeper.start()
        nodes = [_node(own / f"node{n}", keeper.address, embedded, synchronous=synchronous) for n in (1, 2, 3)]
        for node in nodes:
            stack.callback(node.kill)
            node.start()
        cluster = Cluster(nodes, synchronous)
        cluster.ready(standbys=2)
        yield cluster


def _node(directory: Path, keeper: str, embedded: EmbeddedPostgres, *, synchronous: bool) -> Node:
    directory.mkdir()
    port, api = free_port(), f"127.0.0.1:{free_port()}"
    settings = {
        "scope": "fencing",
        "name": directory.name,
        "restapi": {"listen": api, "connect_address": api},
        # With the third version, Patroni 3.0 may see a stale copy of its own key for ever.
        "etcd": {"host": keeper},
        "bootstrap": {
            "dcs": {**_SETTINGS, "synchronous_mode": synchronous},
            "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, {"locale": "C"}, "data-checksums"],
        },
        "postgresql": {
            "listen": f"127.0.0.1:{port}",
            "connect_address": f"127.0.0.1:{port}",
            "data_dir": str(directory / "data"),
            "bin_dir": str(embedded.server.bin_path),
            "pgpass": str(directory / "pgpass"),
            "authentication": {
                "superuser": {"username": "postgres"},
                "replication": {"username": "postgres"},
                "rewind": {"username": "postgres"},
            },
            "parameters": {"unix_socket_directories": str(directory)},
        },
    }
    (directory / "patroni.json").write_text(json.dumps(settings))
    user = embedded.server.system_user
    if user is not None:
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, user)
    return Node(directory.name, directory, port, f"http://{api}", user)


def _sooner_or_later(look: Callable[[], Any], complaint: str) -> Any:
    until = time.monotonic() + 2 * PATIENCE
    while not (found := look()):
        assert time.monotonic() < until, complaint
        time.sleep(0.1)
    return found
