"""A network between a holder and its lock service: it stands still as for a paused process, or loses an answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


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
