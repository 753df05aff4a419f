"""Real Consul and Kubernetes API servers, where there are: on the PATH, or in the directory of ``go install``.

Neither is in Debian. Without them, what they have answered once is replayed (exchanges.py).
"""

import asyncio
import socket
import ssl
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from shutil import which

import httpx

from tests.processes import free_port
from tests.sources.servers import Server, ServerMissing, etcd

GO = Path.home() / "go/bin"

ADMINISTRATOR = "11111111-2222-3333-4444-555555555555"
"""The token of who may do everything, of a Consul with ACLs."""

TOKENS: Mapping[str, tuple[str, str]] = {
    "administrator-token": ("administrator", ',"system:masters"'),
    "nobody-token": ("nobody", ""),
}
"""Tokens of Kubernetes: whose they are, and their groups."""


def program(name: str) -> str:
    found = which(name) or which(name, path=GO)
    if found is None:
        raise ServerMissing(f"{name} is neither on the PATH nor in ~/go/bin.")
    return found


@cache
def version(name: str) -> str:
    """The program with its version, as it says of itself."""
    argument = "version" if name == "consul" else "--version"
    said = subprocess.run([program(name), argument], capture_output=True, text=True, check=True).stdout
    return f"{name}: {said.splitlines()[0]}"


def consul(directory: Path, *, acl: bool = False, expect: int = 1) -> Server:
    """A Consul server whose shortest session is one second. ``expect``: how many servers it waits for at first."""
    port, raft, serf = free_port(), free_port(), free_port()
    configuration = directory / "consul.hcl"
    # How long it looks for a leader before it says that there is none.
    patience = "7s" if expect == 1 else "100ms"
    rules = f'acl {{ enabled = true default_policy = "deny" tokens {{ initial_management = "{ADMINISTRATOR}" }} }}'
    configuration.write_text(
        'server = true\nnode_name = "one"\nbind_addr = "127.0.0.1"\nclient_addr = "127.0.0.1"\nlog_level = "ERROR"\n'
        f'bootstrap_expect = {expect}\ndata_dir = "{directory}/data"\nsession_ttl_min = "1s"\n'
        f'disable_update_check = true\nperformance {{ raft_multiplier = 1 rpc_hold_timeout = "{patience}" }}\n'
        f"ports {{ http = {port} server = {raft} serf_lan = {serf} serf_wan = -1 dns = -1 grpc = -1 grpc_tls = -1 }}\n"
        + (rules if acl else "")
    )
    headers = {"X-Consul-Token": ADMINISTRATOR} if acl else {}

    def ready() -> bool:
        with suppress(httpx.TransportError):
            if expect > 1:
                return httpx.get(f"http://127.0.0.1:{port}/v1/status/leader", timeout=5).status_code == 200
            # A session belongs to a node, which registers a moment after there is a leader.
            nodes = httpx.get(f"http://127.0.0.1:{port}/v1/catalog/nodes", headers=headers, timeout=5)
            return nodes.status_code == 200 and bool(nodes.json())
        return False

    return Server("consul", [program("consul"), "agent", "-config-file", str(configuration)], directory, port, ready)


class KubernetesServer(Server):
    """A Kubernetes API server, its etcd, and a proxy that speaks TLS to it for clients in plain HTTP."""

    def __init__(self, directory: Path) -> None:
        command = program("kube-apiserver")
        secure = free_port()
        self._etcd = etcd(directory)
        self.endpoint = f"https://127.0.0.1:{secure}"
        """The address with TLS. Its certificate signs itself: ``certificates/apiserver.crt`` in the directory."""
        key = directory / "key.pem"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        tokens = directory / "tokens.csv"
        tokens.write_text("".join(f"{token},{user},{user}{groups}\n" for token, (user, groups) in TOKENS.items()))
        options = {
            "etcd-servers": f"http://{self._etcd.address}",
            "secure-port": secure,
            "bind-address": "127.0.0.1",
            "cert-dir": directory / "certificates",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-cluster-ip-range": "10.0.0.0/24",
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
        }
        super().__init__(
            "kube-apiserver",
            [command, *(f"--{name}={value}" for name, value in options.items())],
            directory,
            _plain(secure),
            self._is_ready,
        )

    def start(self) -> "KubernetesServer":
        self._etcd.start()
        super().start()
        return self

    def kill(self) -> None:
        super().kill()
        self._etcd.kill()

    def _is_ready(self) -> bool:
        headers = {"Authorization": "Bearer administrator-token"}
        with suppress(httpx.TransportError):
            # The namespace is made a moment after the server is ready.
            namespace = f"{self.endpoint}/api/v1/namespaces/default"
            return httpx.get(namespace, headers=headers, verify=trusting(), timeout=5).status_code == 200
        return False


def _plain(secure: int) -> int:
    """A port whose connections are passed on over TLS, for as long as this process lives."""
    listener = socket.create_server(("127.0.0.1", 0))

    async def pass_on(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            server, requests = await asyncio.open_connection("127.0.0.1", secure, ssl=trusting())
            await asyncio.gather(_copy(client, requests), _copy(server, answers))
        answers.close()

    async def serve() -> None:
        async with await asyncio.start_server(pass_on, sock=listener) as server:
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    return int(listener.getsockname()[1])


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()


def trusting() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
