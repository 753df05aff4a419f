"""The HTTP server: uvicorn's, which accepts connections by itself."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from gateway.http.connection import HEAD_TIMEOUT, Connection
from gateway.http.crowd import CROWD, Seat

AT_ONCE = 8
"""Connections that are accepted in one turn of the loop. The next turn closes connections that make way for them."""
_NO_FILES_LEFT = 1.0
"""Seconds without accepting, while no file is left and no connection waits for its client."""


class HttpServer(uvicorn.Server):
    """A server that knows its connections from their acceptance on. uvicorn's knows them after the handshake of TLS."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._arriving: set[asyncio.Task[None]] = set()
        self.on_start: Callable[[], object] = lambda: None
        """Called once it serves."""
        self.on_stop: Callable[[], object] = lambda: None
        """Called when it begins to end its requests."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listener in sockets or ():
            listener.setblocking(False)  # noqa: FBT003 - the signature of the standard library
            # Accepted connections inherit it. Without it answers wait for an ACK.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.listen(self.config.backlog)
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        if self.started:
            self.on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.on_stop()
        for listener in sockets or ():
            asyncio.get_running_loop().remove_reader(listener)
        await super().shutdown(sockets)
        for task in self._arriving:
            task.cancel()

    def take(self, accepted: socket.socket) -> None:
        """Serve a connection that has just been accepted."""
        accepted.setblocking(False)  # noqa: FBT003
        seat, loop = CROWD.enter(self.config.loaded_app, accepted), asyncio.get_running_loop()
        if seat is None:
            accepted.close()
            return
        connection = Connection(
            seat, config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=loop
        )
        task = loop.create_task(self._shake_hands(connection, seat, accepted))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    def make_room(self) -> bool:
        """Close a connection that waits for its client, for one that finds no file. Return whether there was one."""
        return CROWD.make_room(self.config.loaded_app)

    async def _shake_hands(self, connection: Connection, seat: Seat, accepted: socket.socket) -> None:
        context = self.config.ssl
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HEAD_TIMEOUT,
            )
        except OSError:  # a client that is gone, or that fails the handshake of TLS
            seat.leave()
        except BaseException:
            seat.leave()
            raise

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # too many open files
                if not self.make_room():
                    loop = asyncio.get_running_loop()
                    loop.remove_reader(listener)
                    loop.call_later(_NO_FILES_LEFT, self._accept_again, listener)
                return
            self.take(accepted)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)
