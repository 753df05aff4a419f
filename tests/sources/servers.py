"""Real lock services, from Debian's packages, and the network before them."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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


# A network between a holder and its lock service: it stands still as for a paused process, or loses an answer.


class Network:
    """Passes connections on to ``port`` of this machine."""

    def __init__(self, listener: socket.socket, port: int) -> None:
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self.lost = 0
        self._listener = listener
        self._port = port
        self._moving = threading.Event()
        self._moving.set()
        self._to_lose: bytes | None = None
        self._to_swallow = 0
        self.swallowed = 0

    def stand_still(self) -> None:
        """From now on nothing arrives, in neither direction, and nothing is lost."""
        self._moving.clear()

    def move(self) -> None:
        self._moving.set()

    def lose_answer_to(self, request: bytes) -> None:
        """Break off the next connection that carries ``request``, once its answer is there."""
        self._to_lose = request

    def swallow_next(self) -> None:
        """Take the next connection, and never answer it."""
        self._to_swallow += 1

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        losing = threading.Event()
        if self._to_swallow:
            self._to_swallow -= 1
            self.swallowed += 1
            with client, suppress(OSError):
                while client.recv(65536):
                    pass
            return
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as server:
            threading.Thread(target=self._requests, args=(client, server, losing), daemon=True).start()
            while answer := server.recv(65536):
                self._moving.wait()
                if losing.is_set():
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)
            client.shutdown(socket.SHUT_RDWR)

    def _requests(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while sent := client.recv(65536):
                self._moving.wait()
                if self._to_lose is not None and self._to_lose in sent:
                    self._to_lose = None
                    self.lost += 1
                    losing.set()
                server.sendall(sent)
            server.shutdown(socket.SHUT_RDWR)


@contextmanager
def network(port: int) -> Iterator[Network]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Network(listener, port)
        threading.Thread(target=made.serve, daemon=True).start()
        try:
            yield made
        finally:
            made.move()
            # Closing does not wake up a thread that waits in accept; shutting down does.
            listener.shutdown(socket.SHUT_RDWR)
