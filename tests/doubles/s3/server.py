"""Runs the double on 127.0.0.1, over uvicorn's HTTP protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.doubles.s3.app import S3Double

_HOST = "127.0.0.1"
# Longer than any client keeps an idle connection, so that a reused one is never closed under a request.
_KEEP_ALIVE = 300


@asynccontextmanager
async def serve(double: S3Double, port: int = 0) -> AsyncIterator[str]:
    """Serve the double and yield its endpoint, e.g. "http://127.0.0.1:40123"; port 0 takes a free one.

    Leaving stops at once: connections are reset and held requests are dropped. The double keeps its state and can be
    served again, on the same port too, as a store that was down does.
    """
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(_protocols(double, state), sock=_listen(port))
    try:
        yield f"http://{_HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await _stop(double, state)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio does this by itself only for sockets that name their protocol; without it answers wait 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((_HOST, port))
    return listener


def _protocols(double: S3Double, state: ServerState) -> Callable[[], asyncio.Protocol]:
    """uvicorn's server polls ten times a second for its end, and knows no way to reset one connection; this does."""
    config = Config(
        double,
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()

    def protocol() -> asyncio.Protocol:
        own: dict[str, Any] = {}
        connection = HttpToolsProtocol(config=config, server_state=state, app_state=own)

        def abort() -> None:
            connection.transport.abort()

        own["abort_connection"] = abort
        return connection

    return protocol


async def _stop(double: S3Double, state: ServerState) -> None:
    for connection in list(state.connections):
        connection.transport.abort()
    double.faults.abandon()
    tasks = list(state.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
