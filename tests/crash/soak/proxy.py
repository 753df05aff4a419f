"""A TCP proxy in a process of its own: it cuts connections, holds, loses and repeats requests, and changes its target.

Run as ``python -m tests.crash.soak.proxy``. It prints its port. Each line of its standard input is a command in JSON,
the name of a method of ``_Proxy`` and its argument. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, cast

import uvloop

from tests import ROOT

_LATE = 2.0
"""Seconds after which a copy of a request is sent, at most."""
_COPIED = 0.5
"""The part of the requests that are sent twice meanwhile."""


class Proxy:
    """A proxy, from outside; a context manager that ends it. Clients connect to ``port`` of 127.0.0.1."""

    def __init__(self, *targets: int) -> None:
        """``targets``: ports of this host; each connection goes to one of them, at random."""
        command = [sys.executable, "-m", "tests.crash.soak.proxy"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self.aim(*targets)

    def aim(self, *targets: int) -> None:
        """Lead new connections there. Connections that exist go on."""
        self._tell("aim", targets)

    def cut(self, share: float = 1.0) -> None:
        """Cut this share of the connections, with whatever is on its way."""
        self._tell("cut", share)

    def lose(self) -> None:
        """Cut each connection at the next bytes from its target, which are lost: a request without its answer."""
        self._tell("lose", None)

    def hold(self, seconds: float) -> None:
        """Deliver nothing for a while."""
        self._tell("hold", seconds)

    def refuse(self, seconds: float) -> None:
        """Cut all connections, and take no new ones for a while: what clients see of a restart."""
        self._tell("refuse", seconds)

    def repeat(self, seconds: float) -> None:
        """For a while, send half of the requests a second time, up to two seconds later. Its answers are dropped."""
        self._tell("repeat", seconds)

    def _tell(self, name: str, argument: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps([name, argument]), file=self._process.stdin, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.kill()


class _Side(asyncio.Protocol):
    """One side of a connection. ``other`` is the one across; ``lost``: the next bytes end both.

    ``request``: the bytes of the request that is under way. None until one begins. The target's side has none.
    """

    def __init__(self, proxy: _Proxy, other: _Side | None = None) -> None:
        self._proxy, self.other, self._accepted = proxy, other, other is None
        self.request: list[bytes] | None = None
        self.transport: asyncio.Transport | None = None
        self.waiting: list[bytes] = []
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._proxy.sides.add(self)
        if self.other is None:
            self._proxy.connect(self)
        else:
            self.other.deliver()

    def data_received(self, data: bytes) -> None:
        if self.lost:
            self.abort()
            return
        if self._accepted:
            if self.request is None:
                self.request = []
                self._proxy.begin(self.request)
            self.request.append(data)
        elif self.other is not None:
            self.other.request = None
        self.waiting.append(data)
        if not self._proxy.holding:
            self.deliver()

    def deliver(self) -> None:
        """Pass on what has come from here."""
        if self.other is not None and self.other.transport is not None and self.waiting:
            self.other.transport.write(b"".join(self.waiting))
            self.waiting.clear()

    def connection_lost(self, _: Exception | None) -> None:
        self._proxy.sides.discard(self)
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def abort(self) -> None:
        for side in (self, self.other):
            if side is not None and side.transport is not None:
                side.transport.abort()


class _Proxy:
    """The proxy, in its own process."""

    def __init__(self) -> None:
        self.sides: set[_Side] = set()
        self.holding = self._refusing = self._repeating = 0
        self._targets: list[int] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Side(self), "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        commands = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
        while line := await commands.readline():
            name, argument = json.loads(line)
            getattr(self, name)(argument)

    def connect(self, client: _Side) -> None:
        self._start(self._connect(client))

    def begin(self, request: list[bytes]) -> None:
        """A client begins to send a request. All of it will be in the list."""
        if self._repeating and random.random() < _COPIED:
            self._start(self._copy(request, random.random() * _LATE))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _copy(self, request: list[bytes], delay: float) -> None:
        await asyncio.sleep(delay)
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection("127.0.0.1", random.choice(self._targets))
            try:
                writer.write(b"".join(request))
                async with asyncio.timeout(_LATE):
                    await reader.read(1)
                    await asyncio.sleep(_LATE)
            finally:
                writer.transport.abort()

    async def _connect(self, client: _Side) -> None:
        if self._refusing:
            client.abort()
            return
        target = random.choice(self._targets)
        try:
            _, server = await asyncio.get_running_loop().create_connection(
                lambda: _Side(self, client), "127.0.0.1", target
            )
        except OSError:
            client.abort()
            return
        client.other = server
        if client not in self.sides or self._refusing:
            server.abort()
        elif not self.holding:
            client.deliver()

    def aim(self, targets: list[int]) -> None:
        self._targets = targets

    def cut(self, share: float) -> None:
        for side in list(self.sides):
            if random.random() < share:
                side.abort()

    def lose(self, _: None) -> None:
        for side in self.sides:
            side.lost = side.other in self.sides and side.transport is not None and self._leads_to_target(side)

    def _leads_to_target(self, side: _Side) -> bool:
        assert side.transport is not None
        return side.transport.get_extra_info("peername")[1] in self._targets

    def hold(self, seconds: float) -> None:
        self.holding += 1
        asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self.holding -= 1
        if not self.holding:
            for side in list(self.sides):
                side.deliver()

    def repeat(self, seconds: float) -> None:
        self._repeating += 1
        asyncio.get_running_loop().call_later(seconds, self._once)

    def _once(self) -> None:
        self._repeating -= 1

    def refuse(self, seconds: float) -> None:
        self._refusing += 1
        self.cut(1.0)
        asyncio.get_running_loop().call_later(seconds, self._accept)

    def _accept(self) -> None:
        self._refusing -= 1


if __name__ == "__main__":
    uvloop.run(_Proxy().run())
