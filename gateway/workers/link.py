"""A worker's link to its parent: connections that it gets from it, and what it does together with the other workers."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from gateway.config import Config
from gateway.errors import ReloadRefused
from gateway.http.crowd import CROWD
from gateway.http.server import AT_ONCE, HttpServer
from gateway.observe.gauges import Counted, Gathered, Snapshot
from gateway.workers.channel import Channel, NoAnswer

TAKEN = b"t"
"""A worker's answer to each connection that it gets."""
_REPORT = 1.0
"""Seconds between two reports. The parent keeps the last one of a worker that dies."""


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one worker. A report with a higher ``number`` is newer."""

    number: int
    connections: int
    snapshot: Snapshot


@dataclass
class Link:
    """``number`` is this worker's, from 1 to ``count``."""

    number: int
    count: int
    talk: socket.socket
    connections: socket.socket

    def __post_init__(self) -> None:
        self._reports = count(1)
        self._channel = Channel(self.talk, self._answer)

    def attach(self, follow: Callable[[Config], Awaitable[None]], report: Callable[[], Snapshot]) -> None:
        """Say how this worker follows another one to a configuration, and what it reports."""
        self._follow, self._report = follow, report

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Let no other worker reload while the block runs. Raises ``ReloadRefused``."""
        await self._asked("begin")
        try:
            yield
        finally:
            with suppress(ReloadRefused):
                await self._asked("end")

    async def share(self, config: Config) -> None:
        """Let the other workers follow to a configuration. Raises ``ReloadRefused``."""
        await self._asked("follow", config)

    async def gather(self, ours: Snapshot) -> Gathered:
        """Return what the other workers have counted. Raises ``NoAnswer``."""
        gathered: Gathered = await self._channel.ask("gather", Report(next(self._reports), CROWD.open, ours))
        return gathered

    async def publish(self, counted: Mapping[str | None, Counted]) -> None:
        """Let the worker that is asked next continue to count the record from here. Raises ``NoAnswer``."""
        await self._channel.ask("counted", counted)

    async def serve(self, server: HttpServer) -> None:
        """Run the server with the connections that the parent hands over. Stop when the parent has ended."""
        self._server, serves = server, asyncio.Event()
        server.on_start = serves.set
        async with asyncio.TaskGroup() as self._tasks:
            tasks = [self._tasks.create_task(self._talk()), self._tasks.create_task(self._serve(serves))]
            try:
                await server.serve(sockets=[])
            finally:
                asyncio.get_running_loop().remove_reader(self.connections)
                for task in tasks:
                    task.cancel()

    async def _asked(self, name: str, value: Any = None) -> None:
        try:
            await self._channel.ask(name, value)
        except NoAnswer as error:
            raise ReloadRefused(f"The parent of the workers does not answer: {error}") from error

    async def _talk(self) -> None:
        await self._channel.run()
        self._server.should_exit = True

    async def _serve(self, serves: asyncio.Event) -> None:
        await serves.wait()
        asyncio.get_running_loop().add_reader(self.connections, self._take)
        with suppress(NoAnswer):
            await self._channel.ask("ready")
            while True:
                await asyncio.sleep(_REPORT)
                await self._channel.ask("report", self._state())

    def _state(self) -> Report:
        return Report(next(self._reports), CROWD.open, self._report())

    def _take(self) -> None:
        """Take connections that wait here, few at one time: those that make way for them close in the next turn."""
        loop, server = asyncio.get_running_loop(), self._server
        for _ in range(AT_ONCE):
            if server.should_exit:
                loop.remove_reader(self.connections)
                self._tasks.create_task(self._stop_taking())
                return
            try:
                data, files, _, _ = socket.recv_fds(self.connections, 16, 1)
            except BlockingIOError:
                return
            except OSError:
                data, files = b"", []
            if not data:
                loop.remove_reader(self.connections)
                return
            # From here on the connection is this worker's, and ends with it. Nothing of it has been read before.
            with suppress(OSError):
                self.connections.send(TAKEN)
            for file in files:
                server.take(socket.socket(fileno=file))
            if not files:  # the limit of open files keeps them out
                server.make_room()

    async def _stop_taking(self) -> None:
        """Let the parent hand connections that wait here to another worker."""
        with suppress(NoAnswer):
            await self._channel.ask("stopping")

    async def _answer(self, name: str, value: Any) -> Any:
        match name:
            case "report":
                return self._state()
            case "follow":
                await self._follow(value)
        return None
