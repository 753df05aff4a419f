"""A network that loses an answer, so that a client never hears of what it did, or that holds a request back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import urlsplit

from tests.waiting import PATIENCE

_CONTINUE = b"HTTP/1.1 100"
Network = TypeVar("Network", bound="Lossy")


class Lossy:
    """Passes connections on to a gateway, and breaks off the one on which the answer to be lost comes back."""

    def __init__(self, listener: socket.socket, gateway: tuple[str, int], request: bytes) -> None:
        self._listener = listener
        self._gateway = gateway
        self._request = request
        self.lost = 0

    def serve(self) -> None:
        """Take connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        losing = threading.Event()
        with client, socket.create_connection(self._gateway) as gateway, suppress(OSError):
            threading.Thread(target=self._requests, args=(client, gateway, losing), daemon=True).start()
            while answer := gateway.recv(65536):
                if losing.is_set() and not answer.startswith(_CONTINUE):
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)

    def _requests(self, client: socket.socket, gateway: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while sent := client.recv(65536):
                if sent.startswith(self._request):
                    self._meet(losing)
                gateway.sendall(sent)
            gateway.shutdown(socket.SHUT_WR)

    def _meet(self, losing: threading.Event) -> None:
        """A request of the kind is about to be passed on."""
        if not self.lost:
            self.lost += 1
            losing.set()


class Holding(Lossy):
    """Holds the requests of a kind back until they are released. It loses nothing."""

    def __init__(self, listener: socket.socket, gateway: tuple[str, int], request: bytes) -> None:
        super().__init__(listener, gateway, request)
        self._held = threading.Event()
        self._released = threading.Event()

    def wait(self) -> None:
        """Wait until a request is held back."""
        assert self._held.wait(PATIENCE)

    def release(self) -> None:
        self._released.set()

    def _meet(self, losing: threading.Event) -> None:
        self._held.set()
        self._released.wait(PATIENCE)


def losing(origin: str, request: bytes) -> AbstractContextManager[tuple[str, Lossy]]:
    """An origin in front of ``origin`` that loses the answer to the first request that begins with ``request``."""
    return _before(origin, request, Lossy)


def holding(origin: str, request: bytes) -> AbstractContextManager[tuple[str, Holding]]:
    """An origin in front of ``origin`` that holds back each request that begins with ``request``."""
    return _before(origin, request, Holding)


@contextmanager
def _before(origin: str, request: bytes, kind: type[Network]) -> Iterator[tuple[str, Network]]:
    parts = urlsplit(origin)
    assert parts.hostname is not None
    assert parts.port is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network = kind(listener, (parts.hostname, parts.port), request)
        threading.Thread(target=network.serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", network
        # Closing does not wake up a thread that waits in accept; shutting down does.
        listener.shutdown(socket.SHUT_RDWR)


# A server of tables that is never available, to see what clients try again by themselves.


_BODY = b'{"code":"unavailable","message":"Not now.","details":null,"hint":null}'


class _Unavailable(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(503)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY)

    do_POST = do_PATCH = do_PUT = do_DELETE = _answer  # noqa: N815 - the names are http.server's

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        """Nothing: what was asked is the client's to say."""


@contextmanager
def unavailable() -> Iterator[str]:
    """Answer 503 to every write until the end; the origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Unavailable) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()
