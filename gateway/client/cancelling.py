"""Requests that may be cancelled at any moment, and leave their session in order.

Before a request, and after it, httpx closes connections that nobody has used for a while, one after the other, in a
scope of anyio's that cancellation does not reach. asyncio's own ``Task.cancel`` does reach it, and all timeouts and
task groups of asyncio's with it: those still to be closed would be in no pool any more, and stay open.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import httpx


async def cancellable(request: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    """The answer. Whoever is cancelled here waits until what must not be cancelled is done."""
    scope = anyio.CancelScope()

    async def ask() -> httpx.Response:
        with scope:
            return await request()
        raise asyncio.CancelledError

    asking, cancelled = asyncio.ensure_future(ask()), None
    try:
        while not asking.done():
            try:
                await asyncio.wait((asking,))
            except asyncio.CancelledError as error:
                cancelled = error
                scope.cancel()
        if cancelled is None:
            return asking.result()
        if not asking.cancelled() and asking.exception() is None:
            # It came at the same moment, and nobody else would ever give back its connection.
            with anyio.CancelScope(shield=True):
                await asking.result().aclose()
        raise cancelled
    finally:
        del asking, cancelled  # an error that is raised here refers to this frame
