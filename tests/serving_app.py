"""Any ASGI app behind the product's own server settings, in the test's own event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway import serving
from gateway.serving import ASGIApp


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[int]:
    """Serve ``app``, which need not know lifespans, on a free port of 127.0.0.1; the port."""
    server = serving.server(app, grace=1)
    server.config.lifespan = "off"
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                yield int(listener.getsockname()[1])
            finally:
                server.should_exit = True
                server.force_exit = True
