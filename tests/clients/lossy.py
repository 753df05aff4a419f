"""A network that loses an answer: the request arrives and is carried out, and its client never hears of it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_CONTINUE = b"HTTP/1.1 100"


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
                if not self.lost and sent.startswith(self._request):
                    self.lost += 1
                    losing.set()
                gateway.sendall(sent)
            gateway.shutdown(socket.SHUT_WR)


@contextmanager
def losing(origin: str, request: bytes) -> Iterator[tuple[str, Lossy]]:
    """An origin in front of ``origin`` that loses the answer to the first request that begins with ``request``."""
    parts = urlsplit(origin)
    assert parts.hostname is not None
    assert parts.port is not None
    with socket.create_server(("127.0.0.1", 0)) as listener:
        network = Lossy(listener, (parts.hostname, parts.port), request)
        threading.Thread(target=network.serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", network
        # Closing does not wake up a thread that waits in accept; shutting down does.
        listener.shutdown(socket.SHUT_RDWR)
