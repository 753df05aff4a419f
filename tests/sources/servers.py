"""Real lock services, from Debian's packages: each on a port and in a directory of its own, killed and started anew."""

import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from shutil import which

import httpx

from tests.pausing import pause, resume
from tests.processes import free_port
from tests.stores.processes import daemon, wait_until

_JARS = (Path("/usr/share/java/zookeeper.jar"), Path("/usr/share/zookeeper/zookeeper.jar"))


class ServerMissing(Exception):
    """The server is not on this machine; the message says how to install it."""


class Server:
    """A program that answers on one port, as often as it is started, on what it has kept in its directory."""

    def __init__(
        self, name: str, command: Sequence[str], directory: Path, port: int, ready: Callable[[], bool]
    ) -> None:
        self.directory = directory
        self.port = port
        self._name = name
        self._command = list(command)
        self._ready = ready
        self._running = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "Server":
        log = self.directory / f"{self._name}.log"
        process = self._running.enter_context(daemon(self._command, log, {**os.environ, "LC_ALL": "C"}))
        self._process = process
        wait_until(self._ready, process, log)
        return self

    def stand_still(self) -> None:
        """SIGSTOP: connections stay, and nothing answers."""
        assert self._process is not None
        pause(self._process.pid)

    def go_on(self) -> None:
        assert self._process is not None
        resume(self._process.pid)

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self._running.close()

    def restart(self) -> None:
        self.kill()
        self.start()


def etcd(directory: Path, *, tls: bool = False, former: bool = False) -> Server:
    """An etcd of one member, whose shortest lease is one second.

    ``tls``: with the directory's ``certificate.pem`` and ``key.pem``. ``former``: with the second version of its API.
    """
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    clients = f"http{'s' if tls else ''}://127.0.0.1:{port}"
    certificate = ("--cert-file", str(directory / "certificate.pem"), "--key-file", str(directory / "key.pem"))
    _program("etcdctl", "etcd-client")  # the tests read the server's state with it
    command = [
        _program("etcd", "etcd-server"),
        *("--name", "one", "--data-dir", str(directory / "data"), "--log-level", "error"),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", f"one={peers}"),
        *("--heartbeat-interval", "10", "--election-timeout", "100"),
        *(certificate if tls else ()),
        *(("--enable-v2",) if former else ()),
    ]
    return Server("etcd", command, directory, port, lambda: _healthy(clients))


def etcd_configured(directory: Path, clients: str) -> Server:
    """An etcd started with the directory's ``etcd.yml``, in which it answers clients at this address."""
    command = [_program("etcd", "etcd-server"), "--config-file", str(directory / "etcd.yml")]
    return Server("etcd", command, directory, int(clients.rpartition(":")[2]), lambda: _healthy(clients))


def _healthy(clients: str) -> bool:
    try:
        return bool(httpx.get(f"{clients}/health", timeout=5, verify=False).json()["health"] == "true")
    except (httpx.TransportError, KeyError, ValueError):
        return False


def zookeeper(directory: Path, *properties: str) -> Server:
    """A standalone ZooKeeper with ticks of 100 ms.

    Sessions last between 0.2 and 30 seconds, which a restart does not take on a busy machine either.
    """
    java, jar = which("java"), next((path for path in _JARS if path.exists()), None)
    if java is None or jar is None:
        raise ServerMissing("ZooKeeper is not installed: apt-get install --no-install-recommends zookeeper")
    port = free_port()
    configuration = directory / "zoo.cfg"
    configuration.write_text(
        f"tickTime=100\nmaxSessionTimeout=30000\ndataDir={directory}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n"
    )
    # It is killed, but the machine is not: what it has written need not be on disk. Nor does it run for long.
    quickly = ("-Dzookeeper.forceSync=no", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m")
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    command = [java, *quickly, *properties, "-cp", f"{jar}:/usr/share/java/slf4j-simple.jar", main, str(configuration)]
    return Server("zookeeper", command, directory, port, lambda: _says(port, b"srvr", b"Zookeeper version"))


def redis(directory: Path, *options: str, durable: bool = True) -> Server:
    """A Redis. ``durable``: every command is on disk before it is answered; else nothing is ever kept."""
    port = free_port()
    keeping = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
    command = [
        _program("redis-server", "redis-server"),
        *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "", *keeping, *options),
    ]
    return Server("redis", command, directory, port, lambda: _says(port, b"PING\r\n", b"+PONG"))


def _program(name: str, package: str) -> str:
    found = which(name)
    if found is None:
        raise ServerMissing(f"{name} is not installed: apt-get install --no-install-recommends {package}")
    return found


def _says(port: int, question: bytes, answer: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(question)
            return connection.recv(64).startswith(answer)
    except OSError:
        return False
